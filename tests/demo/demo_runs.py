"""Runs of `springtide demo` as a user runs it, and everything that they must not leave behind."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.local.process_guard import die_with_parent
from tests.processes import eventually, springtide

CGROUPS = Path("/sys/fs/cgroup")


class Run:
    """A running demo: its output so far, and its processes, cgroups and directories."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.directory = directory
        self.output = directory / f"output-{time.monotonic_ns()}"
        environment = {**os.environ, "TMPDIR": str(directory)}
        # Where pytest found the packages; the demo hands it on to the roles.
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        environment["SPRINGTIDE_EXTENDER_MODE"] = "observe"  # must not get through
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                springtide("demo", *arguments), stdout=output, stderr=subprocess.STDOUT,
                env=environment, process_group=0, preexec_fn=die_with_parent,
            )  # fmt: skip

    @property
    def text(self) -> str:
        return self.output.read_text()

    def wait_for(self, pattern: str, seconds: float = 180) -> None:
        def printed() -> bool:
            return re.search(pattern, self.text) is not None or self.process.poll() is not None

        assert eventually(printed, seconds), self.text
        assert re.search(pattern, self.text), self.text

    def processes(self) -> dict[int, str]:
        """Command lines of all processes that know this directory, by id; zombies excepted."""
        results = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) in (os.getpid(), self.process.pid):
                continue
            try:
                environment = (entry / "environ").read_bytes()
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
            except OSError:
                continue
            if f"TMPDIR={self.directory}".encode() in environment.split(b"\0") and command:
                results[int(entry.name)] = command.decode(errors="replace")
        return results

    def trees(self) -> list[Path]:
        return list(CGROUPS.glob(f"*/springtide-demo-{self.process.pid}-*"))

    def folders(self) -> list[Path]:
        return [path for path in self.directory.iterdir() if not path.name.startswith("output-")]


@contextmanager
def demo_directory() -> Iterator[Path]:
    """TMPDIR of the demos of one test; whatever happens, none of their processes stays."""
    # The folder of a test has too long a name for one with a socket in it.
    with tempfile.TemporaryDirectory(prefix="demos-", ignore_cleanup_errors=True) as short:
        yield Path(short)
        for entry in Path("/proc").iterdir():
            try:
                if f"TMPDIR={short}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)
            except (OSError, ValueError):
                continue


def assert_nothing_left(run: Run) -> None:
    assert eventually(lambda: not run.processes(), 60), run.processes()
    assert run.trees() == []
    assert run.folders() == []
