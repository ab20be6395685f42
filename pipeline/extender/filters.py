"""Refuse candidate nodes: each filter yields positions of nodes, and why they may not take the pod.

A reason names the rule, the numbers and their age. It has no percent sign: kube-scheduler uses the
text of an Event as a format string, and loses the Event. docs/how-to/add-a-scorer.md has the steps
for a new filter.
"""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np

from pipeline.extender.candidate_nodes import CandidateNodes, NodePositions, by_node
from pipeline.processors.arrays import BoolArray, IntArray
from pipeline.processors.loadaware import filter_score, node_thresholds
from pipeline.processors.loadaware.filter_score import NodeUsage, Verdict
from pipeline.processors.loadaware.loadaware_args import LoadAwareArgs
from pipeline.processors.loadaware.node_thresholds import Limits
from pipeline.processors.loadaware.node_usage import load_aware_usage, read_node_usage
from pipeline.processors.loadaware.usage_readings import age_text
from pipeline.processors.placement.reservation_bounds import (
    Bounded,
    exceeds_lower_bound,
    exceeds_reservation,
)
from pipeline.processors.scorers.scheduling_hint import read_hint
from pipeline.processors.scorers.scorer import PodDemand
from pipeline.topics.resource_amounts import MID, RATES

RESOURCES: Final = ("cpu", "memory")

_USAGE_NAMES: Final = {
    node_thresholds.USAGE: "usage",
    node_thresholds.PROD: "usage of Prod",
    node_thresholds.AGGREGATED: "aggregated usage",
}


class Refusal(NamedTuple):
    """Why a node may not take the pod; `curable` if evicting other pods may help: where too much is
    requested, not where too much is used."""

    reason: str
    curable: bool = False


Refusals = Iterator[tuple[int, Refusal]]
"""Positions of refused nodes, with the refusal."""


def hinted(nodes: CandidateNodes, demand: PodDemand) -> Refusals:
    """SchedulingHint: a pod that names nodes is refused by all others."""
    named = set(read_hint(demand.pod.annotations).node_names)
    if named:
        refusal = Refusal("not among the nodes that the pod's scheduling hint names")
        yield from (
            (position, refusal) for position, name in enumerate(nodes.names) if name not in named
        )


def load_aware(
    nodes: CandidateNodes, demand: PodDemand, args: LoadAwareArgs, *, in_flight: bool = True
) -> Refusals:
    """LoadAware: usage with pods in flight and this pod is over a threshold, or too old."""
    estimate = demand.amounts("estimate", args.resources)
    expired = ~nodes.is_fresh(args.node_metric_expiration_seconds or 0)
    if not args.filter_expired_node_metrics:
        expired = np.zeros(len(nodes), np.bool_)
    for limits, positions in _limits(nodes, args, is_prod=demand.is_prod):
        if not limits.are_any:
            continue
        part = nodes.among(positions)
        used = load_aware_usage(part, args, limits, in_flight=in_flight)
        judged = read_node_usage(part, args, used, limits)
        thresholds = np.array([limits.thresholds.get(name, 0) for name in args.resources])
        verdict = filter_score.judge(
            judged,
            estimate,
            thresholds[None, :],
            expired[positions],
            passes_expired=bool(args.enable_schedule_when_node_metrics_expired),
        )
        for index in np.flatnonzero(verdict.code).tolist():
            reason = _load_reason(part, args, limits, judged, estimate, verdict, index)
            yield int(positions[index]), Refusal(reason)


def _limits(
    nodes: CandidateNodes, args: LoadAwareArgs, *, is_prod: bool
) -> Iterator[tuple[Limits, NodePositions]]:
    """The thresholds, and the nodes that they apply to: nodes with an annotation have their own.
    Where usage of Prod is unknown, the thresholds for all usage apply."""
    for annotation, positions in _by_annotation(nodes):
        limits = node_thresholds.select_limits(args, annotation, is_prod=is_prod)
        if limits.kind == node_thresholds.PROD:
            usage = nodes.usage("prod_usage", args.resources)[positions]
            known = np.logical_or.reduce(np.isfinite(usage), axis=1)
            yield node_thresholds.select_limits(args, annotation, is_prod=False), positions[~known]
            positions = positions[known]
        yield limits, positions


def _by_annotation(nodes: CandidateNodes) -> Iterator[tuple[str | None, NodePositions]]:
    """The nodes grouped by their annotation of thresholds; None for those without one."""
    has_own = nodes.cached("own", lambda: nodes.column("own_thresholds").astype(np.bool_))
    yield None, np.flatnonzero(~has_own)
    groups: dict[str | None, list[int]] = {}
    for position in np.flatnonzero(has_own).tolist():
        node = nodes.records(position).node
        text = None if node is None else node.annotations.get(node_thresholds.ANNOTATION)
        groups.setdefault(text, []).append(position)
    for text, positions in groups.items():
        yield text, np.array(positions)


