"""Every command in README and docs works as it is written.

Fenced blocks of `sh` or `console` are run as bash scripts against a real broker, where the three
roles run already. `run=until-stopped` marks what runs until SIGTERM. What is not run is listed,
with what runs it instead. Commands in other forms (indented, in running text) must be understood by
the command line, with all their flags; `test_cluster_commands` runs those of helm and kubectl.
"""

import json
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from pipeline.cli.main import cli
from pipeline.local.local_kafka import local_kafka
from pipeline.local.port_probe import free_port
from pipeline.local.process_guard import die_with_parent
from tests.processes import eventually, hears_sigterm

PROJECT = Path(__file__).parents[2]
DOCUMENTS = sorted([PROJECT / "README.md", *PROJECT.glob("docs/**/*.md")])

# First line of a block -> the test or target that runs it instead.
RUN_ELSEWHERE = {
    "make demo": "tests/demo/test_demo.py",
    'make demo ARGS="--fleet 200 --for 60s"': "tests/demo/test_demo.py",
    'make demo ARGS="--hot-node"': "tests/cluster/test_hot_nodes.py",
    "make test": ".ci/run",
    "python3.11 -m venv .venv": "Makefile",  # `setup`: the same by the lock
}

EXAMPLES = {"actuators/cluster/hot_labels.py"}
"""Files that guides tell the reader to write."""

RUNNING_SECONDS = 2.0
STARTING_SECONDS = 120.0


class Block(NamedTuple):
    """A fenced block: its place, what follows `sh` in its first line, and its text."""

    document: Path
    line: int
    marks: tuple[str, ...]
    text: str

    @property
    def title(self) -> str:
        return f"{self.document.relative_to(PROJECT)}:{self.line}"

    @property
    def first(self) -> str:
        return self.text.splitlines()[0]


def blocks(document: Path) -> list[Block]:
    text = document.read_text()
    fences = re.finditer(r"^```(sh|console)([^\n]*)\n(.*?)^```$", text, re.M | re.S)
    return [
        Block(
            document, text[: fence.start()].count("\n") + 1, tuple(fence[2].split()),
            "".join(line.removeprefix("$ ") + "\n" for line in fence[3].splitlines()),
        )
        for fence in fences
    ]  # fmt: skip


ALL = [block for document in DOCUMENTS for block in blocks(document)]
RUN = [block for block in ALL if block.first not in RUN_ELSEWHERE]


def indented_commands(document: Path) -> list[str]:
    """Commands to be typed, in indented lines, without their comments."""
    outside = re.sub(r"^ *```.*?^ *```$", "", document.read_text(), flags=re.M | re.S)
    lines = re.findall(r"^ {4,}(springtide .*)$", outside, re.M)
    return [re.sub(r"\s+#.*|\s+until Ctrl-C$", "", line) for line in lines]


def inline_commands(document: Path) -> list[str]:
    """Commands between backticks; those that are only named may lack arguments."""
    outside = re.sub(r"^ *```.*?^ *```$", "", document.read_text(), flags=re.M | re.S)
    return [" ".join(code.split()) for code in re.findall(r"`(springtide [^`]+)`", outside)]


class Place(NamedTuple):
    """Where blocks are run: a folder, the environment, and real addresses by documented ones."""

    folder: Path
    environment: dict[str, str]
    replaced: dict[str, str]

    def start(self, script: str) -> subprocess.Popen[str]:
        for documented, real in self.replaced.items():
            script = script.replace(documented, real)
        return subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", script], cwd=self.folder, env=self.environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0,
            preexec_fn=die_with_parent,
        )  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A broker with topics, one exporter, worker and extender, and a first window in the table."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "springtide").write_text(
        f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m pipeline.cli.main "$@"\n'
    )
    (folder / "springtide").chmod(0o755)
    node = {"kind": "Node", "metadata": {"name": "some-node"}}
    for kind, items in (("nodes", [node]), ("pods", [])):
        objects = {"apiVersion": "v1", "kind": "List", "items": items}
        (folder / f"{kind}.json").write_text(json.dumps(objects))
    with local_kafka() as kafka:
        port = free_port()
        environment = os.environ | {
            "PATH": f"{folder}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "HOME": str(folder),
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")),
            "XDG_STATE_HOME": str(folder / "state"),
            "SPRINGTIDE_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
            # A machine that runs Springtide already must not fail the test.
            "SPRINGTIDE_EXPORTER_METRICS_PORT": "0",
            "SPRINGTIDE_EXPORTER_SOCKET_PATH": str(folder / "exporter.sock"),
            # Beside the first exporter, which has the name of the machine.
            "SPRINGTIDE_EXPORTER_NODE_NAME": "documented",
            "SPRINGTIDE_WORKER_METRICS_PORT": "0",
            "SPRINGTIDE_EXTENDER_PORT": "0",
            # The window before the present one contains samples soon.
            "SPRINGTIDE_PROVIDER_WINDOW_SECONDS": "10",
            "SPRINGTIDE_PROVIDER_STEP_SECONDS": "5",
        }
        place = Place(folder, environment, {"kafka-0:9092": kafka.bootstrap_servers})
        first = place._replace(
            environment=environment
            | {
                "SPRINGTIDE_EXPORTER_SOCKET_PATH": str(folder / "first.sock"),
                "SPRINGTIDE_EXPORTER_NODE_NAME": platform.node(),
                "SPRINGTIDE_EXPORTER_WINDOW_SECONDS": "5",
                "SPRINGTIDE_EXTENDER_PORT": str(port),
            }
        )
        assert first.start("springtide topics apply").wait(60) == 0
        roles = [first.start(f"exec springtide {role}") for role in ("exporter", "worker")]
        try:
            assert eventually(lambda: first.start("springtide top").wait(60) == 0, 180)
            yield place
        finally:
            for role in roles:
                role.terminate()
            for role in roles:
                role.communicate()


