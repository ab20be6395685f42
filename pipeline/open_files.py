"""The limit of open files of this process."""

import resource
from contextlib import suppress
from typing import Final

_ENOUGH: Final = 65_536


def raise_file_limit() -> int:
    """Raise the soft limit of open files to the hard limit, at most to 65,536. Returns the limit.

    The usual soft limit of 1,024 is for programs that use select, which Springtide does not.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft == resource.RLIM_INFINITY:
        return _ENOUGH
    if soft < highest:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
