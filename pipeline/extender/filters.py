"""Filters: each refuses some of the candidate nodes, by arrays over all of them.

docs/how-to/add-a-scorer.md has the steps for a new filter.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple

import numpy as np

from pipeline.extender import limits
from pipeline.extender.candidate_nodes import CandidateNodes, NodePositions, by_node
from pipeline.extender.refusals import PASSES, Refusal, Refusals
from pipeline.processors.arrays import BoolArray, IntArray
from pipeline.processors.explain.quantity_text import format_bytes, format_cpu
from pipeline.processors.loadaware import filter_score, node_thresholds
from pipeline.processors.loadaware.filter_score import NodeUsage, Verdict
from pipeline.processors.loadaware.loadaware_args import LoadAwareArgs
from pipeline.processors.loadaware.node_thresholds import Limits, select_limits
from pipeline.processors.loadaware.node_usage import read_node_usage
from pipeline.processors.loadaware.usage_outage import UsageOutage
from pipeline.processors.loadaware.usage_readings import age_text
from pipeline.processors.overcommit.offer_bounds import BOUNDED, OfferBounds, bounds_in_force
from pipeline.processors.placement.reservation_bounds import (
    Bounded,
    exceeds_offer,
    exceeds_reservation,
)
from pipeline.processors.scorers.scheduling_hint import read_hint
from pipeline.processors.scorers.scorer import PodDemand
from pipeline.table import Rows
from pipeline.table.node_columns import bound_column
from pipeline.times import time_or_none
from pipeline.topics.resource_amounts import BATCH, MID, RATES

RESOURCES: Final = ("cpu", "memory")

_ESTIMATED: Final = "estimated"
_USAGE_NAMES: Final = {
    node_thresholds.USAGE: "usage",
    node_thresholds.PROD: "prod usage",
    node_thresholds.AGGREGATED: "aggregated usage",
    _ESTIMATED: "estimated usage",
}
_KINDS: Final = (*_USAGE_NAMES,)
_EXPIRED: Final = Refusal("node(s) nodeMetric expired")
_HOT: Final = Refusal("node(s) hot while other nodes are not")
_LEFT: Final = Refusal("node(s) left by pods of the workload a short time ago")
_NOT_HINTED: Final = Refusal("node(s) not named by the scheduling hint of the pod")


def hinted(nodes: CandidateNodes, demand: PodDemand) -> Refusals:
    """SchedulingHint: a pod that names nodes is refused by all others."""
    named = set(read_hint(demand.pod.annotations).node_names)
    if not named:
        return Refusals.none(len(nodes))
    is_named = np.fromiter(map(named.__contains__, nodes.names), np.bool_, len(nodes))
    return Refusals(
        np.where(is_named, PASSES, 0), (_NOT_HINTED,),
        lambda _: f"the scheduling hint of the pod names {len(named)} other nodes",
    )  # fmt: skip


class _Rule(NamedTuple):
    """What LoadAware compares on some nodes. `thresholds` and `kinds`, indexes of `_KINDS`, are
    (nodes, resources), or one row for all nodes."""

    usage: NodeUsage
    thresholds: IntArray
    kinds: IntArray

    def where(self, chosen: BoolArray, other: "_Rule") -> "_Rule":
        """This rule, and `other` where `chosen` (nodes, resources)."""
        usage = other.usage._replace(
            compared=np.where(chosen, other.usage.compared, self.usage.compared),
            is_estimated=chosen & other.usage.is_estimated,
        )
        return _Rule(
            usage,
            np.where(chosen, other.thresholds, self.thresholds),
            np.where(chosen, other.kinds, self.kinds),
        )


class _Judged(NamedTuple):
    """The verdict on the nodes at `positions`, whose thresholds are for the same usage."""

    positions: NodePositions
    rule: _Rule
    verdict: Verdict

    def codes(self) -> IntArray:
        """Indexes of `_load_refusals`, (nodes,)."""
        code, resource = self.verdict.code, self.verdict.resource
        codes: IntArray = np.full(len(code), PASSES, np.int64)
        codes[code == filter_score.EXPIRED] = 0
        resources = self.rule.kinds.shape[1]
        for index in range(resources):
            of_refusal = 1 + self.rule.kinds[:, index] * resources + index
            np.copyto(codes, of_refusal, where=resource == index)
        return codes

    def detail(
        self, index: int, name: str, age_seconds: float, flying: Sequence[int], asked: int
    ) -> str:
        """The numbers of a node that refuses the pod for usage of a resource. `flying` are the
        amounts of all pods in flight and of Prod; the pod adds `asked`."""
        usage, shape = self.rule.usage, self.rule.usage.compared.shape
        resource = int(self.verdict.resource[index])
        kind = _KINDS[np.broadcast_to(self.rule.kinds, shape)[index, resource]]
        threshold = np.broadcast_to(self.rule.thresholds, shape)[index, resource]
        used = int(usage.compared[index, resource])
        if kind == _ESTIMATED:
            expected = f"{amount(name, used)} expected of the pods on the node"
            parts = [f"usage is unknown or in doubt, {expected}"]
        else:
            in_flight = flying[kind == node_thresholds.PROD]
            parts = [f"{amount(name, used - in_flight)} used {age_text(age_seconds)}"]
            parts += [f"{amount(name, in_flight)} on its way"] * (in_flight > 0)
        parts += [f"{amount(name, asked)} for this pod"]
        return (
            f"{name} {_USAGE_NAMES[kind]} would be {self.verdict.percent[index]:.1f}% of "
            f"{amount(name, int(usage.capacity[index, resource]))}, over the threshold of "
            f"{threshold:g}%: {' + '.join(parts)}"
        )


@cache
def _load_refusals(resources: tuple[str, ...]) -> tuple[Refusal, ...]:
    """The refusals of LoadAware: expired, then by kind of usage and by resource."""
    return (
        _EXPIRED,
        *(
            Refusal(f"node(s) {resource} {usage} exceed threshold")
            for usage in _USAGE_NAMES.values()
            for resource in resources
        ),
    )


def load_aware(
    nodes: CandidateNodes,
    demand: PodDemand,
    args: LoadAwareArgs,
    *,
    in_flight: bool = True,
    outage: UsageOutage | None = None,
) -> Refusals:
    """LoadAware: usage with pods in flight and this pod is over a threshold, or too old. Where a
    resource's usage is unknown, the estimates of the pods on the node count. Nodes that lost their
    usage in an outage pass: requests alone limit them."""
    estimate = demand.amounts("estimate", args.resources)
    is_fresh = nodes.is_fresh(args.node_metric_expiration_seconds or 0)
    expired = ~is_fresh
    if not args.filter_expired_node_metrics:
        expired = np.zeros(len(nodes), np.bool_)
    codes, group_of = Refusals.none(len(nodes)).codes, np.zeros(0, np.int64)
    groups: list[_Judged] = []
    for positions, rule in _rules(nodes, args, is_prod=demand.is_prod, in_flight=in_flight):
        # Usually one rule is for all nodes: a slice needs no copies.
        part = positions if len(positions) < len(nodes) else slice(None)
        verdict = filter_score.judge(
            rule.usage,
            estimate,
            rule.thresholds,
            expired[part],
            passes_expired=bool(args.enable_schedule_when_node_metrics_expired),
        )
        if not np.count_nonzero(verdict.code != filter_score.PASSES):
            continue
        if not groups:
            codes, group_of = codes.copy(), np.zeros(len(nodes), np.int64)
        group = _Judged(positions, rule, verdict)
        codes[part], group_of[part] = group.codes(), len(groups)
        groups.append(group)
    if not groups:
        return Refusals.none(len(nodes))
    if outage is not None:
        codes[outage.affects(nodes.column("as_of_seconds"), is_fresh)] = PASSES
    # Copies: the columns of the table change, and details may be asked for later.
    ages, flights = nodes.ages(), [np.zeros((0, 0), np.int64)] * 2
    if in_flight:
        flights = [nodes.in_flight_usage(prod=prod).copy("F") for prod in (False, True)]

    def detail(position: int) -> str:
        group, age = groups[int(group_of[position])], float(ages[position])
        index = int(np.searchsorted(group.positions, position))
        if group.verdict.code[index] == filter_score.EXPIRED:
            return _expired_detail(age, args)
        resource = int(group.verdict.resource[index])
        flying = [int(flight[position, resource]) for flight in flights] if in_flight else [0, 0]
        return group.detail(index, args.resources[resource], age, flying, int(estimate[resource]))

    return Refusals(codes, _load_refusals(args.resources), detail)


def _rules(
    nodes: CandidateNodes, args: LoadAwareArgs, *, is_prod: bool, in_flight: bool
) -> Iterator[tuple[NodePositions, _Rule]]:
    """The rules of nodes by their annotations of thresholds, and the ascending positions of the
    nodes of each. Nodes share a rule if they compare the same usage, whatever their thresholds."""
    codes, texts = nodes.metadata("Annotation", node_thresholds.ANNOTATION)
    by_usage: dict[Hashable, dict[int, _Limits]] = {}
    for code in np.flatnonzero(np.bincount(codes)).tolist():
        limits = _Limits(
            *(select_limits(args, texts[code], is_prod=prod) for prod in (is_prod, False))
        )
        by_usage.setdefault((limits.own.usage, limits.of_all.usage), {})[code] = limits
    for by_code in by_usage.values():
        positions, part = np.arange(len(nodes)), nodes
        if len(by_usage) > 1:
            positions = np.flatnonzero(np.isin(codes, [*by_code]))
            part = nodes.among(positions)
        if any(limits.own.are_any for limits in by_code.values()):
            rows: Rows = slice(1)
            if len(by_code) > 1:
                row_of = np.zeros(len(texts), np.intp)
                row_of[[*by_code]] = np.arange(len(by_code))
                rows = row_of[codes[positions]]
            yield positions, _rule(part, args, [*by_code.values()], rows, in_flight=in_flight)


class _Limits(NamedTuple):
    """The thresholds for the pod, and those of all usage, which apply where that of Prod is
    unknown."""

    own: Limits
    of_all: Limits


def _rule(
    nodes: CandidateNodes, args: LoadAwareArgs, limits: Sequence[_Limits], rows: Rows,
    *, in_flight: bool,
) -> _Rule:  # fmt: skip
    """The rule of nodes with thresholds for the same usage: `rows` selects those of each node from
    `limits`, or one for all nodes. Where usage of Prod is unknown, the thresholds for all usage
    apply to Prod, too."""
    first = limits[0].own
    usage = read_node_usage(nodes, args, first, in_flight=in_flight)
    percents = [[each.own.thresholds.get(name, 0) for name in args.resources] for each in limits]
    thresholds = np.array(percents)[rows]
    kinds = np.full((1, len(args.resources)), _KINDS.index(first.kind))
    if not np.count_nonzero(usage.is_estimated):
        return _Rule(usage, thresholds, kinds)
    if first.kind != node_thresholds.PROD:
        kinds = np.where(usage.is_estimated, _KINDS.index(_ESTIMATED), kinds)
        return _Rule(usage, thresholds, kinds)
    of_all = [_Limits(each.of_all, each.of_all) for each in limits]
    other = _rule(nodes, args, of_all, rows, in_flight=in_flight)
    return _Rule(usage, thresholds, kinds).where(usage.is_estimated, other)


def _expired_detail(age_seconds: float, args: LoadAwareArgs) -> str:
    if not np.isfinite(age_seconds):
        return "usage is not known: the node never reported"
    limit, age = args.node_metric_expiration_seconds, age_text(age_seconds)
    return f"usage is not known: its last window ended {age}, the limit is {limit} s"


def amount(resource: str, whole: int) -> str:
    """An amount with its unit, as tables have it.

    >>> amount("cpu", 1250), amount("memory", 3 << 30), amount("nvidia.com/gpu", 2)
    ('1250m', '3.0Gi', '2')
    >>> amount("springtide.io/network-receive", 1_250_000)
    '1.25 MB/s'
    """
    if resource in RATES:
        return f"{whole / 1e6:.4g} MB/s"
    if resource in ("cpu", MID[0], BATCH[0]):
        return format_cpu(whole / 1000)
    if resource in ("memory", MID[1], BATCH[1]):
        return format_bytes(whole)
    return str(whole)


def reserved(nodes: CandidateNodes, demand: PodDemand) -> Refusals:
    """Requests exceed what the Node's annotation leaves beside processes outside of Kubernetes."""
    cores, memory = nodes.column("reserved_cpu_cores"), nodes.column("reserved_memory_bytes")
    if np.isnan(cores).all() and np.isnan(memory).all():
        return Refusals.none(len(nodes))
    reservation = by_node([cores * 1000, memory])
    allocatable = by_node([nodes.allocatable(name) for name in RESOURCES])
    requested = by_node([nodes.counted(f"request:{name}") for name in RESOURCES])
    wanted = demand.amounts("request", RESOURCES)
    bounded = exceeds_reservation(allocatable, reservation, requested, wanted)
    return _exceeding(
        bounded, RESOURCES, requested, wanted, "allocatable minus reservation",
        lambda _: "allocatable minus the node's reservation",
    )  # fmt: skip


