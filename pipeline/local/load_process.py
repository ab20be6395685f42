"""A process of the demo's workload, which uses only the standard library.

`python -I -S load_process.py KIND` uses CPU and memory according to its kind, until it is killed.
It is started in its cgroup, and the kernel kills it when its parent ends.
"""

import sys
import time
from collections.abc import Iterator

BATCH_CORES = 0.60

_PERIOD_SECONDS = 0.1
_PAGE = 4096
_MIB = 1 << 20


def _cpu_share(kind: str, second: float) -> float:
    """Return the share of a core that `kind` uses at this second."""
    if kind == "bursty":
        return 0.80 if second % 12 < 4 else 0.05
    return {"steady": 0.30, "batch": BATCH_CORES, "hungry": 0.02}.get(kind, 0.0)


def _allocations() -> Iterator[bytearray]:
    """Allocate 20 blocks of 15 MiB, and touch each page."""
    for _ in range(20):
        block = bytearray(15 * _MIB)
        block[::_PAGE] = b"x" * (len(block) // _PAGE)
        yield block


def _use_cpu(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(2000))


def main(kind: str) -> None:
    start = time.monotonic()
    allocated: list[bytearray] = []
    blocks = _allocations()
    while True:
        second = time.monotonic() - start
        if kind == "idle":
            time.sleep(60)
            continue
        _use_cpu(_cpu_share(kind, second) * _PERIOD_SECONDS)
        if kind == "hungry" and second > len(allocated):
            block = next(blocks, None)
            if block is None:
                start, blocks = time.monotonic(), _allocations()
                allocated.clear()
            else:
                allocated.append(block)
        time.sleep(max(0.0, _PERIOD_SECONDS - (time.monotonic() - start - second)))


if __name__ == "__main__":
    main(sys.argv[1])
