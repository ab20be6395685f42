"""The system remainder of one moment: node minus pods minus host applications, never below 0.

Taken each second and not of the averages of a window: percentiles do not add, and a pod that lives
for a part of the window has an average of that part alone.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from node_exporter.collection import SYSTEM, Usage
from node_exporter.kernel import formulas


class Latest(NamedTuple):
    """The newest usage of an entity, which bridges a reading that fails."""

    at: float
    """Monotonic seconds."""
    usage: Usage


def system_usage(
    node: Latest | None, parts: Sequence[Latest | None], oldest: float
) -> Usage | None:
    """What the node has used beyond `parts` since its own reading before.

    A figure is unknown where that of a part is. None where all are: something was never read, or
    for the last time before `oldest` (monotonic seconds).
    """
    fresh = [part.usage for part in parts if part is not None and part.at >= oldest]
    if node is None or node.at < oldest or len(fresh) < len(parts):
        return None
    whole = node.usage
    cores = _rest(whole, fresh, lambda usage: usage.cpu_cores)
    memory = _rest(whole, fresh, lambda usage: usage.memory_bytes)
    cached = _rest(whole, fresh, lambda usage: usage.memory_with_page_cache_bytes)
    hot = _rest(whole, fresh, lambda usage: usage.memory_with_hot_page_cache_bytes)
    if cores is memory is cached is hot is None:
        return None
    elapsed = whole.elapsed_seconds
    cpu_ns = None if cores is None or elapsed is None else round(cores * elapsed * 1e9)
    return Usage(SYSTEM, cpu_ns, elapsed, _whole(memory), _whole(cached), _whole(hot))


def _rest(
    node: Usage, parts: Sequence[Usage], figure: Callable[[Usage], float | None]
) -> float | None:
    known = [value for part in parts if (value := figure(part)) is not None]
    total = figure(node)
    if total is None or len(known) < len(parts):
        return None
    return formulas.system_usage(total, known, ())


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