def offered(nodes: CandidateNodes, demand: PodDemand, stale_after: float) -> Refusals:
    """Requests of Mid and Batch exceed the newest record of resources: an actuator that is late or
    dead leaves more on the Node than there is."""
    wanted = demand.amounts("request", BOUNDED)
    if not np.count_nonzero(wanted):
        return Refusals.none(len(nodes))
    buffered, published, certain = (
        by_node([nodes.column(bound_column(stage, name)) for name in BOUNDED])
        for stage in OfferBounds._fields
    )
    ages = nodes.now - nodes.column("offered_as_of_seconds")
    windows = nodes.column("offered_window_seconds")
    degrade = nodes.column("offer_degrades_seconds")
    most = bounds_in_force(buffered, published, certain, ages, windows, degrade, stale_after)
    requested = by_node([nodes.counted(f"request:{name}") for name in BOUNDED])
    bounded = exceeds_offer(most, requested, wanted)
    return _exceeding(
        bounded, BOUNDED, requested, wanted, "newest offer",
        lambda position: f"offer computed {age_text(float(ages[position]))}",
    )  # fmt: skip


def hot(nodes: CandidateNodes, demand: PodDemand, others: Refusals, stale_after: float) -> Refusals:
    """Nodes with an open alert are a last resort: they refuse the pod while a node that is known
    not to be hot passes the `others`. Evictions cool a node in its newest window at once, so that
    scores would bring the replacements back. Windows that are stale say nothing."""
    since = nodes.column("hot_since_seconds")
    is_hot = np.isfinite(since)
    if not np.count_nonzero(is_hot) or _waits_for_long(demand, nodes.now):
        return Refusals.none(len(nodes))
    is_fresh = nodes.is_fresh(stale_after)
    is_hot &= is_fresh
    if not (is_fresh & ~is_hot & ~others.is_refused).any():
        return Refusals.none(len(nodes))
    ages = nodes.now - since

    def detail(position: int) -> str:
        return f"its alert was opened {age_text(float(ages[position]))}; a cooler node passes"

    return Refusals(np.where(is_hot, 0, PASSES), (_HOT,), detail)


