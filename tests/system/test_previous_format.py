"""The release before the newest change of a format reads what this one writes, and the reverse."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import aiohttp
import msgspec
import pytest

from actuators.node.original_values import OriginalValues, SavedValue
from pipeline.local.local_kafka import LocalKafka
from pipeline.local.port_probe import HOST, free_port
from pipeline.processors.node_qos.cgroup_values import Knob, Place
from pipeline.settings import Settings
from pipeline.topics.codec import decode_json
from pipeline.topics.node_state import NodeStateRecord
from tests.broker import flags_of
from tests.chaos.archived_log import archive_problems, read_archives
from tests.processes import ROOT, environment, springtide, until
from tests.system import oracle
from tests.system.harness import Stage, Worker, create_stage, feed, gather
from tests.system.load import Load
from tests.topics.golden import FOLDER

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

_PACKAGES: Final = ("pipeline", "actuators", "node-exporter", "tests")
_READ_GOLDEN: Final = """
import sys
from pathlib import Path
import pipeline
from tests.topics.golden import GOLDEN

print(pipeline.__file__)
for kind in GOLDEN:
    kind.read(max(Path(sys.argv[1]).glob(f"{kind.name}.???.{kind.suffix}")).read_bytes())
    print(kind.name)
"""


_READ_STATE_FILE: Final = """
import sys
from pathlib import Path
from actuators.node.original_values import OriginalValues
from pipeline.errors import StateError

try:
    print(len(OriginalValues(Path(sys.argv[1]), "boot", lambda place, text: None).values))
except StateError as error:
    print(error)
"""
_POLICY: Final = """
apiVersion: v1
kind: ConfigMap
metadata: {name: slo-controller-config}
data:
  colocation-config: '{"enable": true, "ofANewerRelease": {"x": 1}}'
  of-a-newer-release-config: '{"enable": true}'
"""


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The code before the newest commit that changed the bytes of a record."""
    folder = tmp_path_factory.mktemp("previous")
    try:
        changed = _git("log", "-1", "--format=%H", "--", str(FOLDER)).decode().strip()
        archive = _git("archive", f"{changed}~1", *_PACKAGES)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no history of git here, as in an sdist or a shallow clone: {error}")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)
    return folder


def _git(*arguments: str) -> bytes:
    # The working tree may belong to another user.
    argv = ["git", "-c", f"safe.directory={ROOT}", *arguments]
    return subprocess.run(argv, cwd=ROOT, check=True, capture_output=True).stdout


def test_the_previous_release_reads_every_record_of_today(previous: Path) -> None:
    run = run_in(previous, [sys.executable, "-c", _READ_GOLDEN, str(FOLDER)])
    assert run.returncode == 0, run.stderr
    package, *names = run.stdout.split()
    assert Path(package).is_relative_to(previous)
    assert {"samples", "windows", "checkpoints-node"} < {*names}


