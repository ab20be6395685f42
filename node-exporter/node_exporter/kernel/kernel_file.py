"""Read kernel files through descriptors that stay open.

Reading in place takes half the system calls of opening the file again. An open descriptor does not
keep a cgroup alive: after the removal the next read raises `CgroupGoneError`.
"""

import errno
import os
from collections.abc import Callable
from typing import Any, Final, TypeVar

from pipeline.errors import CgroupGoneError, KernelFileError

ValueT = TypeVar("ValueT")

_INITIAL_BYTES: Final = 4096
_ABSENT: Final = -2
_CLOSED: Final = -1

_GONE: Final = frozenset({errno.ENODEV, errno.ESTALE})
_NOT_OFFERED: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS})


class KernelFile:
    """The file at `path`, open from the first read until `close()`."""

    __slots__ = ("_fd", "_parsed", "_size", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = _CLOSED
        self._size = _INITIAL_BYTES
        self._parsed: tuple[bytes, Callable[..., Any], Any] | None = None

    def read(self) -> bytes | None:
        """Read the whole file; None, until the next `close()`, if the kernel does not offer it.

        Raises `CgroupGoneError` if its directory was removed, `KernelFileError` if reading fails.
        """
        if self._fd < 0 and not self._open():
            return None
        try:
            data = os.pread(self._fd, self._size, 0)
            while len(data) == self._size:
                self._size *= 2
                data = os.pread(self._fd, self._size, 0)
        except OSError as error:
            self._raise_unless_unsupported(error)
            return None
        return data

    def parsed(self, parse: Callable[[bytes, str], ValueT]) -> ValueT | None:
        """Read the file and parse it, given its path; None and errors as of `read`."""
        data = self.read()
        if data is None:
            return None
        # Most files of an idle pod do not change from one second to the next.
        if (last := self._parsed) is not None and last[0] == data and last[1] is parse:
            unchanged: ValueT = last[2]
            return unchanged
        value = parse(data, self.path)
        self._parsed = data, parse, value
        return value

    def close(self) -> None:
        """Close the descriptor; the next read tries to open the file again."""
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
                raise CgroupGoneError("the directory was removed", path=self.path) from None
            self._fd = _ABSENT
            return False
        except OSError as error:
            self._raise_unless_unsupported(error)
            return False
        return True

    def _raise_unless_unsupported(self, error: OSError) -> None:
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
    """Read a file of many records (/proc/net/dev, /proc/diskstats) to its end; None if absent.

    The kernel returns such files page by page: a single read is not enough.
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
