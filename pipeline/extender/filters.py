"""Who is refused and why: each filter looks at the nodes of a question at one moment.

Owes the rest: reasons that say which rule, which numbers and how old they are; and whether it would
help to evict pods: it does where too much was asked for, not where too much is used.
"""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np

from pipeline.extender.candidate_nodes import CandidateNodes, PodDemand, by_node
from pipeline.processors.arrays import BoolArray, IntArray
from pipeline.processors.loadaware import filter_score, node_thresholds
from pipeline.processors.loadaware.filter_score import Nodes, Verdict
from pipeline.processors.loadaware.loadaware_args import LoadAwareArgs
from pipeline.processors.loadaware.node_thresholds import Limits
from pipeline.processors.loadaware.node_usage import compared, nodes_of
from pipeline.processors.loadaware.usage_thresholds import age_text
from pipeline.processors.placement.reservation_bounds import (
    Bounded,
    beyond_certain,
    beyond_reservation,
)
from pipeline.processors.scorers.scheduling_hint import hint_of
from pipeline.topics.resource_amounts import MID, RATES

RESOURCES: Final = ("cpu", "memory")

_WHAT: Final = {
    node_thresholds.USAGE: "usage",
    node_thresholds.PROD: "usage of Prod",
    node_thresholds.AGGREGATED: "aggregated usage",
}


class Refusal(NamedTuple):
    """Why a node may not take the pod, without a percent sign; `curable` where kube-scheduler's
    preemption may help."""

    reason: str
    curable: bool = False


def hinted(moment: CandidateNodes, asked: PodDemand) -> Iterator[tuple[int, Refusal]]:
    """SchedulingHint: where a pod names nodes, no other takes it."""
    named = set(hint_of(asked.pod.annotations).node_names)
    if named:
        refusal = Refusal("not among the nodes that the pod's scheduling hint names")
        yield from (
            (place, refusal) for place, name in enumerate(moment.names) if name not in named
        )


def load_aware(
    moment: CandidateNodes, asked: PodDemand, args: LoadAwareArgs, *, in_flight: bool = True
) -> Iterator[tuple[int, Refusal]]:
    """LoadAware: where usage with what is on its way is over a threshold, or too old to tell."""
    estimate = asked.amounts("estimate", args.resources)
    expired = ~moment.is_fresh(args.node_metric_expiration_seconds or 0)
    if not args.filter_expired_node_metrics:
        expired = np.zeros(len(moment), np.bool_)
    for of, places in _limits(moment, args, is_prod=asked.is_prod):
        if not of.are_any:
            continue
        part = moment if len(places) == len(moment) else moment.among(places)
        used = compared(part, args, of, in_flight=in_flight)
        nodes = nodes_of(part, args, used, of)
        thresholds = np.array([of.thresholds.get(name, 0) for name in args.resources])
        verdict = filter_score.judge(
            nodes,
            estimate,
            thresholds[None, :],
            expired[places],
            passes_expired=bool(args.enable_schedule_when_node_metrics_expired),
        )
        for at in np.flatnonzero(verdict.code).tolist():
            yield int(places[at]), _refusal(part, args, of, nodes, estimate, verdict, at)


def _limits(
    moment: CandidateNodes, args: LoadAwareArgs, *, is_prod: bool
) -> Iterator[tuple[Limits, "np.ndarray[tuple[int], np.dtype[np.intp]]"]]:
    """The thresholds that hold, and for which nodes: those with an annotation have their own. Where
    it is not known what Prod uses, those hold that look at all that is used."""
    for text, places in _annotated(moment):
        of = node_thresholds.limits_of(args, text, is_prod=is_prod)
        if of.kind == node_thresholds.PROD:
            usage = moment.usage("prod_usage", args.resources)[places]
            known = np.logical_or.reduce(np.isfinite(usage), axis=1)
            yield node_thresholds.limits_of(args, text, is_prod=False), places[~known]
            places = places[known]
        yield of, places