def run_in(
    tree: Path, argv: Sequence[str], stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program with the code of `tree`. Its exit code is not checked."""
    return subprocess.run(
        argv, cwd=tree, env=environment(tree), input=stdin, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


def test_the_previous_release_reads_a_state_file_of_the_node_or_names_the_newer_release(
    previous: Path, tmp_path: Path
) -> None:
    """With a value of each kind that today's node actuator may have to restore."""
    path = tmp_path / "state.json"
    originals = OriginalValues(path, "boot", lambda place, text: None)
    device = {Knob.NODE_SCHED_FEATURE: "WAKEUP_PREEMPTION"}
    originals.replace({Place("be", knob, device.get(knob, "")): SavedValue("1") for knob in Knob})
    originals.close()
    written = path.read_bytes()
    run = run_in(previous, [sys.executable, "-c", _READ_STATE_FILE, str(path)])
    assert run.returncode == 0, run.stderr
    known = run.stdout.strip() == str(len(Knob))
    assert known or "a newer release saved the values" in run.stdout
    assert path.read_bytes() == written


def test_the_previous_release_reads_all_settings_of_today_or_names_the_unknown_one(
    previous: Path, tmp_path: Path
) -> None:
    file = tmp_path / "settings.json"  # JSON is YAML
    settings = msgspec.to_builtins(Settings(), enc_hook=str)
    argv = [sys.executable, "-m", "pipeline.cli.main", "--config", str(file), "topics", "table"]
    settings["worker"]["of_a_newer_release"] = 1
    refused: set[str] = set()
    while True:
        file.write_text(json.dumps(settings))
        run = run_in(previous, argv)
        if run.returncode == 0:
            break
        assert run.returncode == 2, run.stderr
        named = set(re.findall(r"([\w.]+): unknown setting", run.stderr))
        assert named, run.stderr
        for key in named:
            section, _, name = key.partition(".")
            del (settings[section] if name else settings)[name or section]
        refused |= named
    assert "worker.of_a_newer_release" in refused


def test_the_previous_release_takes_a_policy_with_parts_of_a_newer_one(previous: Path) -> None:
    argv = [sys.executable, "-m", "pipeline.cli.main", "policy", "-"]
    run = run_in(previous, argv, _POLICY)
    assert run.returncode == 0, run.stderr
    assert "colocation is on" in run.stdout
    for name in ("ofANewerRelease", "of-a-newer-release-config"):
        assert f"ignored key '{name}': it is unknown" in run.stderr


async def nodes_of_extender(stage: Stage, folder: Path, tree: Path) -> set[str]:
    """The nodes that an extender of `tree` knows when it is ready. It ends with a snapshot."""
    port = free_port()
    flags = (
        "--host", HOST, "--port", str(port), "--snapshot-file", str(folder / "snapshot"),
        *flags_of(stage.settings.kafka)[:4],
    )  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        *springtide("extender", *flags), env=environment(tree)
    )
    url = f"http://{HOST}:{port}"
    try:
        async with aiohttp.ClientSession() as session:

            async def is_ready() -> bool:
                with suppress(aiohttp.ClientError):
                    async with session.get(f"{url}/readyz") as answer:
                        return answer.status == 200
                return False

            await until(is_ready, 120)
            async with session.get(f"{url}/v1/nodes") as answer:
                listed = (await answer.json())["items"]
    finally:
        process.terminate()
        exit_code = await process.wait()
    assert exit_code == 0
    assert (folder / "snapshot").exists()
    return {each["node"] for each in listed}


def archive(stage: Stage, directory: Path, tree: Path) -> None:
    """Archive the log up to its present end."""
    flags = ("--directory", str(directory), "--until-end", *flags_of(stage.settings.kafka))
    subprocess.run(springtide("archive", *flags), env=environment(tree), check=True)


async def test_roles_that_are_rolled_back_continue_and_so_do_the_next(
    broker: LocalKafka, previous: Path, tmp_path: Path
) -> None:
    stage = await create_stage(broker.bootstrap_servers, 2)
    releases = (ROOT, previous, ROOT)
    workers = [Worker(stage, tmp_path, tree=tree) for tree in releases]
    listed: list[set[str]] = []
    async with feed(stage, Load(7, nodes=8, pods=3)) as made:
        for worker in workers:
            worker.start()
            await worker.loaded()
            await made.advance(10)
            logs = await gather(stage, made.samples, ignore=made.load.departing)
            assert worker.stop() == 0, worker.tail()
            await asyncio.to_thread(archive, stage, tmp_path / "archive", worker.tree)
            if worker is not workers[-1]:
                listed.append(await nodes_of_extender(stage, tmp_path, worker.tree))
        archived = await read_archives(stage, {"archive": tmp_path / "archive"})
    assert listed[0] == listed[1] != set()
    assert [*archive_problems(archived)] == []
    assert not any(logs["dead-letters"].values())
    assert oracle.sample_problems(logs, made.samples, made.load.departing) == []
    expected = oracle.undisturbed(logs["windows"], stage.settings)
    assert oracle.applied_twice(logs, expected) == []
    states = {
        record.key: decode_json(NodeStateRecord, record.value)
        for records in logs["node-state"].values()
        for record in records
        if record.value is not None
    }
    assert {state.counters.lost for state in states.values()} == {0}
    for worker in workers:
        assert not worker.says("not readable") + worker.says("damaged"), worker.tail()
