"""The user's folders, and taking turns in them: what is slow to get is got once."""

import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Say = Callable[[str], None]


def cache_root() -> Path:
    """Where everything of Springtide's is kept that can be got again."""
    return xdg("XDG_CACHE_HOME", ".cache") / "springtide"


def xdg(variable: str, below_home: str) -> Path:
    """The folder that the XDG rules give for this variable."""
    # They say that a relative path in it is to be ignored.
    base = Path(os.environ.get(variable, ""))
    return base if base.is_absolute() else Path.home() / below_home


@contextmanager
def in_turn(path: Path, say: Say, waiting: str) -> Iterator[None]:
    """Hold the lock of the file at `path`; says `waiting` where another process has it."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(waiting)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def on_stderr(text: str) -> None:
    """Say what goes on where it is not part of the output."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