def _load_reason(
    nodes: CandidateNodes, args: LoadAwareArgs, limits: Limits, judged: NodeUsage,
    estimate: IntArray, verdict: Verdict, index: int,
) -> str:  # fmt: skip
    seconds = float(nodes.ages()[index])
    if verdict.code[index] == filter_score.EXPIRED:
        if not np.isfinite(seconds):
            return "usage is not known: the node never reported"
        limit = args.node_metric_expiration_seconds
        age = age_text(seconds)
        return f"usage is not known: its last window ended {age}, the limit is {limit} s"
    resource = int(verdict.resource[index])
    name = args.resources[resource]
    used = int(judged.compared[index, resource])
    flying = int(nodes.in_flight_usage(prod=limits.kind == node_thresholds.PROD)[index, resource])
    parts = [f"{amount(name, used - flying)} used {age_text(seconds)}"]
    parts += [f"{amount(name, flying)} on its way"] * (flying > 0)
    parts += [f"{amount(name, int(estimate[resource]))} for this pod"]
    return (
        f"{name} {_USAGE_NAMES[limits.kind]} would be {verdict.percent[index]:.1f} percent of "
        f"{amount(name, int(judged.capacity[index, resource]))}, over the threshold of "
        f"{limits.thresholds[name]:g}: {' + '.join(parts)}"
    )


def amount(resource: str, whole: int) -> str:
    """An amount with its unit.

    >>> amount("cpu", 1250), amount("memory", 3 << 30), amount("nvidia.com/gpu", 2)
    ('1.25 cores', '3.0 GiB', '2')
    >>> amount("springtide.io/network-receive", 1_250_000)
    '1.25 MB/s'
    """
    if resource in RATES:
        return f"{whole / 1e6:.4g} MB/s"
    if resource in ("cpu", MID[0]):
        return f"{whole / 1000:.4g} cores"
    if resource in ("memory", MID[1]):
        gib = whole / 2**30
        return f"{gib:.1f} GiB" if gib >= 1 else f"{whole / 2**20:.0f} MiB"
    return str(whole)


def reserved(nodes: CandidateNodes, demand: PodDemand) -> Refusals:
    """Requests exceed what the Node's annotation leaves beside processes outside of Kubernetes."""
    reservation = by_node(
        [nodes.column("reserved_cpu_cores") * 1000, nodes.column("reserved_memory_bytes")]
    )
    if not np.isfinite(reservation).any():
        return
    allocatable = by_node([nodes.allocatable(name) for name in RESOURCES])
    requested = by_node([nodes.counted(f"request:{name}") for name in RESOURCES])
    wanted = demand.amounts("request", RESOURCES)
    bounded = exceeds_reservation(allocatable, reservation, requested, wanted)
    yield from _exceeding(
        bounded, RESOURCES, requested, wanted, lambda _: "allocatable minus the node's reservation"
    )


def certain_mid(nodes: CandidateNodes, demand: PodDemand, stale_after: float) -> Refusals:
    """Requests of Mid exceed the lower bound of the last prediction, where that is late: what the
    Node still offers may not be there any more."""
    wanted = demand.amounts("request", MID)
    if not wanted.any():
        return
    bound = nodes.usage("mid_lower_bound", RESOURCES)
    ages = nodes.now - nodes.column("offered_as_of_seconds")
    windows = np.nan_to_num(nodes.column("offered_window_seconds"))
    with np.errstate(invalid="ignore"):
        is_late: BoolArray = np.abs(ages) >= np.maximum(stale_after, 2 * windows)
    requested = by_node([nodes.counted(f"request:{name}") for name in MID])
    bounded = exceeds_lower_bound(bound, is_late, requested, wanted)
    yield from _exceeding(
        bounded, MID, requested, wanted,
        lambda index: f"lower bound predicted {age_text(float(ages[index]))}",
    )  # fmt: skip


def _exceeding(
    bounded: Bounded,
    resources: tuple[str, ...],
    requested: IntArray,
    wanted: IntArray,
    bound: Callable[[int], str],
) -> Refusals:
    for index in np.flatnonzero(np.logical_or.reduce(bounded.over, axis=1)).tolist():
        first = int(bounded.over[index].argmax())
        name = resources[first]
        reason = (
            f"{name}: {amount(name, int(requested[index, first]))} requested + "
            f"{amount(name, int(wanted[first]))} for this pod exceed "
            f"{amount(name, int(bounded.most[index, first]))} ({bound(index)})"
        )
        yield index, Refusal(reason, curable=True)
