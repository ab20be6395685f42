"""Plan evictions that make room for a Prod pod that every node refuses.

A plan names a node and the pods of lower classes to evict there. It is made if the filters that
refused the pod would pass it without these pods and the usage that is expected to leave with them.
kube-scheduler's own preemption cannot plan this, because its filters pass these nodes.

There is one plan at a time per pod and per node, and few per pod: usage shows the effect of a plan
only after minutes, and until then every further plan would evict more than needed. The pod counts
on its node until the plan has had time to take effect; if no evictor executes it, only for a short
while.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from pipeline.extender import limits
from pipeline.extender.candidate_nodes import CandidateNodes, NodePositions
from pipeline.extender.decisions import Decisions
from pipeline.extender.filters import RESOURCES, amount
from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.kubernetes.pod_classes import CLASS_CODES, CLASSES
from pipeline.processors.loadaware.loadaware_args import LoadAwareArgs
from pipeline.processors.loadaware.node_thresholds import AGGREGATED, select_limits
from pipeline.processors.placement.victim_selection import (
    PUSHED_OUT,
    Cost,
    cost,
    eviction_order,
    fewest_victims,
    shares,
)
from pipeline.processors.scorers.scorer import PodDemand
from pipeline.table.pod_arrays import EvictablePods
from pipeline.times import format_time
from pipeline.topics.eviction_plans import EvictionPlanRecord, LeavingPod, WaitingPod
from pipeline.topics.node_state import AGGREGATED as SPANS
from pipeline.topics.pods import PodRecord
from pipeline.topics.resource_amounts import Usage

_NOTHING: Final = Usage()
_CODES: Final = {name: CLASS_CODES[name] for name in PUSHED_OUT}


class _Option(NamedTuple):
    """Evictions that would help on one node: `pods` are indexes into its `EvictablePods`.

    Options are compared by their cost, which comes first.
    """

    cost: Cost
    position: int
    pods: list[int]


class _PodPlans(NamedTuple):
    """The plans for a pod: their nodes, the newest last, and the UIDs of the pods that leave that
    one. Nothing else is tried before the time `until`: the plan may take so long to work, or no
    plan helped."""

    nodes: tuple[str, ...] = ()
    until: float = 0.0
    leaving: tuple[str, ...] = ()


class EvictionPlanner:
    """Plans for pods that every node refuses."""

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions
        self._plans: OrderedDict[str, _PodPlans] = OrderedDict()
        self._planned: dict[str, float] = {}  # nodes with a plan, and when it ends
        self._next_plan_at = -np.inf

    def plan(self, pod: PodRecord, refused: Sequence[str], now: float) -> EvictionPlanRecord | None:
        """A plan for a pod that all nodes `refused` have just refused. None if no evictions help,
        or a plan is under way."""
        plans = self._plans.get(pod.uid, _PodPlans())
        if now < plans.until:
            self._place_on_planned_node(pod, plans, now)
            return None
        if not pod.uid or pod.pod_class != "prod" or len(plans.nodes) >= limits.PLANS_PER_POD:
            return None
        if self._next_plan_at - limits.PLAN_PAUSE_SECONDS <= now < self._next_plan_at:
            return None
        self._next_plan_at = now + limits.PLAN_PAUSE_SECONDS
        plan = self._find(pod, refused, plans, now)
        if plan is None:
            self._remember(pod, plans._replace(until=now + limits.PLAN_RETRY_SECONDS))
            return None
        later = _later_seconds(plan.pods)
        seconds = limits.PLAN_SETTLED_SECONDS + later
        seconds += _span_seconds(self._decisions.rules.placement.load_aware)
        leaving = tuple(leaving_pod.uid for leaving_pod in plan.pods)
        plans = _PodPlans((*plans.nodes, plan.node), now + seconds, leaving)
        self._remember(pod, plans)
        self._planned[plan.node] = now + limits.PLAN_BEGUN_SECONDS + later
        self._place_on_planned_node(pod, plans, now)
        return plan

    def _find(
        self, pod: PodRecord, refused: Sequence[str], plans: _PodPlans, now: float
    ) -> EvictionPlanRecord | None:
        self._planned = {node: until for node, until in self._planned.items() if until > now}
        # A node where a plan did not help is not tried again.
        names = [name for name in refused if name not in self._planned and name not in plans.nodes]
        demand, nodes = self._decisions.demand(pod), self._decisions.candidates(names, now)
        nodes = nodes.among(_least_full_first(nodes, demand)[: limits.PLAN_NODES_CONSIDERED])
        evictable = nodes.evictable()
        freed = _freed_usage(nodes, evictable)
        options = self._options(nodes, demand, evictable, freed, pod.priority or 0)
        option = min(options, default=None)
        if option is None:
            return None
        node = nodes.names[option.position]
        leaving = tuple(_leaving_pod(nodes, evictable, freed, index) for index in option.pods)
        return EvictionPlanRecord(
            node=node,
            id=f"{pod.uid}/{node}",
            at=format_time(now),
            valid_until=format_time(now + limits.PLAN_VALID_SECONDS + _later_seconds(leaving)),
            planner="extender",
            why=_why(pod, leaving, self._decisions.refusals(nodes, demand).detail(option.position)),
            pods=leaving,
            waiting=WaitingPod(
                namespace=pod.namespace, name=pod.name, uid=pod.uid, priority=pod.priority or 0
            ),
        )

    def _remember(self, pod: PodRecord, plans: _PodPlans) -> None:
        self._plans[pod.uid] = plans
        self._plans.move_to_end(pod.uid)
        while len(self._plans) > limits.PLANNED_PODS:
            self._plans.popitem(last=False)

    def _place_on_planned_node(self, pod: PodRecord, plans: _PodPlans, now: float) -> None:
        """Count the pod on the node of its newest plan."""
        if not plans.nodes:
            return
        node = plans.nodes[-1]
        if any(map(self._decisions.is_leaving, plans.leaving)):
            self._planned[node] = plans.until
        until = self._planned.get(node, -np.inf)
        if until > now:
            self._decisions.place(pod, node, now, until - now)

    def _options(
        self,
        nodes: CandidateNodes,
        demand: PodDemand,
        evictable: EvictablePods,
        freed: FloatArray,
        priority: int,
    ) -> Iterator[_Option]:
        """The cheapest evictions on each of the first nodes on which evictions help."""
        may_leave = np.flatnonzero(evictable.priority < priority)
        refusals = self._decisions.refusals(_without(nodes, evictable, freed, may_leave), demand)
        helpful = np.flatnonzero(~refusals.is_refused).tolist()
        allocatable = np.maximum([nodes.allocatable(name) for name in RESOURCES], 1).T
        for position in helpful[: limits.PLAN_NODES_COMPARED]:
            here = may_leave[evictable.node[may_leave] == position]
            node = nodes.among(np.array([position]))

            def fits(pods: Sequence[int], node: CandidateNodes = node) -> bool:
                left = _without(node, evictable, freed, np.array(pods, np.intp), position=0)
                return not self._decisions.refusals(left, demand).is_refused.any()

            classes = [CLASSES[code] for code in evictable.class_code[here].tolist()]
            priorities = evictable.priority[here].tolist()
            shares_of_node = (freed[here] / allocatable[position]).max(axis=1).tolist()
            order = here[eviction_order(classes, priorities, shares_of_node)].tolist()
            pods = fewest_victims(order, fits)
            if pods:
                classes = [CLASSES[code] for code in evictable.class_code[pods].tolist()]
                total = cost(classes, evictable.priority[pods].tolist())
                yield _Option(total, position, sorted(pods))


def _least_full_first(nodes: CandidateNodes, demand: PodDemand) -> NodePositions:
    """The positions of the nodes by the fuller of cpu and memory with the pod, least full first.
    Where usage is unknown, requests count."""
    allocatable = np.array([nodes.allocatable(name) for name in RESOURCES], np.float64)
    requested = np.array([nodes.counted(f"request:{name}") for name in RESOURCES])
    used = nodes.usage("usage", RESOURCES).T
    used = np.where(np.isnan(used), requested, used)
    wanted = np.array([[demand.counted.get(f"estimate:{name}", 0)] for name in RESOURCES])
    with np.errstate(divide="ignore", invalid="ignore"):
        fractions = np.where(allocatable > 0, (used + wanted) / allocatable, np.inf)
    return np.argsort(fractions.max(axis=0, initial=0.0), kind="stable")


def _freed_usage(nodes: CandidateNodes, evictable: EvictablePods) -> FloatArray:
    """The usage that leaves a node with each of these pods, (pods, cpu and memory) in millicores
    and bytes: the pod's share of the usage of its class on the node."""
    used = np.full((len(nodes), len(CLASSES), len(RESOURCES)), np.nan)
    for position in np.unique(evictable.node).tolist():
        state = nodes.records(position).state
        for name, code in _CODES.items() if state else ():
            of_class = state.class_usage.get(name, _NOTHING) if state else _NOTHING
            cpu, memory = of_class.cpu_cores, of_class.memory_bytes
            used[position, code] = (np.nan if cpu is None else 1000 * cpu, memory)
    groups = evictable.node * len(CLASSES) + evictable.class_code
    return shares(groups, used.reshape(-1, len(RESOURCES)), _estimates(nodes, evictable))


