"""The release before the newest change of a format reads what this one writes, and the reverse."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from pipeline.local.local_kafka import LocalKafka
from pipeline.topics.codec import decode_json
from pipeline.topics.node_state import NodeStateRecord
from tests.broker import flags_of
from tests.chaos.archived_log import archive_problems, read_archives
from tests.processes import ROOT, environment, springtide
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
    argv = [sys.executable, "-c", _READ_GOLDEN, str(FOLDER)]
    run = subprocess.run(
        argv, cwd=previous, env=environment(previous), capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    package, *names = run.stdout.split()
    assert Path(package).is_relative_to(previous)
    assert {"samples", "windows", "checkpoints-node"} < {*names}


def archive(stage: Stage, directory: Path, tree: Path) -> None:
    """Archive the log up to its present end."""
    flags = ("--directory", str(directory), "--until-end", *flags_of(stage.settings.kafka))
    subprocess.run(springtide("archive", *flags), env=environment(tree), check=True)


async def test_a_worker_and_an_archiver_that_are_rolled_back_continue_and_so_do_the_next(
    broker: LocalKafka, previous: Path, tmp_path: Path
) -> None:
    stage = await create_stage(broker.bootstrap_servers, 2)
    releases = (ROOT, previous, ROOT)
    workers = [Worker(stage, tmp_path, tree=tree) for tree in releases]
    async with feed(stage, Load(7, nodes=8, pods=3)) as made:
        for worker in workers:
            worker.start()
            await worker.loaded()
            await made.advance(10)
            logs = await gather(stage, made.samples, ignore=made.load.departing)
            assert worker.stop() == 0, worker.tail()
            await asyncio.to_thread(archive, stage, tmp_path / "archive", worker.tree)
        archived = await read_archives(stage, {"archive": tmp_path / "archive"})
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
