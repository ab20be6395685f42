"""Two readings of counters into what they have grown by; pure.

None is unknown: a reading is missing, too old, or a counter went backwards.
"""

from collections.abc import Callable

from node_exporter.collection import Stall
from node_exporter.kernel.cgroup import PRESSURE_RESOURCES
from node_exporter.kernel.parse_files import Pressure, Throttling, Traffic


def growth(now: Throttling | None, previous: Throttling | None) -> Throttling | None:
    """What the counters have grown by; None if that is not known, or if one went backwards."""
    if now is None or previous is None:
        return None
    grown = Throttling(*(a - b for a, b in zip(now, previous, strict=True)))
    return grown if min(grown) >= 0 else None


def moved(now: Traffic | None, previous: Traffic | None) -> Traffic | None:
    """Bytes moved between two readings; None if that is not known, or if one went backwards."""
    if now is None or previous is None:
        return None
    grown = Traffic(now.in_bytes - previous.in_bytes, now.out_bytes - previous.out_bytes)
    return grown if min(grown) >= 0 else None


def all_pressure(read: Callable[..., Pressure | None]) -> tuple[Pressure, ...] | None:
    """Stall times of CPU, memory and IO; None where one of them is not offered."""
    found = tuple(p for resource in PRESSURE_RESOURCES if (p := read(resource)) is not None)
    return found if len(found) == len(PRESSURE_RESOURCES) else None


def stalled(
    at: float,
    now: tuple[Pressure, ...] | None,
    before: tuple[float, tuple[Pressure, ...]] | None,
    forget_seconds: float,
) -> tuple[Stall | None, tuple[float, tuple[Pressure, ...]] | None]:
    """(stalled since `before`, what to remember); not known after more than `forget_seconds`."""
    if now is None:
        return None, None
    if before is None or not 0 < at - before[0] <= forget_seconds:
        return None, (at, now)
    (cpu, memory, io), (cpu0, memory0, io0) = now, before[1]
    stall = Stall(
        at - before[0],
        cpu.some.total_us - cpu0.some.total_us,
        memory.some.total_us - memory0.some.total_us,
        _full(memory, memory0),
        io.some.total_us - io0.some.total_us,
        _full(io, io0),
    )
    backwards = any(value is not None and value < 0 for value in stall)
    return None if backwards else stall, (at, now)


def _full(now: Pressure, before: Pressure) -> int | None:
    if now.full is None or before.full is None:
        return None
    return now.full.total_us - before.full.total_us
