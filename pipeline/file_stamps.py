"""Notice that files changed."""

from collections.abc import Iterable
from pathlib import Path

FileStamps = tuple[tuple[int, int, int, int] | None, ...]
"""What tells the present state of files from others; None for a file that is not there."""


def file_stamps(files: Iterable[Path]) -> FileStamps:
    """The stamps of these files, which are other ones after any change."""
    return tuple(map(_stamp, files))


def _stamp(file: Path) -> tuple[int, int, int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    # The time of a modification may be kept, as by `cp -p`, or be that of another file, as when a
    # kubelet exchanges the symbolic link of a mounted Secret.
    return status.st_ctime_ns, status.st_dev, status.st_ino, status.st_size
