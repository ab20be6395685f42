"""Run a role of a chaos run: `role_entry CLOCK-FILE BUGS role flags...`.

Its wall clock is ahead by the seconds in the file. A machine has one clock, and this process may
not set it: the step is in Python's `time.time`, of all libraries, too. Kafka's and the API server's
clocks, and monotonic time, are not stepped. A provider may use the sample source `chaos`. BUGS are
names of `seeded_bugs`, separated by commas.
"""

import sys
import time
from importlib.metadata import EntryPoint
from pathlib import Path

_CHECKED_SECONDS = 0.5


class SteppedTime:
    """Wall-clock time plus the number in a file, which is read twice a second."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._read_at = 0.0
        self._step_ns = 0
        self._time_ns = time.time_ns

    def time_ns(self) -> int:
        if time.monotonic() > self._read_at + _CHECKED_SECONDS:
            self._read_at = time.monotonic()
            text = self._file.read_text() if self._file.exists() else ""
            self._step_ns = int(float(text or 0.0) * 1e9)
        return self._time_ns() + self._step_ns

    def time(self) -> float:
        return self.time_ns() / 1e9


def main() -> None:
    """Replace the wall clock before anything imports it, and run the command line."""
    stepped = SteppedTime(Path(sys.argv.pop(1)))
    time.time, time.time_ns = stepped.time, stepped.time_ns
    bugs = sys.argv.pop(1)
    from pipeline.cli.main import main as springtide

    if "provider" in sys.argv:
        from pipeline.sources.provider.registry import SOURCES

        source = EntryPoint("chaos", "tests.chaos.provided_usage:SOURCE", SOURCES.group)
        SOURCES.points = {**SOURCES.points, source.name: [source]}
    for bug in filter(None, bugs.split(",")):
        from tests.chaos.seeded_bugs import BUGS

        BUGS[bug]()
    springtide()


if __name__ == "__main__":
    main()