def left(
    nodes: CandidateNodes, demand: PodDemand, others: Refusals, left_at: Mapping[str, float],
    stale_after: float,
) -> Refusals:  # fmt: skip
    """Nodes that the evictor moved pods of the same workload off, and when: a last resort, as hot
    nodes are. Their alert may have closed, and the pod would open it again."""
    if not left_at or _waits_for_long(demand, nodes.now):
        return Refusals.none(len(nodes))
    is_left = nodes.are_named(left_at)
    if not (nodes.is_fresh(stale_after) & ~is_left & ~others.is_refused).any():
        return Refusals.none(len(nodes))

    def detail(position: int) -> str:
        age = age_text(nodes.now - left_at[nodes.names[position]])
        return f"a pod of its workload was evicted from it {age}; another node passes"

    return Refusals(np.where(is_left, 0, PASSES), (_LEFT,), detail)


def _waits_for_long(demand: PodDemand, now: float) -> bool:
    """Whether something else, such as another extender, may keep the pod from cooler nodes. A pod
    that is on a node stands for its replacement, which does not wait yet."""
    created = time_or_none(demand.pod.created_at)
    if demand.pod.node or created is None:
        return False
    return now - created >= limits.HOT_LAST_RESORT_SECONDS


def _exceeding(
    bounded: Bounded,
    resources: tuple[str, ...],
    requested: IntArray,
    wanted: IntArray,
    bound: str,
    bound_text: Callable[[int], str],
) -> Refusals:
    """Refuse nodes by the first resource that exceeds its bound. `bound` names it in the reason,
    `bound_text` in the detail of a node."""
    is_over = np.logical_or.reduce(bounded.over, axis=1)

    def detail(position: int) -> str:
        first = int(bounded.over[position].argmax())
        name = resources[first]
        return (
            f"{name}: {amount(name, int(requested[position, first]))} requested + "
            f"{amount(name, int(wanted[first]))} for this pod exceed "
            f"{amount(name, int(bounded.most[position, first]))} ({bound_text(position)})"
        )

    kinds = [Refusal(f"node(s) {name} requests exceed {bound}") for name in resources]
    return Refusals(np.where(is_over, bounded.over.argmax(axis=1), PASSES), (*kinds,), detail)
