"""The user's XDG directories, and file locks for downloads and builds in them."""

import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Report = Callable[[str], None]


def cache_root() -> Path:
    """Return the directory for everything that can be downloaded or built again."""
    return xdg_directory("XDG_CACHE_HOME", ".cache") / "springtide"


def state_root() -> Path:
    """Return the directory for files that are written again if they are deleted."""
    return xdg_directory("XDG_STATE_HOME", ".local/state") / "springtide"


def xdg_directory(variable: str, below_home: str) -> Path:
    """Return the XDG base directory of this variable."""
    # The specification ignores relative paths.
    base = Path(os.environ.get(variable, ""))
    return base if base.is_absolute() else Path.home() / below_home


@contextmanager
def file_lock(path: Path, report: Report, waiting: str) -> Iterator[None]:
    """Lock the file at `path`; report `waiting` if another process holds the lock."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(waiting)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def print_to_stderr(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
