"""One kernel file, opened once and read again in place: half the system calls of opening it anew.

An open descriptor does not keep a cgroup alive: it can be removed, and the next read says so.
"""

import errno
import os
from typing import Final

from pipeline.errors import CgroupGoneError, KernelFileError

_FIRST_READ: Final = 4096
_ABSENT: Final = -2
_CLOSED: Final = -1

_GONE: Final = frozenset({errno.ENODEV, errno.ESTALE})
_NOT_OFFERED: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS})


class KernelFile:
    """The file at `path`, opened at the first read and kept open until `close()`."""

    __slots__ = ("_fd", "_size", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = _CLOSED
        self._size = _FIRST_READ

    def read(self) -> bytes | None:
        """The whole content; None where the kernel does not offer the file, until `close()`.

        Raises `CgroupGoneError` if its directory has gone, `KernelFileError` if it cannot be read.
        """
        if self._fd < 0 and not self._open():
            return None
        try:
            data = os.pread(self._fd, self._size, 0)
            while len(data) == self._size:
                self._size *= 2
                data = os.pread(self._fd, self._size, 0)
        except OSError as error:
            self._failed(error)
            return None
        return data

    def close(self) -> None:
        """Give the descriptor back; a later read opens the file again, if it is there by then."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = _CLOSED

    def _open(self) -> bool:
        if self._fd == _ABSENT:
            return False
        try:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            if not os.path.isdir(os.path.dirname(self.path)):
                raise CgroupGoneError("the directory has gone", path=self.path) from None
            self._fd = _ABSENT
            return False
        except OSError as error:
            self._failed(error)
            return False
        return True

    def _failed(self, error: OSError) -> None:
        if error.errno in _GONE:
            raise CgroupGoneError("the cgroup was removed", path=self.path) from error
        if error.errno in _NOT_OFFERED:
            self.close()
            self._fd = _ABSENT
            return
        raise KernelFileError(
            error.strerror or "cannot be read", path=self.path, hint=_hint(error)
        ) from error


def read_table(path: str) -> bytes | None:
    """A file of many records (/proc/net/dev, /proc/diskstats), read to its end; None if absent.

    The kernel hands such files out page by page, so that one read is not all of it.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            return file.readall()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno in _NOT_OFFERED:
            return None
        raise KernelFileError(
            error.strerror or "cannot be read", path=path, hint=_hint(error)
        ) from error


def _hint(error: OSError) -> str | None:
    match error.errno:
        case errno.EACCES | errno.EPERM:
            return "run as root, or give this user read access"
        case errno.EMFILE | errno.ENFILE:
            return "raise the limit of open files (ulimit -n)"
        case _:
            return None
