"""Room for a Prod pod that all nodes refuse: who of lower classes would have to leave, and where.

Owes the rest: a plan that helps by the very filters that refused, for the usage that is expected to
go with the pods; one plan at a time for a pod, and for a node, and no more than a few for a pod. A
scheduler's own preemption cannot do it: its filters pass these nodes as they are, so nobody is in
the way as far as it knows. The pod is expected on its node until the plan has had time to work; if
nobody carries it out, not for long.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.extender.candidate_nodes import CandidateNodes, PodDemand
from pipeline.extender.decisions import Decisions
from pipeline.extender.filters import RESOURCES, Refusal, amount
from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.kubernetes.pod_classes import CLASS_CODES, CLASSES
from pipeline.processors.loadaware.loadaware_args import LoadAwareArgs
from pipeline.processors.loadaware.node_thresholds import AGGREGATED, limits_of
from pipeline.processors.placement.victim_selection import (
    PUSHED_OUT,
    SETTLE_SECONDS,
    Cost,
    cost,
    fewest,
    in_order,
    shares,
)
from pipeline.table.pod_columns import EvictablePods
from pipeline.times import format_time
from pipeline.topics.eviction_plans import EvictionPlanRecord, LeavingPod, WaitingPod
from pipeline.topics.pods import PodRecord
from pipeline.topics.resource_amounts import Usage

PLANS_OF_A_POD: Final = 3
VALID_SECONDS: Final = 30.0
BEGUN_SECONDS: Final = 60.0
"""If none of its pods has left by then, or is about to, nobody carries a plan out."""

# The longest span that usage is aggregated over.
LONGEST_SPAN_SECONDS: Final = 1800.0

# It takes some ten milliseconds, in which nobody else is answered.
_PAUSE_SECONDS: Final = 1.0
_AGAIN_SECONDS: Final = 10.0
_NODES_CONSIDERED: Final = 512
_NODES_LOOKED_AT: Final = 4
_REMEMBERED: Final = 10_000
_NOTHING: Final = Usage()
_CODES: Final = {name: CLASS_CODES[name] for name in PUSHED_OUT}


class _Choice(NamedTuple):
    """Who would leave which of the nodes: places among its `EvictablePods`."""

    cost: Cost
    place: int
    pods: list[int]


class _Held(NamedTuple):
    """Where room was made for a pod, the last node last, who leaves that, and until when nothing
    else is tried: that may take so long, or nothing would have helped."""

    nodes: tuple[str, ...] = ()
    until: float = 0.0
    leaving: tuple[str, ...] = ()


class PushingOut:
    """Plans for pods that no node may take."""

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions
        self._held: OrderedDict[str, _Held] = OrderedDict()
        self._busy: dict[str, float] = {}
        self._next = -np.inf

    def plan(
        self, pod: PodRecord, refused: Mapping[str, Refusal], now: float
    ) -> EvictionPlanRecord | None:
        """Who is to leave for a pod that all of these nodes have just refused; None where that does
        not help, or is under way."""
        held = self._held.get(pod.uid, _Held())
        if now < held.until:
            self._expect(pod, held, now)
            return None
        if not pod.uid or pod.pod_class != "prod" or len(held.nodes) >= PLANS_OF_A_POD:
            return None
        if self._next - _PAUSE_SECONDS <= now < self._next:
            return None
        self._next = now + _PAUSE_SECONDS
        found = self._find(pod, refused, held, now)
        if found is None:
            self._hold(pod, held._replace(until=now + _AGAIN_SECONDS))
            return None
        seconds = SETTLE_SECONDS + _span_seconds(self._decisions.rules.placement.load_aware)
        leaving = tuple(one.uid for one in found.pods)
        held = _Held((*held.nodes, found.node), now + seconds, leaving)
        self._hold(pod, held)
        self._busy[found.node] = now + BEGUN_SECONDS
        self._expect(pod, held, now)
        return found

    def _find(
        self, pod: PodRecord, refused: Mapping[str, Refusal], held: _Held, now: float
    ) -> EvictionPlanRecord | None:
        self._busy = {node: until for node, until in self._busy.items() if until > now}
        # Where it did not help it is not tried again.
        names = [name for name in refused if name not in self._busy and name not in held.nodes]
        asked, moment = self._decisions.asked(pod), self._decisions.moment(names, now)
        moment = moment.among(_fullest_least(moment, asked)[:_NODES_CONSIDERED])
        evictable = moment.evictable()
        frees = _frees(moment, evictable)
        choices = self._choices(moment, asked, evictable, frees, pod.priority or 0)
        chosen = min(choices, default=None)
        if chosen is None:
            return None
        node = moment.names[chosen.place]
        leaving = tuple(_leaving(moment, evictable, frees, at) for at in chosen.pods)
        return EvictionPlanRecord(
            node=node,
            id=f"{pod.uid}/{node}",
            at=format_time(now),
            valid_until=format_time(now + VALID_SECONDS),
            planner="extender",
            why=_why(pod, leaving, refused[node]),
            pods=leaving,
            waiting=WaitingPod(
                namespace=pod.namespace, name=pod.name, uid=pod.uid, priority=pod.priority or 0
            ),
        )

    def _hold(self, pod: PodRecord, held: _Held) -> None:
        self._held[pod.uid] = held
        self._held.move_to_end(pod.uid)
        while len(self._held) > _REMEMBERED:
            self._held.popitem(last=False)

    def _expect(self, pod: PodRecord, held: _Held, now: float) -> None:
        """The pod counts where room is being made for it."""
        if not held.nodes:
            return
        node = held.nodes[-1]
        if any(map(self._decisions.is_leaving, held.leaving)):
            self._busy[node] = held.until
        until = self._busy.get(node, -np.inf)
        if until > now:
            self._decisions.place(pod, node, now, until - now)

    def _choices(
        self,
        moment: CandidateNodes,
        asked: PodDemand,
        evictable: EvictablePods,
        frees: FloatArray,
        priority: int,
    ) -> Iterator[_Choice]:
        """What it would cost on each of the first nodes on which it would help."""
        may_leave = np.flatnonzero(evictable.priority < priority)
        refused = self._decisions.refused(_without(moment, evictable, frees, may_leave), asked)
        could = (place for place in range(len(moment)) if place not in refused)
        room = np.maximum([moment.allocatable(name) for name in RESOURCES], 1).T
        for place in islice(could, _NODES_LOOKED_AT):
            here = may_leave[evictable.node[may_leave] == place]
            one = moment.among(np.array([place]))

            def fits(gone: Sequence[int], one: CandidateNodes = one) -> bool:
                left = _without(one, evictable, frees, np.array(gone, np.intp), at=0)
                return not self._decisions.refused(left, asked)

            classes = [CLASSES[code] for code in evictable.class_code[here].tolist()]
            priorities = evictable.priority[here].tolist()
            shares_of_node = (frees[here] / room[place]).max(axis=1).tolist()
            order = here[in_order(classes, priorities, shares_of_node)].tolist()
            gone = fewest(order, fits)
            if gone:
                named = [CLASSES[code] for code in evictable.class_code[gone].tolist()]
                yield _Choice(cost(named, evictable.priority[gone].tolist()), place, sorted(gone))


def _fullest_least(moment: CandidateNodes, asked: PodDemand) -> npt.NDArray[np.intp]:
    """The places of the nodes, those first that would be fullest least with the pod, by the fuller
    of cpu and memory."""
    room = np.array([moment.allocatable(name) for name in RESOURCES], np.float64)
    used = np.nan_to_num(moment.usage("usage", RESOURCES).T)
    wanted = np.array([[asked.counted.get(f"estimate:{name}", 0)] for name in RESOURCES])
    with np.errstate(divide="ignore", invalid="ignore"):
        full = np.where(room > 0, (used + wanted) / room, np.inf).max(axis=0, initial=0.0)
    return np.argsort(full, kind="stable")


def _frees(moment: CandidateNodes, evictable: EvictablePods) -> FloatArray:
    """What the node would use less if each of these pods were gone, (pods, cpu and memory) in
    millicores and bytes: its part of what its class uses there."""
    used = np.full((len(moment), len(CLASSES), len(RESOURCES)), np.nan)
    for place in np.unique(evictable.node).tolist():
        state = moment.node(place).state
        for name, code in _CODES.items() if state else ():
            of_class = state.class_usage.get(name, _NOTHING) if state else _NOTHING
            cpu, memory = of_class.cpu_cores, of_class.memory_bytes
            used[place, code] = (np.nan if cpu is None else 1000 * cpu, memory)
    groups = evictable.node * len(CLASSES) + evictable.class_code
    return shares(groups, used.reshape(-1, len(RESOURCES)), _estimates(moment, evictable))


def _estimates(moment: CandidateNodes, evictable: EvictablePods) -> IntArray:
    names = moment.counted_names
    nothing = np.zeros(len(evictable.places), np.int64)
    columns = [
        evictable.amounts[:, names.index(f"estimate:{name}")]
        if f"estimate:{name}" in names
        else nothing
        for name in RESOURCES
    ]
    found: IntArray = np.stack(columns, axis=1)
    return found


def _without(
    moment: CandidateNodes,
    evictable: EvictablePods,
    frees: FloatArray,
    gone: IntArray,
    at: int | None = None,
) -> CandidateNodes:
    """The nodes without these of the pods; `at` is the place of the node of all of them, if they
    are not to be found by their own."""
    places = evictable.node[gone] if at is None else np.full(len(gone), at)
    amounts = np.zeros((len(moment), evictable.amounts.shape[1]), np.int64)
    used = np.zeros((len(moment), len(RESOURCES)))
    np.add.at(amounts, places, evictable.amounts[gone])
    np.add.at(used, places, frees[gone])
    return moment.less(amounts, {name: used[:, of] for of, name in enumerate(RESOURCES)})


def _span_seconds(args: LoadAwareArgs) -> float:
    """Over how long the usage that Prod is judged by was collected, beside the last window."""
    of = limits_of(args, None, is_prod=True)
    return float(of.span_seconds or LONGEST_SPAN_SECONDS) if of.kind == AGGREGATED else 0.0


def _leaving(
    moment: CandidateNodes, evictable: EvictablePods, frees: FloatArray, at: int
) -> LeavingPod:
    return LeavingPod(
        uid=moment.uid_at(int(evictable.places[at])),
        pod_class=CLASSES[evictable.class_code[at]],
        cpu_millicores=round(float(frees[at, 0])),
        memory_bytes=round(float(frees[at, 1])),
    )


def _why(pod: PodRecord, leaving: Sequence[LeavingPod], refusal: Refusal) -> str:
    count = {name: sum(one.pod_class == name for one in leaving) for name in PUSHED_OUT}
    who = ", ".join(f"{number} of {name}" for name, number in count.items() if number)
    cpu = amount("cpu", sum(one.cpu_millicores for one in leaving))
    memory = amount("memory", sum(one.memory_bytes for one in leaving))
    return (
        f"{pod.namespace}/{pod.name} of prod fits nowhere; here it would without {who}, who use "
        f"some {cpu} and {memory}: {refusal.reason}"
    )
