"""The policy in force, as the records of nodes carry it, and its warnings as one JSON document."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from pipeline import API_VERSION
from pipeline.processors.console import limits
from pipeline.processors.console.encoded_document import pool_of
from pipeline.processors.loadaware.loadaware_args import LoadAwareArgs
from pipeline.processors.loadaware.node_thresholds import ANNOTATION, USAGE, Limits, select_limits
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
    cpu_threshold_percent: Usage of CPU above which the extender refuses a node, unless an
      annotation of the node says otherwise; null: it does not refuse for CPU.
    memory_threshold_percent: The same of memory.
    threshold_statistic: The statistic of usage that is compared with these, such as p95; empty:
      usage of the last window.
    prod_threshold_percent: Usage of Prod's pods by resource above which the extender refuses a node
      to a Prod pod instead; empty: Prod pods are judged as others.
    policies: The different policies, those of most nodes first.
    more_policies: How many further ones are not listed.
    name: Name of each node.
    pool: Its node pool.
    policy: Index of its policy, also of one that is not listed; null if it has no record, so that
      its policy is unknown.
    warnings: What is wrong with the policy, as far as records of nodes show it, first what is about
      most nodes.
    more_warnings: How many further ones are not listed.
    """

    apiVersion: str = API_VERSION
    kind: Literal["PolicyReport"] = "PolicyReport"
    mode: str
    cpu_threshold_percent: float | None
    memory_threshold_percent: float | None
    threshold_statistic: str
    prod_threshold_percent: dict[str, float]
    policies: list[PolicyInForce]
    more_policies: int
    name: list[str]
    pool: list[str]
    policy: list[int | None]
    warnings: list[PolicyWarning]
    more_warnings: int


class NodePolicy(NamedTuple):
    """A node, its record (None: unknown), the predictor that decided in its last window, and those
    that ran in it (empty: unknown)."""

    name: str
    record: KnownNode | None
    predictor: str
    predictors: Collection[str]


class ExtenderPolicy(NamedTuple):
    """What the settings of the extender say: the arguments of its filter by usage (None: there is
    none), and notes about its plugins."""

    mode: str
    load_aware: LoadAwareArgs | None
    notes: Sequence[str] = ()


def policy_report(nodes: Iterable[NodePolicy], extender: ExtenderPolicy) -> PolicyReport:
    """The document of these nodes, in any order."""
    ordered = sorted(nodes, key=lambda node: node.name)
    keys = [_key(node.record) for node in ordered]
    counts: dict[bytes, int] = defaultdict(int)
    for key in keys:
        if key is not None:
            counts[key] += 1
    different = sorted(counts, key=lambda key: (-counts[key], key))
    index_of = {key: index for index, key in enumerate(different)}
    listed, warnings = different[: limits.POLICIES], [*_warnings(ordered, extender)]
    load_aware = extender.load_aware or LoadAwareArgs()
    thresholds = select_limits(load_aware, None, is_prod=False)
    return PolicyReport(
        mode=extender.mode,
        cpu_threshold_percent=thresholds.thresholds.get("cpu") or None,
        memory_threshold_percent=thresholds.thresholds.get("memory") or None,
        threshold_statistic=thresholds.statistic,
        prod_threshold_percent={
            name: float(percent)
            for name, percent in sorted(load_aware.prod_usage_thresholds.items())
            if percent
        },
        policies=[PolicyInForce(nodes=counts[key], **msgspec.json.decode(key)) for key in listed],
        more_policies=len(different) - len(listed),
        name=[node.name for node in ordered],
        pool=[pool_of(node.record.hot_nodes if node.record else None) for node in ordered],
        policy=[None if key is None else index_of[key] for key in keys],
        warnings=warnings[: limits.WARNINGS],
        more_warnings=max(len(warnings) - limits.WARNINGS, 0),
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
        for text in _node_warnings(node, extender.load_aware):
            named[text[: limits.TEXT_CHARACTERS]].append(node.name)
    for text in sorted(named, key=lambda text: (-len(named[text]), text)):
        names = named[text]
        yield PolicyWarning(text=text, nodes=len(names), first_nodes=names[: limits.NAMED_NODES])


def _node_warnings(node: NodePolicy, load_aware: LoadAwareArgs | None) -> Iterator[str]:
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
    if load_aware is not None:
        annotation = (record.annotations or {}).get(ANNOTATION)
        yield from _filled_and_hot(record, select_limits(load_aware, annotation, is_prod=False))


def _filled_and_hot(record: KnownNode, filled_to: Limits) -> Iterator[str]:
    """Where the scheduler fills a node beyond what makes it hot. Statistics of usage are not
    compared with its average."""
    policy = record.hot_nodes
    if policy is None or policy.use_deviation_thresholds or policy.usage == "peak":
        return
    if filled_to.kind != USAGE:
        return
    for resource, high in policy.high_percent.items():
        filled = filled_to.thresholds.get(resource, 0)
        if filled > high:
            yield (
                f"the extender lets {resource} of a node be filled to {filled:g}%, but above "
                f"{high:g}% it is hot, and pods are evicted again"
            )
