"""Run a role whose wall clock is ahead by the seconds in a file: `role_entry FILE role flags...`.

A machine has one clock, and this process may not set it: the step is in `SystemClock.now`, which
every role uses. Kafka's and the API server's clocks, and monotonic time, are not stepped.
"""

import sys
import time
from pathlib import Path

from pipeline.clock import SystemClock

_CHECKED_SECONDS = 0.5


class SteppedTime:
    """Wall-clock time plus the number in a file, which is read twice a second."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._read_at = 0.0
        self._step = 0.0

    def now(self) -> float:
        if time.monotonic() > self._read_at + _CHECKED_SECONDS:
            self._read_at = time.monotonic()
            text = self._file.read_text() if self._file.exists() else ""
            self._step = float(text or 0.0)
        return time.time() + self._step


def main() -> None:
    """Replace the wall clock, and run the command line."""
    from pipeline.cli.main import main as springtide

    stepped = SteppedTime(Path(sys.argv.pop(1)))
    SystemClock.now = lambda self: stepped.now()  # type: ignore[method-assign]
    springtide()


if __name__ == "__main__":
    main()
