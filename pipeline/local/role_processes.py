"""Run roles as child processes of the demo.

A role uses the same interpreter and logs to a file. It ends with the demo, and does not receive
Ctrl-C of the terminal.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pipeline.errors import DemoError
from pipeline.local.demo_workload import CgroupJoiner

_TAIL_LINES = 12
STOP_SECONDS: Final = 20.0


class Role:
    """A running role; `name` is used in errors."""

    def __init__(self, name: str, argv: Sequence[str], log: Path, joiner: CgroupJoiner) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, *argv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=without_settings(os.environ),
                process_group=0,
                preexec_fn=joiner,
            )

    def check(self) -> None:
        """Raise `DemoError` with the end of the log if it has ended."""
        code = self._process.poll()
        if code is not None:
            cause = f"with exit code {code}" if code >= 0 else f"by signal {-code}"
            raise DemoError(f"the demo's {self.name} ended {cause}; its log ends:\n{self.tail()}")

    def tail(self) -> str:
        """Return the last lines of the log."""
        lines = self.log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        return "\n".join(f"  {line[:400]}" for line in lines) or "  (empty)"

    def terminate(self) -> None:
        """Send SIGTERM; to the extender SIGINT, which skips draining."""
        if self._process.poll() is None:
            is_extender = self.name == "extender"
            self._process.send_signal(signal.SIGINT if is_extender else signal.SIGTERM)

    def wait(self, deadline: float) -> None:
        """Wait for its end; kill it at `deadline` (of `time.monotonic`)."""
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def stop_all(roles: Sequence[Role]) -> None:
    for role in roles:
        role.terminate()
    deadline = time.monotonic() + STOP_SECONDS
    for role in roles:
        role.wait(deadline)


def without_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without variables that override the demo's settings."""
    return {name: value for name, value in environ.items() if not name.startswith("SPRINGTIDE_")}
