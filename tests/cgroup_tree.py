"""Real cgroups with real processes in them, made and removed for a test.

A tree lies below a directory of its own in each controller (v1) or in the single hierarchy (v2, in
the guest of `tests.guest`), so that tests, a demo and a real kubelet on one machine do not meet.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from pipeline.local.process_guard import die_with_parent

CGROUP_ROOT = Path("/sys/fs/cgroup")
CONTROLLERS = ("cpu", "cpuacct", "memory")
V2_CONTROLLERS = ("cpu", "cpuset", "io", "memory", "pids")


class CgroupTree:
    """A tree below `<controller>/<name>` in each controller, and below `unified` if asked for."""

    def __init__(self, name: str, controllers: Sequence[str] = CONTROLLERS) -> None:
        self.name = name
        self.controllers = controllers
        self._processes: list[subprocess.Popen[str]] = []

    def make(self, relative: str) -> None:
        """The cgroup `relative`, with its parents."""
        for controller in self.controllers:
            self.directory(controller, relative).mkdir(parents=True, exist_ok=True)

    def directory(self, controller: str, relative: str = "") -> Path:
        return CGROUP_ROOT / controller / self.name / relative

    def write(self, controller: str, relative: str, file: str, value: object) -> None:
        (self.directory(controller, relative) / file).write_text(str(value))

    def run(self, relative: str, *command: str) -> subprocess.Popen[str]:
        """Start `command` as a member of the cgroup from its first instruction on."""
        targets = [str(self.directory(c, relative) / "cgroup.procs") for c in self.controllers]
        join = "; ".join(f"echo $$ > {target}" for target in targets)
        process = subprocess.Popen(
            ["/bin/sh", "-c", f'{join}; exec "$@"', "sh", *command], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent,
        )  # fmt: skip
        self._processes.append(process)
        return process

    def python(self, relative: str, source: str) -> subprocess.Popen[str]:
        """Start a Python program as a member of the cgroup."""
        return self.run(relative, sys.executable, "-I", "-S", "-u", "-c", source)

    def remove(self, relative: str = "") -> None:
        """End what runs in a cgroup and below it, and take it away."""
        for controller in self.controllers:
            top = self.directory(controller, relative)
            for directory, _, _ in os.walk(top, topdown=False):
                _remove_directory(Path(directory))

    def close(self) -> None:
        """End every process that was started, and remove the tree."""
        for process in self._processes:
            with suppress(ProcessLookupError):
                process.kill()
        for process in self._processes:
            process.communicate()
        self.remove()


class CgroupV2Tree(CgroupTree):
    """A tree below `<name>` in the single hierarchy; each parent enables all controllers.

    Only a cgroup without children may have processes: run those of a pod in a container.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, ("",))

    def make(self, relative: str) -> None:
        super().make(relative)
        for parent in reversed(self.path(relative).parents):
            if parent.is_relative_to(CGROUP_ROOT):
                names = (parent / "cgroup.controllers").read_text().split()
                enable = " ".join(f"+{name}" for name in names if name in V2_CONTROLLERS)
                (parent / "cgroup.subtree_control").write_text(enable)

    def path(self, relative: str = "") -> Path:
        return self.directory("", relative)

    def set(self, relative: str, file: str, value: object) -> None:
        self.write("", relative, file, value)

    def read(self, relative: str, file: str) -> str:
        return (self.path(relative) / file).read_text()

    def fields(self, relative: str, file: str) -> dict[str, int]:
        """A file of lines with a key and a number, such as cpu.stat."""
        lines = (line.split() for line in self.read(relative, file).splitlines())
        return {key: int(value) for key, value in lines}


def _remove_directory(directory: Path) -> None:
    for _ in range(1500):
        try:
            for pid in (directory / "cgroup.procs").read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), 9)
            directory.rmdir()
        except FileNotFoundError:
            return
        except OSError:  # a process that was killed takes a moment to leave
            time.sleep(0.02)
        else:
            return
    raise TimeoutError(f"{directory} cannot be removed")


@contextmanager
def cgroup_tree(name: str, controllers: Sequence[str] = CONTROLLERS) -> Iterator[CgroupTree]:
    """A tree named after `name` and this process, removed at the end with all that runs in it."""
    tree = CgroupTree(f"springtide-test-{name}-{os.getpid()}", controllers)
    try:
        tree.make("")
        yield tree
    finally:
        tree.close()


@contextmanager
def cgroup_v2_tree(name: str) -> Iterator[CgroupV2Tree]:
    """A tree of v2 named after `name`, removed at the end with all that runs in it."""
    tree = CgroupV2Tree(f"springtide-test-{name}")
    try:
        tree.make("")
        yield tree
    finally:
        tree.close()
