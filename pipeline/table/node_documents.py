"""The table as a JSON document for people and scripts: served by the extender, printed by `top`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from pipeline import API_VERSION
from pipeline.processors.loadaware.node_thresholds import problem
from pipeline.table.node_anomalies import odd_by_row, unusable_thresholds
from pipeline.table.state_table import Table
from pipeline.times import format_time


class LimitsRatio(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of all pods on a node over its allocatable, as `kubectl describe node` has them in
    percent: above 1 more is promised than there is. None where allocatable is not known."""

    cpu: float | None = None
    memory: float | None = None


class Beside(NamedTuple):
    """What the states of nodes do not tell of them, by their names: how far limits go, where pods
    are read, and what is wrong with thresholds that cannot be used."""

    limits: Mapping[str, LimitsRatio]
    threshold_problems: Mapping[str, str]


NOTHING_BESIDE: Final = Beside({}, {})


def beside(table: Table, names: Sequence[str], *, has_pods: bool = True) -> Beside:
    """Of each of these nodes, by a table that has read nodes, and pods if it `has_pods`."""
    problems = {
        name: problem(annotation) or ""
        for name, annotation in unusable_thresholds(table, names).items()
    }
    return Beside(limits_ratios(table, names) if has_pods else {}, problems)


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
    beside: Beside,
) -> dict[str, Any] | None:
    """The node's state with its age, what is odd about it and what is known beside it; None if it
    has no state."""
    return next(_items(table, [name], now, stale_after_seconds, beside), None)


def _items(
    table: Table,
    names: Sequence[str],
    now: float,
    stale_after_seconds: float,
    beside: Beside,
) -> Iterator[dict[str, Any]]:
    rows = table.lookup(names)
    ages = np.round(table.ages(rows, now), 3).tolist()
    fresh = table.fresh(rows, now, stale_after_seconds).tolist()
    odd = odd_by_row(table, rows, now, stale_after_seconds)
    for name, age, is_fresh, oddities in zip(names, ages, fresh, odd, strict=True):
        state = table.snapshot(name).state
        if state is not None:
            yield {
                **{field: getattr(state, field) for field in state.__struct_fields__},
                "age_seconds": age,
                "stale": not is_fresh,
                "oddities": oddities,
                "limits_ratio": beside.limits.get(name),
                "usage_thresholds_problem": beside.threshold_problems.get(name),
            }


def node_list(
    table: Table, now: float, stale_after_seconds: float, beside: Beside
) -> dict[str, Any]:
    """All nodes that have a state, by name, and the names of those that are known and have none.
    Keys are stable: more may come, none will go."""
    names = tuple(table)
    return {
        "apiVersion": API_VERSION,
        "kind": "NodeStateList",
        "now": format_time(now),
        "items": [*_items(table, names, now, stale_after_seconds, beside)],
        "without_state": [name for name in names if table.snapshot(name).state is None],
    }
