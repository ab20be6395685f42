"""Node states as JSON documents: served by the extender at /v1/nodes, printed by `springtide top`.

Every field of a `NodeStateRecord` is in them, and what `NodeItem` adds. A field that is added to
either shows in the document, its OpenAPI schema and `top -o json`. Keys are stable: more may come,
none will be removed.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Final, Literal, NamedTuple, TypeVar

import msgspec
import numpy as np
from msgspec import Meta

from pipeline import API_VERSION
from pipeline.processors.arrays import FloatArray
from pipeline.processors.loadaware.node_thresholds import ANNOTATION, problem
from pipeline.processors.model.usage_anomalies import ANOMALIES
from pipeline.table.node_anomalies import anomalies_by_row, invalid_thresholds
from pipeline.table.node_names import RowArray
from pipeline.table.state_table import Table
from pipeline.times import format_time
from pipeline.topics.node_state import NodeStateRecord


class LimitsRatio(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of all pods on a node over its allocatable, as `kubectl describe node` has them in
    percent: above 1 the node is overcommitted. None where allocatable is unknown.

    cpu: Of CPU.
    memory: Of memory.
    """

    cpu: float | None = None
    memory: float | None = None


class NodeItem(NodeStateRecord, frozen=True, kw_only=True):
    """The state of a node, and what the table knows in addition.

    limits_ratio: Limits of all pods over allocatable; null without a table of pods.
    """

    age_seconds: Annotated[float | None, Meta(description="Since the end of the last window.")] = (
        None
    )
    stale: Annotated[bool, Meta(description="Whether that is too old to be judged.")] = True
    oddities: Annotated[
        list[str],
        Meta(
            description="Anomalies of its usage: "
            + "; ".join(f"{name}: {text}" for name, text in ANOMALIES.items())
        ),
    ] = msgspec.field(default_factory=list)
    limits_ratio: LimitsRatio | None = None
    usage_thresholds_problem: Annotated[
        str | None,
        Meta(
            description=f"What is wrong with its annotation {ANNOTATION}; where the annotation is "
            "invalid, the thresholds of the settings hold."
        ),
    ] = None


class NodeStateDocument(NodeItem, frozen=True, kw_only=True):
    """The state of one node as a document of its own."""

    apiVersion: str = API_VERSION
    kind: Literal["NodeState"] = "NodeState"


class NodeStateList(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes that have a state, by name.

    now: Time of the answer.
    items: States of the nodes.
    without_state: Known nodes that published no window.
    """

    apiVersion: str = API_VERSION
    kind: Literal["NodeStateList"] = "NodeStateList"
    now: str = ""
    items: list[NodeItem]
    without_state: list[str] = []


class NodeFacts(NamedTuple):
    """What is known of nodes besides their states, by node name: the ratio of limits, and what is
    wrong with invalid thresholds."""

    limits: Mapping[str, LimitsRatio]
    threshold_problems: Mapping[str, str]


NO_FACTS: Final = NodeFacts({}, {})
ItemT = TypeVar("ItemT", bound=NodeItem)


def node_facts(table: Table, names: Sequence[str], *, has_pods: bool = True) -> NodeFacts:
    """The facts of these nodes, from a table that has read nodes, and pods if it `has_pods`."""
    problems = {
        name: problem(annotation) or ""
        for name, annotation in invalid_thresholds(table, names).items()
    }
    return NodeFacts(limits_ratios(table, names) if has_pods else {}, problems)


def limits_over_allocatable(table: Table, rows: RowArray) -> dict[str, FloatArray]:
    """The ratio of limits by resource, (rows,); not finite where allocatable is unknown."""
    ratios = {}
    for resource, column, scale in (("cpu", "cpu_cores", 1000.0), ("memory", "memory_bytes", 1.0)):
        allocatable = table[f"allocatable_{column}"][rows] * scale
        limits = table.pods.sums_without_placed(f"limit:{resource}", rows)
        with np.errstate(all="ignore"):
            ratios[resource] = np.round(limits / allocatable, 4)
    return ratios


def limits_ratios(table: Table, names: Sequence[str]) -> dict[str, LimitsRatio]:
    """The ratio of limits of each node, from a table that has read the pods."""
    ratios = {
        resource: [value if math.isfinite(value) else None for value in quotients.tolist()]
        for resource, quotients in limits_over_allocatable(table, table.lookup(names)).items()
    }
    pairs = zip(ratios["cpu"], ratios["memory"], strict=True)
    return {
        name: LimitsRatio(cpu=cpu, memory=memory)
        for name, (cpu, memory) in zip(names, pairs, strict=True)
    }


def node_state_document(
    table: Table, name: str, now: float, stale_after_seconds: float, facts: NodeFacts
) -> NodeStateDocument | None:
    """The document of one node; None if it has no state."""
    return next(_items(NodeStateDocument, table, [name], now, stale_after_seconds, facts), None)


def node_list(
    table: Table, now: float, stale_after_seconds: float, facts: NodeFacts,
    names: Sequence[str] | None = None,
) -> NodeStateList:  # fmt: skip
    """The document of these nodes, or of all."""
    names = tuple(table) if names is None else names
    return NodeStateList(
        now=format_time(now),
        items=[*_items(NodeItem, table, names, now, stale_after_seconds, facts)],
        without_state=[name for name in names if table.snapshot(name).state is None],
    )


def _items(
    kind: type[ItemT],
    table: Table,
    names: Sequence[str],
    now: float,
    stale_after_seconds: float,
    facts: NodeFacts,
) -> Iterator[ItemT]:
    rows = table.lookup(names)
    ages = np.round(table.ages(rows, now), 3).tolist()
    fresh = table.fresh(rows, now, stale_after_seconds).tolist()
    anomalies = anomalies_by_row(table, rows, now, stale_after_seconds)
    for name, age, is_fresh, oddities in zip(names, ages, fresh, anomalies, strict=True):
        state = table.snapshot(name).state
        if state is not None:
            yield kind(
                **{field: getattr(state, field) for field in NodeStateRecord.__struct_fields__},
                age_seconds=age,
                stale=not is_fresh,
                oddities=oddities,
                limits_ratio=facts.limits.get(name),
                usage_thresholds_problem=facts.threshold_problems.get(name),
            )
