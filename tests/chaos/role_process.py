"""A role as a process that a chaos run can kill, pause, step in time, and deprive of its disk."""

import contextlib
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.local.process_guard import die_with_parent
from tests.chaos.schedule import ROLES
from tests.processes import environment

TAIL_LINES = 15
_COMMANDS = (*ROLES, "notifier", "webhook")


class RoleProcess:
    """A role, started by `start`, and again after each end."""

    def __init__(
        self, name: str, flags: list[str], variables: Mapping[str, str], folder: Path,
        bugs: Sequence[str] = (),
    ) -> None:  # fmt: skip
        role = next(role for role in _COMMANDS if f"{name}-".startswith(f"{role}-"))
        self.name = name
        self.log = folder / f"{name}.log"
        self.clock_file = folder / f"{role}.clock"
        self.process: subprocess.Popen[bytes] | None = None
        self.exit_codes: list[int] = []
        """Of the ends that `start` saw, except kills."""
        entry = [sys.executable, "-m", "tests.chaos.role_entry", str(self.clock_file)]
        self._argv = [*entry, ",".join(bugs), role, *flags]
        self._environment = environment(**variables)

    def start(self) -> None:
        """Start it, unless it is running."""
        if self.is_running():
            return
        if self.process is not None and self.process.returncode != -signal.SIGKILL:
            self.exit_codes.append(self.process.returncode)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._argv, cwd=self.log.parent, env=self._environment, stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, preexec_fn=die_with_parent,
            )  # fmt: skip

    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def signal(self, number: int) -> None:
        """Send a signal, if it is running."""
        if self.process is not None and self.is_running():
            self.process.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL, and wait until it has ended."""
        self.signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    @property
    def incarnation(self) -> str:
        """Its name with the id of the process that was started last."""
        return f"{self.name} ({self.process.pid})" if self.process is not None else self.name

    def memory_mib(self) -> tuple[float, float] | None:
        """Its resident memory, and the part that is not of files; None if it is not running."""
        with contextlib.suppress(OSError, KeyError):
            if self.process is not None:
                status = Path(f"/proc/{self.process.pid}/status").read_text()
                kib = dict(line.split(":", 1) for line in status.splitlines())
                resident, anonymous = (int(kib[name].split()[0]) for name in ("VmRSS", "RssAnon"))
                return resident / 1024, anonymous / 1024
        return None

    def tail(self) -> str:
        """The end of its log."""
        return "\n".join(self.text().splitlines()[-TAIL_LINES:])

    def text(self) -> str:
        """Its log."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""


def limit_files(pid: int, size_bytes: int | None) -> None:
    """Let a process write no file beyond `size_bytes`, as on a full disk; None ends the limit."""
    with contextlib.suppress(ProcessLookupError):
        soft = resource.RLIM_INFINITY if size_bytes is None else size_bytes
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, resource.RLIM_INFINITY))