def _estimates(nodes: CandidateNodes, evictable: EvictablePods) -> IntArray:
    names = nodes.counted_names
    nothing = np.zeros(len(evictable.slots), np.int64)
    columns = [
        evictable.amounts[:, names.index(f"estimate:{name}")]
        if f"estimate:{name}" in names
        else nothing
        for name in RESOURCES
    ]
    estimates: IntArray = np.stack(columns, axis=1)
    return estimates


def _without(
    nodes: CandidateNodes,
    evictable: EvictablePods,
    freed: FloatArray,
    pods: IntArray,
    position: int | None = None,
) -> CandidateNodes:
    """The nodes without some of the evictable pods; `position` is that of the node of all of them,
    where it differs from that in `evictable`."""
    positions = evictable.node[pods] if position is None else np.full(len(pods), position)
    amounts = np.zeros((len(nodes), evictable.amounts.shape[1]), np.int64)
    used = np.zeros((len(nodes), len(RESOURCES)))
    np.add.at(amounts, positions, evictable.amounts[pods])
    np.add.at(used, positions, freed[pods])
    return nodes.reduced(amounts, {name: used[:, index] for index, name in enumerate(RESOURCES)})


def _span_seconds(args: LoadAwareArgs) -> float:
    """The span over which LoadAware aggregates the usage that Prod is judged by; 0 for none."""
    judged_by = select_limits(args, None, is_prod=True)
    if judged_by.kind != AGGREGATED:
        return 0.0
    return float(judged_by.span_seconds or max(SPANS.values()))


