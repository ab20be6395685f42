"""System usage of one moment: node minus pods minus host applications, at least 0.

It is computed every second instead of from the averages of a window: percentiles are not additive,
and the average of a pod that lives for a part of the window covers that part only.
"""

from collections.abc import Sequence
from typing import NamedTuple

from node_exporter.collection import SYSTEM, Usage
from node_exporter.kernel import formulas


class Latest(NamedTuple):
    """The newest usage of an entity; it bridges failed readings."""

    at: float
    """Monotonic seconds."""
    usage: Usage


def system_usage(
    node: Latest | None, parts: Sequence[Latest | None], oldest: float
) -> Usage | None:
    """Usage of the node minus `parts`, for the time between the node's last two readings.

    A value is None if it is unknown for the node or for any part. The result is None if all values
    are unknown, or if a part was never read or last read before `oldest` (monotonic seconds).
    """
    fresh = [part.usage for part in parts if part is not None and part.at >= oldest]
    if node is None or node.at < oldest or len(fresh) < len(parts):
        return None
    total = node.usage
    columns = zip(_values(total), *map(_values, fresh), strict=True)
    cores, memory, cached, hot = (_remainder(*values) for values in columns)
    if cores is memory is cached is hot is None:
        return None
    elapsed = total.elapsed_seconds
    cpu_ns = None if cores is None or elapsed is None else round(cores * elapsed * 1e9)
    return Usage(SYSTEM, cpu_ns, elapsed, _to_int(memory), _to_int(cached), _to_int(hot))


def _values(usage: Usage) -> tuple[float | None, ...]:
    return (
        usage.cpu_cores,
        usage.memory_bytes,
        usage.memory_with_page_cache_bytes,
        usage.memory_with_hot_page_cache_bytes,
    )


def _remainder(node: float | None, *parts: float | None) -> float | None:
    known = [value for value in parts if value is not None]
    if node is None or len(known) < len(parts):
        return None
    return formulas.system_usage(node, known, ())


def _to_int(value: float | None) -> int | None:
    return None if value is None else int(value)
