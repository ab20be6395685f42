"""The switch of a node: while a file exists, the node neither asks for evictions nor kills."""

from pathlib import Path
from typing import Final

STOP_FILE: Final = Path("/run/springtide/stop-evictions")


def is_stopped(path: Path) -> bool:
    """Whether the file exists, or this cannot be known."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True