def _later_seconds(leaving: Sequence[LeavingPod]) -> float:
    """How much longer a plan of so many pods takes than one of two."""
    return limits.PLAN_PAIR_SECONDS * ((len(leaving) - 1) // 2)


def _leaving_pod(
    nodes: CandidateNodes, evictable: EvictablePods, freed: FloatArray, index: int
) -> LeavingPod:
    return LeavingPod(
        uid=nodes.uid_at(int(evictable.slots[index])),
        pod_class=CLASSES[evictable.class_code[index]],
        cpu_millicores=round(float(freed[index, 0])),
        memory_bytes=round(float(freed[index, 1])),
    )


def _why(pod: PodRecord, leaving: Sequence[LeavingPod], refusal: str) -> str:
    classes = [leaving_pod.pod_class for leaving_pod in leaving]
    counts = ", ".join(
        f"{classes.count(name)} {name} {'pod' if classes.count(name) == 1 else 'pods'}"
        for name in PUSHED_OUT
        if name in classes
    )
    cpu = amount("cpu", sum(leaving_pod.cpu_millicores for leaving_pod in leaving))
    memory = amount("memory", sum(leaving_pod.memory_bytes for leaving_pod in leaving))
    return (
        f"{pod.namespace}/{pod.name} (prod) fits on no node; this one would take it without "
        f"{counts}, which use about {cpu} and {memory}: {refusal}"
    )