def _annotated(
    moment: CandidateNodes,
) -> Iterator[tuple[str | None, "np.ndarray[tuple[int], np.dtype[np.intp]]"]]:
    """The nodes by the annotation that has their own thresholds; None for all that have none."""
    own = moment.once("own", lambda: moment.column("own_thresholds").astype(np.bool_))
    yield None, np.flatnonzero(~own)
    alike: dict[str | None, list[int]] = {}
    for place in np.flatnonzero(own).tolist():
        node = moment.node(place).node
        text = None if node is None else node.annotations.get(node_thresholds.ANNOTATION)
        alike.setdefault(text, []).append(place)
    for text, found in alike.items():
        yield text, np.array(found)


def _refusal(
    moment: CandidateNodes, args: LoadAwareArgs, of: Limits, nodes: Nodes, estimate: IntArray,
    verdict: Verdict, at: int,
) -> Refusal:  # fmt: skip
    age = age_text(float(moment.ages()[at]))
    if verdict.code[at] == filter_score.EXPIRED:
        limit = args.node_metric_expiration_seconds
        when = f"its last window ended {age}" if np.isfinite(moment.ages()[at]) else "never heard"
        return Refusal(f"usage is not known: {when}, and counts for {limit} s")
    resource = int(verdict.resource[at])
    name = args.resources[resource]
    used, room = int(nodes.compared[at, resource]), int(nodes.capacity[at, resource])
    flying = int(moment.flight(prod=of.kind == node_thresholds.PROD)[at, resource])
    parts = [f"{amount(name, used - flying)} used {age}", f"{amount(name, flying)} on its way"]
    parts = [*parts[: 1 + (flying > 0)], f"{amount(name, int(estimate[resource]))} for this pod"]
    # No percent sign: kube-scheduler takes the Event's text for a format, and loses the Event.
    return Refusal(
        f"{name} {_WHAT[of.kind]} would be {verdict.percent[at]:.1f} percent of "
        f"{amount(name, room)}, over the threshold of {of.thresholds[name]:g}: {' + '.join(parts)}"
    )


def amount(resource: str, whole: int) -> str:
    """An amount for people.

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


def reserved(moment: CandidateNodes, asked: PodDemand) -> Iterator[tuple[int, Refusal]]:
    """What the Node's annotation keeps for processes outside of Kubernetes is not asked for."""
    kept = by_node(
        [moment.column("reserved_cpu_cores") * 1000, moment.column("reserved_memory_bytes")]
    )
    if not np.isfinite(kept).any():
        return
    room = by_node([moment.allocatable(name) for name in RESOURCES])
    taken = by_node([moment.counted(f"request:{name}") for name in RESOURCES])
    wanted = asked.amounts("request", RESOURCES)
    found = beyond_reservation(room, kept, taken, wanted)
    yield from _beyond(found, RESOURCES, taken, wanted, lambda _: "without what the node reserves")


def certain_mid(
    moment: CandidateNodes, asked: PodDemand, stale_after: float
) -> Iterator[tuple[int, Refusal]]:
    """While nobody knows better, Mid takes no more than is certain, whatever the Node offers."""
    wanted = asked.amounts("request", MID)
    if not wanted.any():
        return
    bound = moment.usage("mid_lower_bound", RESOURCES)
    ages = moment.now - moment.column("offered_as_of_seconds")
    windows = np.nan_to_num(moment.column("offered_window_seconds"))
    with np.errstate(invalid="ignore"):
        is_late: BoolArray = np.abs(ages) >= np.maximum(stale_after, 2 * windows)
    taken = by_node([moment.counted(f"request:{name}") for name in MID])
    found = beyond_certain(bound, is_late, taken, wanted)
    yield from _beyond(
        found, MID, taken, wanted, lambda at: f"certain (predicted {age_text(float(ages[at]))})"
    )


def _beyond(
    found: Bounded,
    resources: tuple[str, ...],
    taken: IntArray,
    wanted: IntArray,
    what: Callable[[int], str],
) -> Iterator[tuple[int, Refusal]]:
    for at in np.flatnonzero(np.logical_or.reduce(found.over, axis=1)).tolist():
        first = int(found.over[at].argmax())
        name = resources[first]
        yield (
            at,
            Refusal(
                f"{name}: {amount(name, int(wanted[first]))} for this pod beside "
                f"{amount(name, int(taken[at, first]))} is more than the "
                f"{amount(name, int(found.most[at, first]))} {what(at)}",
                curable=True,
            ),
        )
