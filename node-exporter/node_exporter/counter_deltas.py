"""Compute the growth of counters between two readings.

None is unknown: a reading is missing or too old, or a counter went backwards.
"""

import operator
from collections.abc import Callable
from typing import TypeVar

from node_exporter.collection import Stall
from node_exporter.kernel.cgroup import PRESSURE_RESOURCES
from node_exporter.kernel.parse_files import Pressure, Throttling, Traffic

CountersT = TypeVar("CountersT", Throttling, Traffic)

PressureReading = tuple[float, tuple[Pressure, ...]]
"""Monotonic seconds, and the pressure of CPU, memory and IO."""


def growth(now: CountersT | None, previous: CountersT | None) -> CountersT | None:
    """Growth of each counter; None if it is unknown or a counter went backwards."""
    if now is None or previous is None:
        return None
    delta = type(now)(*map(operator.sub, now, previous))
    return delta if min(delta) >= 0 else None


def all_pressure(read: Callable[..., Pressure | None]) -> tuple[Pressure, ...] | None:
    """Stall times of CPU, memory and IO; None unless the kernel offers all three."""
    pressures = tuple(p for resource in PRESSURE_RESOURCES if (p := read(resource)) is not None)
    return pressures if len(pressures) == len(PRESSURE_RESOURCES) else None


def stall_growth(
    monotonic: float,
    now: tuple[Pressure, ...] | None,
    previous: PressureReading | None,
    max_age_seconds: float,
) -> tuple[Stall | None, PressureReading | None]:
    """(stalled time since `previous`, reading for the next call).

    The stalled time is unknown if `previous` is older than `max_age_seconds`.
    """
    if now is None:
        return None, None
    if previous is None or not 0 < monotonic - previous[0] <= max_age_seconds:
        return None, (monotonic, now)
    (cpu, memory, io), (cpu0, memory0, io0) = now, previous[1]
    stall = Stall(
        monotonic - previous[0],
        cpu.some.total_us - cpu0.some.total_us,
        memory.some.total_us - memory0.some.total_us,
        _full_growth(memory, memory0),
        io.some.total_us - io0.some.total_us,
        _full_growth(io, io0),
    )
    backwards = any(value is not None and value < 0 for value in stall)
    return None if backwards else stall, (monotonic, now)


def _full_growth(now: Pressure, previous: Pressure) -> int | None:
    if now.full is None or previous.full is None:
        return None
    return now.full.total_us - previous.full.total_us
