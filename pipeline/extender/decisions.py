"""Filter, score and explain nodes for a pod from the state table.

Each decision reads the table at one moment. `prioritize` reuses the columns that `filter` read for
the same pod while the table has not changed: reading ten thousand rows is most of an answer. The
pod then counts on the best node until its bind is seen, so that the next pod finds the room taken.
The arithmetic is in `pipeline.processors`.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from typing import Literal, NamedTuple

import numpy as np

from pipeline.extender import filters, limits
from pipeline.extender.candidate_nodes import CandidateNodes, NodePositions
from pipeline.extender.plugin_scores import BEST_FIT, PluginScores, guard_amount
from pipeline.extender.preempt_messages import MetaVictims
from pipeline.extender.refusals import Refusals
from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.descheduling.left_nodes import LeftNodes
from pipeline.processors.kubernetes.top_owner import workload_of
from pipeline.processors.loadaware.node_usage import is_unknown
from pipeline.processors.loadaware.pod_amounts import Counting, pod_demand
from pipeline.processors.overcommit.offer_bounds import BOUNDED
from pipeline.processors.placement.combine_scores import (
    scale_to_steps,
    separate_best,
)
from pipeline.processors.placement.enabled_plugins import Placement
from pipeline.processors.placement.preemption_order import cheapest_victims
from pipeline.processors.placement.threshold_hours import TIME_SHARED
from pipeline.processors.scorers.registry import SCORERS
from pipeline.processors.scorers.scheduling_hint import HINT
from pipeline.processors.scorers.scorer import Packing, PodDemand
from pipeline.table import Table
from pipeline.table.data_outages import DataOutages
from pipeline.table.limits import TENTATIVE_SECONDS
from pipeline.topics.node_state import Dispute
from pipeline.topics.pods import PodRecord

CycleReuse = Literal["reused", "rows", "anew"]
"""What prioritize used of filter's work: all of it, only the rows of the nodes (the table has
changed), or nothing."""


class Rules(NamedTuple):
    """The enabled plugins, and what applies to all: the age from which data of a node is stale, the
    highest score (`score_steps`), and who counts pods in flight: filter and scores, scores, or
    none."""

    placement: Placement
    stale_after_seconds: float = 180.0
    score_steps: int = 10
    in_flight: Literal["all", "score", "none"] = "all"

    @property
    def counting(self) -> Counting:
        """The amounts of pods that the table must sum for these rules."""
        declared = {
            name: SCORERS.get(name).counts(args)
            for name, args in self.placement.args.items()
            if name != TIME_SHARED
        }
        resources = [name for counts in declared.values() for name in counts.resources]
        packings = [counts.packing for counts in declared.values() if counts.packing is not None]
        return Counting(
            self.placement.load_aware,
            tuple(dict.fromkeys(("cpu", "memory", *BOUNDED, *resources))),
            {
                name: guard_amount(plugin, amount)
                for plugin, counts in declared.items()
                for name, amount in counts.amounts.items()
            },
            packings[0] if packings else Packing(),
        )


class FilterResult(NamedTuple):
    """The nodes that `passed` and the `refusals` of the nodes `names`, both in the order of the
    request. Of those that passed, `unknown` nodes were not judged for lack of a young window, and
    `estimated` nodes were judged by estimates where usage of a resource is unknown. `nodes` and
    `demand` are what was judged."""

    names: Sequence[str]
    passed: Sequence[str]
    refusals: Refusals
    unknown: int
    estimated: int
    nodes: CandidateNodes
    demand: PodDemand

    @property
    def refused(self) -> list[str]:
        """The names of the refused nodes."""
        return [*compress(self.names, self.refusals.is_refused.tolist())]

    def counts(self) -> dict[str, int]:
        """How many nodes passed on their data, were refused, or passed as unknown or estimated."""
        return {
            "passed": len(self.passed) - self.unknown - self.estimated,
            "refused": len(self.names) - len(self.passed),
            "unknown": self.unknown,
            "estimated": self.estimated,
        }

    def details(self, most: int) -> dict[str, str]:
        """The numbers behind the first refusals, by node."""
        positions = np.flatnonzero(self.refusals.is_refused)[:most].tolist()
        return {self.names[position]: self.refusals.detail(position) for position in positions}


class PrioritizeResult(NamedTuple):
    """Scores of the nodes in the order of the request, (nodes,): `steps` of 0 to the rules'
    `score_steps`, `percent` of 0 to 100 over all plugins, and those of 0 to 100 by plugin."""

    steps: IntArray
    percent: IntArray
    plugins: Mapping[str, IntArray]
    cycle: CycleReuse = "anew"

    @property
    def is_by_requests(self) -> bool:
        """Whether best fit replaced a plugin, because usage of no node is known or it failed."""
        return BEST_FIT in self.plugins

    @property
    def best(self) -> int | None:
        """The position of the best node, the first of equal ones; None without nodes."""
        return int(self.percent.argmax()) if len(self.percent) else None


class ExplainResult(NamedTuple):
    """What filter and prioritize would decide about the nodes `names`.

    `passed` are the positions of the nodes without refusal, in whose order `scores` are.
    `is_fresh` is true where a node has a window that is young enough to judge it. Where
    `is_estimated` (nodes, `resources`), usage is unknown and estimates count. `ages` are seconds
    (NaN: no window); a node that `is_new` never had one, and counts as empty. Other arrays are
    (nodes,). `disputes` about usage are by position. A pod that `is_exempt` passes everywhere.
    """

    names: Sequence[str]
    refusals: Refusals
    is_fresh: BoolArray
    is_estimated: BoolArray
    resources: Sequence[str]
    ages: FloatArray
    is_stale: BoolArray
    is_new: BoolArray
    passed: NodePositions
    scores: PrioritizeResult
    disputes: Mapping[int, Dispute]
    is_exempt: bool


class _Cycle(NamedTuple):
    """What filter worked out for a pod, and `version` and `names_version` of the table then."""

    demand: PodDemand
    nodes: CandidateNodes
    versions: tuple[int, int]


class Decisions:
    """Decisions over one table, whose pods are counted by `rules.counting`. Nodes that `left` has
    for the workload of a pod are a last resort."""

    def __init__(self, table: Table, rules: Rules, left: LeftNodes | None = None) -> None:
        self._table = table
        self._left = LeftNodes() if left is None else left
        self.rules = rules
        expiration = rules.placement.expiration_seconds(rules.stale_after_seconds)
        self.outages = DataOutages(table, expiration)
        self._counting = rules.counting
        self.plugin_scores = PluginScores(rules.placement)
        self._cycles: OrderedDict[str, _Cycle] = OrderedDict()

    def filter(self, pod: PodRecord, names: Sequence[str], now: float) -> FilterResult:
        """Decide which of `names` (each once) may not take the pod. It counts on no node after."""
        self._table.withdraw(pod.uid)
        nodes, demand = self.candidates(names, now), self.demand(pod)
        refusals = self.refusals(nodes, demand)
        passes = ~refusals.is_refused
        passed = nodes.among(np.flatnonzero(passes))
        if pod.uid:
            self._remember(pod.uid, demand, passed)
        is_fresh, is_estimated = self._knowledge(nodes)
        unknown = int((passes & ~is_fresh).sum())
        estimated = int((passes & np.logical_or.reduce(is_estimated, axis=1)).sum())
        by_name = refusals.take(nodes.positions)
        return FilterResult(names, passed.requested, by_name, unknown, estimated, nodes, demand)

    def prioritize(self, pod: PodRecord, names: Sequence[str], now: float) -> PrioritizeResult:
        """Score `names` (each once) for the pod."""
        demand, nodes, cycle = self._recall(pod, names, now)
        return self.scores(nodes, demand)._replace(cycle=cycle)

    def explain(
        self, pod: PodRecord, names: Sequence[str], now: float, *, is_exempt: bool = False
    ) -> ExplainResult:
        """What filter would decide about `names` (each once), and prioritize about those that pass.
        Has no effect: the pod is neither placed nor withdrawn nor remembered."""
        with self._table.set_aside(pod.uid, now):
            nodes, demand = self.candidates(names, now), self.demand(pod)
            refusals = Refusals.none(len(nodes)) if is_exempt else self.refusals(nodes, demand)
            passes = ~refusals.is_refused
            is_fresh, is_estimated = self._knowledge(nodes)
            is_stale = ~self._table.fresh(nodes.rows, now, self.rules.stale_after_seconds)
            return ExplainResult(
                names=names,
                refusals=refusals.take(nodes.positions),
                is_fresh=nodes.in_requested_order(is_fresh),
                is_estimated=nodes.in_requested_order(is_estimated),
                resources=self.rules.placement.load_aware.resources,
                ages=nodes.in_requested_order(nodes.ages()),
                is_stale=nodes.in_requested_order(is_stale),
                is_new=nodes.in_requested_order(nodes.is_new()),
                passed=np.flatnonzero(nodes.in_requested_order(passes)),
                scores=self.scores(nodes.among(np.flatnonzero(passes)), demand),
                disputes=_disputes(nodes),
                is_exempt=is_exempt,
            )

    def scores(self, nodes: CandidateNodes, demand: PodDemand) -> PrioritizeResult:
        """The scores of nodes for a pod, in the order in which the nodes were requested."""
        percent, plugins = self.plugin_scores.weighted(nodes, demand)
        percent = nodes.in_requested_order(percent)
        steps = separate_best(scale_to_steps(percent, self.rules.score_steps), percent)
        plugins = {name: nodes.in_requested_order(scores) for name, scores in plugins.items()}
        return PrioritizeResult(steps, percent, plugins)

    def preempt(self, pod: PodRecord, victims: Mapping[str, MetaVictims], now: float) -> list[str]:
        """The nodes on which evicting these victims would help: those where the pod may run without
        them, of these those with the fewest violated disruption budgets, and of these those with
        the cheapest dearest victim, Batch before Mid before Prod."""
        names, pods = tuple(victims), self._table.pods
        nodes = self.candidates(names, now)
        nodes = nodes.without_pods([victims[name].uids for name in nodes.names])
        refused = {*compress(nodes.names, self.refusals(nodes, self.demand(pod)).is_refused)}
        return cheapest_victims(
            {
                name: (of_node.num_pdb_violations, [pods.class_of(uid) for uid in of_node.uids])
                for name, of_node in victims.items()
                if name not in refused
            }
        )

    def place(
        self, pod: PodRecord, node: str, now: float, seconds: float = TENTATIVE_SECONDS
    ) -> None:
        """Count the pod on the node that it will most likely get, for so many seconds."""
        if pod.uid and self.rules.in_flight != "none":
            self._table.place(pod, node, now, seconds)

    def is_leaving(self, uid: str) -> bool:
        """Whether a pod is deleted, or is being deleted."""
        return self._table.pods.is_leaving(uid)

    def candidates(self, names: Sequence[str], now: float) -> CandidateNodes:
        """The nodes `names` (each once) at this moment."""
        return CandidateNodes(self._table, names, now, in_flight=self.rules.in_flight != "none")

    def demand(self, pod: PodRecord) -> PodDemand:
        """The amounts of this pod that the rules count."""
        return pod_demand(pod, self._counting)

    def refusals(self, nodes: CandidateNodes, demand: PodDemand) -> Refusals:
        """The refusals of all filters: of each node the first that evictions cannot cure, else the
        first."""
        refusals = self.own_refusals(nodes, demand)
        stale_after = self.rules.stale_after_seconds
        refusals = refusals.joined(filters.hot(nodes, demand, refusals, stale_after))
        left_at = self._left.of_workload(str(workload_of(demand.pod) or ""), nodes.now)
        return refusals.joined(filters.left(nodes, demand, refusals, left_at, stale_after))

    def own_refusals(self, nodes: CandidateNodes, demand: PodDemand) -> Refusals:
        """The refusals of the filters that judge each node by itself, whichever others there are.
        If any node passes these, one passes all filters: the others refuse a last resort only while
        another node passes."""
        refusals = Refusals.none(len(nodes))
        for of_filter in self._filtered(nodes, demand):
            refusals = refusals.joined(of_filter)
        return refusals

    def _filtered(self, nodes: CandidateNodes, demand: PodDemand) -> Iterator[Refusals]:
        placement = self.rules.placement
        if HINT in placement.filters:
            yield filters.hinted(nodes, demand)
        if (args := placement.load_aware_filter(nodes.now)) is not None:
            in_flight = self.rules.in_flight == "all"
            outage = self.outages.usage(nodes.now)
            yield filters.load_aware(nodes, demand, args, in_flight=in_flight, outage=outage)
        yield filters.reserved(nodes, demand)
        yield filters.offered(nodes, demand, self.rules.stale_after_seconds)

    def _knowledge(self, nodes: CandidateNodes) -> tuple[BoolArray, BoolArray]:
        """Where nodes have a young window, (nodes,), and where they have one without usage of a
        resource of LoadAware, (nodes, resources)."""
        args = self.rules.placement.load_aware
        is_fresh = nodes.is_fresh(args.node_metric_expiration_seconds or 0)
        return is_fresh, is_fresh[:, None] & is_unknown(nodes, args)

    def _remember(self, uid: str, demand: PodDemand, nodes: CandidateNodes) -> None:
        versions = (self._table.version, self._table.names_version)
        self._cycles[uid] = _Cycle(demand, nodes, versions)
        self._cycles.move_to_end(uid)
        while len(self._cycles) > limits.CYCLES or self._is_over(
            next(iter(self._cycles.values())), nodes.now
        ):
            self._cycles.popitem(last=False)

    @staticmethod
    def _is_over(cycle: _Cycle, now: float) -> bool:
        return not 0 <= now - cycle.nodes.now < limits.CYCLE_SECONDS

    def _recall(
        self, pod: PodRecord, names: Sequence[str], now: float
    ) -> tuple[PodDemand, CandidateNodes, CycleReuse]:
        """What filter worked out for this pod and the same nodes. After a change of the table the
        columns are read again: those that filter did not read would be of another moment."""
        cycle = self._cycles.pop(pod.uid, None)
        if self._table.withdraw(pod.uid) or cycle is None or cycle.demand.pod != pod:
            # A pod that was placed after filter counted on a node: the table has changed.
            cycle = None
        if cycle is None or self._is_over(cycle, now):
            return self.demand(pod), self.candidates(names, now), "anew"
        version, names_version = cycle.versions
        nodes = cycle.nodes
        is_same = names is nodes.requested or [*names] == [*nodes.requested]
        if names_version != self._table.names_version or not is_same:
            # Another extender may have refused some of the nodes.
            return cycle.demand, self.candidates(names, now), "anew"
        if version != self._table.version:
            return cycle.demand, nodes.read_again(now), "rows"
        return cycle.demand, nodes, "reused"


def _disputes(nodes: CandidateNodes) -> dict[int, Dispute]:
    """The disputes about usage of the nodes, by position in the request."""
    positions = np.flatnonzero(nodes.column("disputed")).tolist()
    states = [nodes.records(position).state for position in positions]
    return {
        int(nodes.order[position]): state.dispute
        for position, state in zip(positions, states, strict=True)
        if state is not None and state.dispute is not None
    }
