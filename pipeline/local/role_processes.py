"""Roles of Springtide as child processes of the demo: started, watched, stopped.

A role runs by the same interpreter, its log goes to a file, Ctrl-C of the terminal does not reach
it, and it does not outlive its parent.
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
from pipeline.local.demo_workload import Joiner

_TAIL_LINES = 12
STOP_SECONDS: Final = 20.0


class Role:
    """One running role; `name` is the command, or for a module of ours its last part."""

    def __init__(self, name: str, argv: Sequence[str], log: Path, joiner: Joiner) -> None:
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
        """Raise `DemoError` with the end of its log if it has ended."""
        code = self._process.poll()
        if code is not None:
            how = f"with exit code {code}" if code >= 0 else f"by signal {-code}"
            raise self.error(f"ended {how}")

    def error(self, what: str) -> DemoError:
        """That something is wrong with this role, with the end of its log."""
        return DemoError(f"the demo's {self.name} {what}; its log ends:\n{self.tail()}")

    def tail(self) -> str:
        """The last lines of its log."""
        lines = self.log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        return "\n".join(f"  {line[:400]}" for line in lines) or "  (it said nothing)"

    def terminate(self) -> None:
        """Ask it to end."""
        if self._process.poll() is None:
            # As by Ctrl-C: nobody is routed to the demo's extender, so it need not linger.
            hurried = self.name == "extender"
            self._process.send_signal(signal.SIGINT if hurried else signal.SIGTERM)

    def wait(self, deadline: float) -> None:
        """Wait for its end; at `deadline` (of `time.monotonic`) it is killed."""
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def stop_all(roles: Sequence[Role]) -> None:
    """End all of them, together."""
    for role in roles:
        role.terminate()
    deadline = time.monotonic() + STOP_SECONDS
    for role in roles:
        role.wait(deadline)


def without_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what would overrule the demo's settings."""
    return {name: value for name, value in environ.items() if not name.startswith("SPRINGTIDE_")}
