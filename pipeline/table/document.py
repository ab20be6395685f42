"""The table as a JSON document for people and scripts: served by the extender, printed by `top`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from pipeline.clock import format_time
from pipeline.table.table import Table

API_VERSION = "springtide/v1"

NOT_ASKED: Final[Mapping[str, "LimitsRatio"]] = {}
"""Where the pods are not read nothing is known of their limits."""


class LimitsRatio(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of all pods on a node over its allocatable, as `kubectl describe node` has them in
    percent: above 1 more is promised than there is. None where allocatable is not known."""

    cpu: float | None = None
    memory: float | None = None


def limits_ratios(table: Table, names: Sequence[str]) -> dict[str, LimitsRatio]:
    """Of each of these nodes, by a table that has read the pods."""
    rows, found = table.lookup(names), {}
    for resource, column, scale in (("cpu", "cpu_cores", 1000.0), ("memory", "memory_bytes", 1.0)):
        have = table[f"allocatable_{column}"][rows] * scale
        with np.errstate(all="ignore"):
            ratios = np.round(table.pods.seen(f"limit:{resource}", rows) / have, 4)
        found[resource] = [ratio if np.isfinite(ratio) else None for ratio in ratios.tolist()]
    pairs = zip(found["cpu"], found["memory"], strict=True)
    return {
        name: LimitsRatio(cpu=cpu, memory=memory)
        for name, (cpu, memory) in zip(names, pairs, strict=True)
    }


def node_item(
    table: Table,
    name: str,
    now: float,
    stale_after_seconds: float,
    limits: Mapping[str, LimitsRatio],
) -> dict[str, Any] | None:
    """The node's state with `age_seconds`, `stale` and `limits_ratio`; None if it has no state."""
    return next(_items(table, [name], now, stale_after_seconds, limits), None)


def _items(
    table: Table,
    names: Sequence[str],
    now: float,
    stale_after_seconds: float,
    limits: Mapping[str, LimitsRatio],
) -> Iterator[dict[str, Any]]:
    rows = table.lookup(names)
    ages = np.round(table.ages(rows, now), 3).tolist()
    fresh = table.fresh(rows, now, stale_after_seconds).tolist()
    for name, age, is_fresh in zip(names, ages, fresh, strict=True):
        state = table.snapshot(name).state
        if state is not None:
            yield {
                **{field: getattr(state, field) for field in state.__struct_fields__},
                "age_seconds": age,
                "stale": not is_fresh,
                "limits_ratio": limits.get(name),
            }


def node_list(
    table: Table, now: float, stale_after_seconds: float, limits: Mapping[str, LimitsRatio]
) -> dict[str, Any]:
    """All nodes that have a state, by name, and the names of those that are known and have none.
    Keys are stable: more may come, none will go."""
    names = tuple(table)
    return {
        "apiVersion": API_VERSION,
        "kind": "NodeStateList",
        "now": format_time(now),
        "items": [*_items(table, names, now, stale_after_seconds, limits)],
        "without_state": [name for name in names if table.snapshot(name).state is None],
    }
