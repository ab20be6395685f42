"""The policy in force, as the records of nodes carry it, and its warnings as one JSON document."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from pipeline import API_VERSION
from pipeline.processors.console import limits
from pipeline.processors.console.encoded_document import pool_of
from pipeline.processors.loadaware.node_thresholds import ANNOTATION
from pipeline.processors.loadaware.node_thresholds import problem as thresholds_problem
from pipeline.processors.policy.node_annotations import with_valid_annotations
from pipeline.topics.nodes import KnownNode, NodeRecord, NodeStrategy

_OF_WINDOWS: Final = "mean_percent"
"""The key of a hot-node policy that windows carry, and records of nodes do not."""

Values = dict[str, Any]


class PolicyInForce(msgspec.Struct, frozen=True, kw_only=True):
    """A policy, and how many nodes have it.

    nodes: Nodes with this policy.
    overcommit: The policy of Mid and Batch; null: neither is offered. A threshold of null is no
      limit.
    strategy: Overrides of how nodes are measured and predicted; null: the worker's settings hold.
    hot_nodes: The thresholds above which a node counts as hot; null: nothing is detected.
    """

    nodes: int
    overcommit: Values | None
    strategy: Values | None
    hot_nodes: Values | None


class PolicyWarning(msgspec.Struct, frozen=True, kw_only=True):
    """A warning about the policy.

    text: What is wrong.
    nodes: How many nodes it is about; null: about the extender.
    first_nodes: The first of them by name.
    """

    text: str
    nodes: int | None
    first_nodes: list[str]


class PolicyReport(msgspec.Struct, frozen=True, kw_only=True):
    """The policy in force, resolved per node.

    mode: Mode of the extender: `observe` or `act`.
    cpu_threshold_percent: Usage of CPU above which the extender refuses a node; null: it does not
      refuse for CPU.
    memory_threshold_percent: The same of memory.
    policies: The different policies, those of most nodes first.
    name: Name of each node.
    pool: Its node pool.
    policy: Index of its policy; null if it has no record, so that its policy is unknown, or if
      its policy is not among the listed ones.
    warnings: What is wrong with the policy, as far as records of nodes show it.
    """

    apiVersion: str = API_VERSION  # noqa: N815
    kind: Literal["PolicyReport"] = "PolicyReport"
    mode: str
    cpu_threshold_percent: float | None
    memory_threshold_percent: float | None
    policies: list[PolicyInForce]
    name: list[str]
    pool: list[str]
    policy: list[int | None]
    warnings: list[PolicyWarning]


class NodePolicy(NamedTuple):
    """A node, its record (None: unknown), the predictor that decided in its last window, and those
    that ran in it (empty: unknown)."""

    name: str
    record: KnownNode | None
    predictor: str
    predictors: Collection[str]


class ExtenderPolicy(NamedTuple):
    """What the settings of the extender say; thresholds of usage in percent by resource, and notes
    about its plugins."""

    mode: str
    thresholds: Mapping[str, float]
    notes: Sequence[str] = ()


def policy_report(nodes: Iterable[NodePolicy], extender: ExtenderPolicy) -> PolicyReport:
    """The document of these nodes, in any order."""
    ordered = sorted(nodes, key=lambda node: node.name)
    keys = [_key(node.record) for node in ordered]
    counts: dict[bytes, int] = defaultdict(int)
    for key in keys:
        if key is not None:
            counts[key] += 1
    listed = sorted(counts, key=lambda key: (-counts[key], key))[: limits.POLICIES]
    index_of = {key: index for index, key in enumerate(listed)}
    return PolicyReport(
        mode=extender.mode,
        cpu_threshold_percent=extender.thresholds.get("cpu") or None,
        memory_threshold_percent=extender.thresholds.get("memory") or None,
        policies=[PolicyInForce(nodes=counts[key], **msgspec.json.decode(key)) for key in listed],
        name=[node.name for node in ordered],
        pool=[pool_of(node.record.hot_nodes if node.record else None) for node in ordered],
        policy=[None if key is None else index_of.get(key) for key in keys],
        warnings=[*_warnings(ordered, extender)][: limits.WARNINGS],
    )


def _key(record: KnownNode | None) -> bytes | None:
    """The policy of a node as JSON, equal for equal policies."""
    if record is None:
        return None
    hot_nodes = record.hot_nodes
    policy = {
        "overcommit": _values(record.overcommit),
        "strategy": _overrides(record.strategy),
        "hot_nodes": None if hot_nodes is None else _values(hot_nodes, without=_OF_WINDOWS),
    }
    return msgspec.json.encode(policy, order="deterministic")


def _values(policy: msgspec.Struct | None, without: str = "") -> Values | None:
    """Every value of a policy, also those that are the default."""
    if policy is None:
        return None
    return {name: value for name, value in _fields(policy) if name != without}


def _overrides(strategy: NodeStrategy | None) -> Values | None:
    if strategy is None:
        return None
    return {name: value for name, value in _fields(strategy) if value is not None}


def _fields(policy: msgspec.Struct) -> Iterator[tuple[str, Any]]:
    return ((name, getattr(policy, name)) for name in policy.__struct_fields__)


def _warnings(nodes: Sequence[NodePolicy], extender: ExtenderPolicy) -> Iterator[PolicyWarning]:
    for note in extender.notes:
        yield PolicyWarning(text=note, nodes=None, first_nodes=[])
    named: dict[str, list[str]] = defaultdict(list)
    for node in nodes:
        for text in _node_warnings(node, extender.thresholds):
            named[text[: limits.TEXT_CHARACTERS]].append(node.name)
    for text in sorted(named, key=lambda text: (-len(named[text]), text)):
        names = named[text]
        yield PolicyWarning(text=text, nodes=len(names), first_nodes=names[: limits.NAMED_NODES])


def _node_warnings(node: NodePolicy, thresholds: Mapping[str, float]) -> Iterator[str]:
    record = node.record
    if record is None:
        yield "no record of the node, so its policy is unknown: is a watcher running?"
        return
    if record.annotations:
        if text := thresholds_problem(record.annotations.get(ANNOTATION)):
            yield text
        own = NodeRecord(node=record.node, annotations=record.annotations)
        for problem in with_valid_annotations(own, NodeRecord(node=record.node))[1]:
            yield str(problem)
    wanted = None if record.strategy is None else record.strategy.predictor
    if wanted is not None and node.predictors and wanted not in node.predictors:
        yield (
            f"the policy names the predictor {wanted}, which does not run: {node.predictor} "
            "decides (model.predictors of the worker)"
        )
    yield from _filled_and_hot(record, thresholds)


def _filled_and_hot(record: KnownNode, thresholds: Mapping[str, float]) -> Iterator[str]:
    """Where the scheduler fills a node beyond what makes it hot."""
    policy = record.hot_nodes
    if policy is None or policy.use_deviation_thresholds or policy.usage == "peak":
        return
    for resource, high in policy.high_percent.items():
        filled = thresholds.get(resource, 0.0)
        if filled > high:
            yield (
                f"the extender lets {resource} of a node be filled to {filled:g}%, but above "
                f"{high:g}% it is hot, and pods are evicted again"
            )
