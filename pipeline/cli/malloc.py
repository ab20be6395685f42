"""How glibc's malloc treats freed memory. Without glibc these functions do nothing, and what the
environment sets (`MALLOC_*`, `GLIBC_TUNABLES`) stays."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from typing import Final

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_LARGE_BYTES: Final = 1 << 20
_VERY_LARGE_BYTES: Final = 32 << 20
_MOST_KEPT_BYTES: Final = 1 << 30


def return_freed_memory() -> None:
    """Make all threads of this process allocate from one heap, and large blocks outside of it.

    With a heap per thread, memory that a worker's consumer allocates for messages and the models
    free would stay with the consumer, a tenth of the process. In a heap, records of megabytes leave
    holes between what stays, which is never returned. It has no effect on existing heaps, so call
    it before an import starts threads.
    """
    _set(_M_ARENA_MAX, "arena_max", 1)
    _set(_M_MMAP_THRESHOLD, "mmap_threshold", _LARGE_BYTES)


def keep_freed_memory() -> None:
    """Use freed memory again in place of returning it, in a command that computes and ends, but for
    blocks so large that they would leave holes.

    The kernel clears each page that it hands out anew, which took a third of the processor time of
    a backtest.
    """
    _set(_M_MMAP_THRESHOLD, "mmap_threshold", _VERY_LARGE_BYTES)
    _set(_M_TRIM_THRESHOLD, "trim_threshold", _MOST_KEPT_BYTES)


def _set(parameter: int, tunable: str, value: int) -> None:
    # glibc's names end with "_" where they are not of arenas.
    variables = {f"MALLOC_{tunable.upper()}", f"MALLOC_{tunable.upper()}_"}
    if not variables & os.environ.keys() and tunable not in os.environ.get("GLIBC_TUNABLES", ""):
        with suppress(AttributeError):
            ctypes.CDLL(None).mallopt(parameter, value)