@pytest.mark.broker
@pytest.mark.parametrize("block", RUN, ids=lambda block: block.title)
def test_block_runs(block: Block, place: Place) -> None:
    runs_until_stopped = "run=until-stopped" in block.marks
    process = place.start(f"exec {block.text}" if runs_until_stopped else block.text)
    if runs_until_stopped:
        eventually(
            lambda: hears_sigterm(process.pid) or process.poll() is not None, STARTING_SECONDS
        )
        time.sleep(RUNNING_SECONDS)
        assert process.poll() is None, process.communicate()[0]
        process.terminate()
    try:
        output, _ = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert process.returncode == 0, output


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_commands_in_the_text_are_understood(document: Path) -> None:
    for line in indented_commands(document):
        for arguments in variants(line):
            parse(arguments)
    for line in inline_commands(document):
        for arguments in variants(line):
            parse(arguments, is_whole=False)


def variants(line: str) -> Iterator[list[str]]:
    """The arguments of a command, up to a redirection: `apply|check` is several commands."""
    for word in re.findall(r"\S+\|\S+", line) or [""]:
        for variant in word.replace("\\", "").split("|"):
            arguments = shlex.split(line.replace(word, variant) if word else line)[1:]
            yield [*takewhile(lambda each: each not in ("|", ">", "&&"), arguments)]


def parse(arguments: list[str], *, is_whole: bool = True) -> None:
    """Follow the groups and parse the arguments of the last command, without running it. Unless
    `is_whole`, only its flags: <name> and [--flag] are not to be typed."""
    command: click.Command = cli
    context = click.Context(cli, info_name="springtide")
    while isinstance(command, click.Group) and arguments:
        subcommand = command.get_command(context, arguments[0])
        assert subcommand is not None, f"no command {arguments[0]!r}"
        command, arguments = subcommand, arguments[1:]
    if is_whole:
        # Required arguments are there, and no others.
        command.make_context("springtide", arguments)
    else:
        command.make_parser(context).parse_args(args=arguments)


def test_blocks_run_elsewhere_exist_with_their_runner() -> None:
    assert set(RUN_ELSEWHERE) == {block.first for block in ALL} - {block.first for block in RUN}
    for runner in RUN_ELSEWHERE.values():
        assert (PROJECT / runner).exists()


def anchors(document: Path) -> set[str]:
    """The anchors of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere() -> None:
    for document in DOCUMENTS:
        links = re.findall(r"\]\(([^)#:\s]*)#?([^):\s]*)\)", document.read_text())
        for target, anchor in links:
            file = document.parent / target if target else document
            assert file.exists(), f"{document.name}: {target}"
            if anchor:
                assert anchor in anchors(file), f"{document.name}: {target}#{anchor}"


def test_paths_of_the_repository_exist() -> None:
    roots = "actuators|benchmarks|deploy|docs|node-exporter|pipeline|tests"
    for document in DOCUMENTS:
        paths = re.findall(rf"`((?:{roots})/[\w./-]+)`", document.read_text())
        for path in {*paths} - EXAMPLES:
            assert (PROJECT / path).exists(), f"{document.name}: {path}"


def test_a_block_with_a_mistake_is_reported(tmp_path: Path) -> None:
    document = tmp_path / "bad.md"
    document.write_text(
        "text\n\n```sh run=x\n$ springtide topics aply\n```\n\n    springtide tpo -w\n"
    )
    (block,) = blocks(document)
    assert block == Block(document, 3, ("run=x",), "springtide topics aply\n")
    with pytest.raises(AssertionError, match="no command 'aply'"):
        parse(shlex.split(block.text)[1:])
    with pytest.raises(click.MissingParameter, match="file"):
        parse(["score", "web-1"])
    with pytest.raises(click.UsageError, match="unexpected extra argument"):
        parse(["top", "web-1"])
    with pytest.raises(click.NoSuchOption):
        parse(["top", "--wach"])
    assert indented_commands(document) == ["springtide tpo -w"]
