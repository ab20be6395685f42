"""One process of the demo's workload; a script with nothing but the standard library.

`python -I -S load.py KIND` uses CPU and memory as its kind says, for ever. It is started inside
its cgroup and dies with its parent, which has asked the kernel for that.
"""

import sys
import time
from collections.abc import Iterator

_PERIOD_SECONDS = 0.1
_PAGE = 4096
_MIB = 1 << 20


def _share(kind: str, second: float) -> float:
    """The share of a core that `kind` wants at this second of its life."""
    match kind:
        case "steady":
            return 0.30
        case "bursty":
            return 0.80 if second % 12 < 4 else 0.05
        case "batch":
            return 0.20
        case "hungry":
            return 0.02
    return 0.0


def _hoard(steps: int = 20, mebibytes: int = 15) -> Iterator[bytearray]:
    """Twenty times 15 MiB, touched page by page."""
    for _ in range(steps):
        block = bytearray(mebibytes * _MIB)
        block[::_PAGE] = b"x" * (len(block) // _PAGE)
        yield block


def _use_cpu(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(2000))


def main(kind: str) -> None:
    began = time.monotonic()
    held: list[bytearray] = []
    blocks = _hoard()
    while True:
        second = time.monotonic() - began
        if kind == "idle":
            time.sleep(60)
            continue
        _use_cpu(_share(kind, second) * _PERIOD_SECONDS)
        if kind == "hungry" and second > len(held):
            block = next(blocks, None)
            if block is None:
                began, blocks = time.monotonic(), _hoard()
                held.clear()
            else:
                held.append(block)
        time.sleep(max(0.0, _PERIOD_SECONDS - (time.monotonic() - began - second)))


if __name__ == "__main__":
    main(sys.argv[1])
