"""From the state table to an answer: who is refused and why, and how good the others are.

Owes the rest: each answer from one moment of the table; what filter found for a pod is used again
by prioritize while nothing has come in between. It takes columns and hands them to the processors:
all that is decided is decided there. A pod for which a node was best counts there at once.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

import numpy as np

from pipeline.extender import filters
from pipeline.extender.candidate_nodes import (
    CandidateNodes,
    NodePositions,
    PodDemand,
    by_row,
    pod_demand,
    some_of,
)
from pipeline.extender.filters import Refusal
from pipeline.extender.preempt_messages import Victims
from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.loadaware.pod_amounts import Counting
from pipeline.processors.placement import threshold_hours
from pipeline.processors.placement.combine_scores import best_fit, combined, in_steps, one_best
from pipeline.processors.placement.plugin_config import Placement
from pipeline.processors.placement.preemption_order import least_dear
from pipeline.processors.placement.threshold_hours import TIME_SHARED
from pipeline.processors.scorers import registry
from pipeline.processors.scorers.load_aware import LOAD_AWARE
from pipeline.processors.scorers.scheduling_hint import HINT
from pipeline.processors.scorers.scorer import Packing
from pipeline.table import RowArray, Table
from pipeline.table.tentative_pods import TENTATIVE_SECONDS
from pipeline.topics.pods import PodRecord
from pipeline.topics.resource_amounts import MID

BEST_FIT: Final = "BestFit"
CYCLES_KEPT: Final = 32
"""Of so many pods it is remembered what filter found, until they are asked about again."""

CYCLE_SECONDS: Final = 2.0
"""For so long it is of use."""


CycleUse = Literal["reused", "rows", "anew"]
"""Of what filter found all is used again, where the nodes lie (something has come in between), or
nothing."""


class Rules(NamedTuple):
    """What is enabled, and what holds beside it: after how long what is known of a node is stale,
    how fine scores are (0 to `score_steps`), and who counts pods that are in flight."""

    placement: Placement
    stale_after_seconds: float = 180.0
    score_steps: int = 10
    in_flight: Literal["all", "score", "none"] = "all"

    @property
    def counting(self) -> Counting:
        """What of pods must be counted so that these rules can be followed."""
        declared = [
            registry.scorer(name).counts(args)
            for name, args in self.placement.args.items()
            if name != TIME_SHARED
        ]
        resources = [name for counts in declared for name in counts.resources]
        packings = [counts.packing for counts in declared if counts.packing is not None]
        return Counting(
            self.placement.load_aware,
            tuple(dict.fromkeys(("cpu", "memory", *MID, *resources))),
            {name: amount for counts in declared for name, amount in counts.amounts.items()},
            packings[0] if packings else Packing(),
        )


class FilterResult(NamedTuple):
    """The filter's answer: `refused` maps a node to why, `left` are the others, in the order asked
    for; `unknown` many of them passed without being judged by their usage."""

    refused: Mapping[str, Refusal]
    left: Sequence[str]
    nodes: int
    unknown: int

    def counts(self) -> dict[str, int]:
        """How many nodes passed on their data, were refused, or passed without being judged."""
        refused = len(self.refused)
        passed = self.nodes - refused - self.unknown
        return {"passed": passed, "refused": refused, "unknown": self.unknown}


class PrioritizeResult(NamedTuple):
    """The scores of the nodes in the order asked for, (nodes,): `steps` of 0 to the rules'
    `score_steps`, as they were 0 to 100 by plugin, and in `percent` all together; `cycle` says what
    of that which filter found was used again."""

    steps: IntArray
    percent: IntArray
    plugins: Mapping[str, IntArray]
    cycle: CycleUse = "anew"

    @property
    def scores(self) -> list[int]:
        """The steps as numbers."""
        found: list[int] = self.steps.tolist()
        return found

    @property
    def is_by_requests(self) -> bool:
        """Whether usage was known of no node, and some plugin was replaced for that."""
        return BEST_FIT in self.plugins

    @property
    def best(self) -> int | None:
        """The place of the best node, the first of several; None for none."""
        return int(self.percent.argmax()) if len(self.percent) else None


class ExplainResult(NamedTuple):
    """What would be said of the nodes `names`, as of one moment: `refused` by place; `kept` are the
    places of the others, which `scored` has in this order. `is_unjudged` is where one would pass
    without being judged by its usage; `ages` are seconds, NaN for none; arrays are (nodes,). A pod
    that `is_exempt` passes everywhere."""

    names: Sequence[str]
    refused: Mapping[int, Refusal]
    is_unjudged: BoolArray
    ages: FloatArray
    is_stale: BoolArray
    kept: NodePositions
    scored: PrioritizeResult
    is_exempt: bool


class _Ordered(NamedTuple):
    """The nodes `names` of a question, `moment` in the order of the table, where a column is read
    from one end to the other; `places` (nodes,) are where each lies among the names."""

    names: Sequence[str]
    moment: CandidateNodes
    places: NodePositions

    def only(self, kept: NodePositions) -> "_Ordered":
        """These of them, by their places in the moment."""
        if len(kept) == len(self.places):
            return self
        stays = np.zeros(len(self.places), np.bool_)
        stays[self.places[kept]] = True
        names = some_of(self.names, np.flatnonzero(stays))
        places = (np.cumsum(stays) - 1)[self.places[kept]]
        return _Ordered(names, self.moment.among(kept), places)

    def among(self, names: Sequence[str]) -> "_Ordered | None":
        """These of them, in this order; None if one of these was not asked about."""
        if names is self.names or list(names) == list(self.names):
            return self
        place_of = {name: place for place, name in enumerate(self.names)}
        if not all(name in place_of for name in names):
            return None
        here = np.empty_like(self.places)
        here[self.places] = np.arange(len(here))
        found = here[[place_of[name] for name in names]]
        return _Ordered(names, self.moment.among(found), np.arange(len(found)))

    def as_asked(self, values: IntArray) -> IntArray:
        """Values of the moment's nodes in the order of the names."""
        found = np.empty_like(values)
        found[self.places] = values
        return found


class _Cycle(NamedTuple):
    """What was found of a pod, and when: by the table's `version` and `names_version`."""

    asked: PodDemand
    nodes: _Ordered
    versions: tuple[int, int]


class Decisions:
    """Answers over one table, whose pods are counted as `rules.counting` has it."""

    def __init__(self, table: Table, rules: Rules) -> None:
        self._table = table
        self.rules = rules
        self._counting = rules.counting
        self._cycles: OrderedDict[str, _Cycle] = OrderedDict()

    def filter(self, pod: PodRecord, names: Sequence[str], now: float) -> FilterResult:
        """Which of `names` (each once) may not take the pod. It is on its way to none any more."""
        self._table.withdraw(pod.uid)
        nodes, asked = self._ordered(names, now), self.asked(pod)
        refused = self.refused(nodes.moment, asked)
        by_place = {int(nodes.places[at]): refusal for at, refusal in refused.items()}
        found = {
            names[place]: refusal._replace(reason=f"{names[place]}: {refusal.reason}")
            for place, refusal in sorted(by_place.items())
        }
        left = nodes.only(_others(refused, len(names)))
        if pod.uid:
            self._remember(pod.uid, asked, left)
        unknown = int(self._is_unjudged(nodes.moment, refused).sum())
        return FilterResult(found, left.names, len(names), unknown)

    def prioritize(self, pod: PodRecord, names: Sequence[str], now: float) -> PrioritizeResult:
        """How good `names` (each once) are for the pod."""
        asked, nodes, cycle = self._recall(pod, names, now)
        return self._scored(nodes, asked)._replace(cycle=cycle)

    def explain(
        self, pod: PodRecord, names: Sequence[str], now: float, *, is_exempt: bool = False
    ) -> ExplainResult:
        """What filter would say of `names` (each once), and prioritize of those that pass. Nothing
        comes of it: no pod is placed, withdrawn or remembered. A pod that `is_exempt` passes
        everywhere."""
        with self._table.aside(pod.uid, now):
            moment, asked = self.moment(names, now), self.asked(pod)
            refused = {} if is_exempt else self.refused(moment, asked)
            kept = _others(refused, len(names))
            return ExplainResult(
                names=names,
                refused=refused,
                is_unjudged=self._is_unjudged(moment, refused),
                ages=moment.ages(),
                is_stale=~self._table.fresh(moment.rows, now, self.rules.stale_after_seconds),
                kept=kept,
                scored=self._scored(_as_asked(moment.among(kept)), asked),
                is_exempt=is_exempt,
            )

    def _scored(self, nodes: _Ordered, asked: PodDemand) -> PrioritizeResult:
        moment = nodes.moment
        placement = self.rules.placement
        found: dict[str, IntArray] = {}
        scores: list[IntArray] = []
        for plugin, _ in placement.scores:
            name = plugin if self._knows(plugin, moment) else BEST_FIT
            if name == BEST_FIT:
                found.setdefault(BEST_FIT, self._best_fit(moment, asked))
            else:
                found[name] = registry.scorer(name).score(moment, asked, placement.args[name])
            scores.append(found[name])
        weights = [weight for _, weight in placement.scores]
        percent = combined(scores, weights) if scores else np.zeros(len(moment), np.int64)
        percent = nodes.as_asked(percent)
        steps = one_best(in_steps(percent, self.rules.score_steps), percent)
        plugins = {name: nodes.as_asked(scores) for name, scores in found.items()}
        return PrioritizeResult(steps, percent, plugins)

    def preempt(self, pod: PodRecord, victims: Mapping[str, Victims], now: float) -> list[str]:
        """On which of these nodes evicting their victims would help: where the pod may be once they
        are gone, and of these where that breaks the fewest disruption budgets, and then where the
        dearest is cheapest, Batch before Mid before Prod."""
        names, pods = tuple(victims), self._table.pods
        moment = self.moment(names, now).without([of.uids for of in victims.values()])
        refused = self.refused(moment, self.asked(pod))
        return least_dear(
            {
                name: (of.violations, [pods.class_of(uid) for uid in of.uids])
                for place, (name, of) in enumerate(victims.items())
                if place not in refused
            }
        )

    def place(
        self, pod: PodRecord, node: str, now: float, seconds: float = TENTATIVE_SECONDS
    ) -> None:
        """The pod will most likely be on this node within so many seconds: the next one is to know
        of it."""
        if pod.uid and self.rules.in_flight != "none":
            self._table.place(pod, node, now, seconds)

    def is_leaving(self, uid: str) -> bool:
        """Whether a pod that was there is gone, or about to go."""
        return self._table.pods.is_leaving(uid)

    def moment(self, names: Sequence[str], now: float) -> CandidateNodes:
        """These nodes (each once) as they are now."""
        return CandidateNodes(self._table, names, now, in_flight=self.rules.in_flight != "none")

    def asked(self, pod: PodRecord) -> PodDemand:
        """What would count of this pod."""
        return pod_demand(pod, self._counting)

    def refused(self, moment: CandidateNodes, asked: PodDemand) -> dict[int, Refusal]:
        """By place, the first reason that counts: one that evicting others would not cure."""
        refused: dict[int, Refusal] = {}
        for place, refusal in self._refusals(moment, asked):
            if place not in refused or (refused[place].curable and not refusal.curable):
                refused[place] = refusal
        return refused

    def _refusals(self, moment: CandidateNodes, asked: PodDemand) -> Iterator[tuple[int, Refusal]]:
        placement = self.rules.placement
        if HINT in placement.filters:
            yield from filters.hinted(moment, asked)
        if LOAD_AWARE in placement.filters:
            in_flight = self.rules.in_flight == "all"
            args = placement.load_aware
            if TIME_SHARED in placement.filters:
                args = threshold_hours.in_force(placement.args[TIME_SHARED], args, moment.now)
            yield from filters.load_aware(moment, asked, args, in_flight=in_flight)
        yield from filters.reserved(moment, asked)
        yield from filters.certain_mid(moment, asked, self.rules.stale_after_seconds)

    def _is_unjudged(self, moment: CandidateNodes, refused: Mapping[int, Refusal]) -> BoolArray:
        known = moment.is_fresh(self.rules.placement.load_aware.node_metric_expiration_seconds or 0)
        known &= moment.has_usage("usage", ("cpu", "memory"))
        known[list(refused)] = True
        found: BoolArray = ~known
        return found

    def _knows(self, plugin: str, moment: CandidateNodes) -> bool:
        """Whether the plugin has what it goes by of any of these nodes: usage that is not too old
        for it, if it goes by usage."""
        args = self.rules.placement.args[plugin]
        seconds = registry.scorer(plugin).expiration_seconds(args)
        return seconds is None or bool(moment.is_fresh(seconds).any())

    def _best_fit(self, moment: CandidateNodes, asked: PodDemand) -> IntArray:
        names = ("cpu", "memory")
        return best_fit(
            {name: moment.allocatable(name) for name in names},
            {name: moment.counted(f"request:{name}") for name in names},
            {name: asked.counted[f"request:{name}"] for name in names},
        )

    def _ordered(self, names: Sequence[str], now: float) -> _Ordered:
        rows = self._table.lookup(names)
        places = by_row(rows)
        return _Ordered(names, self._of_rows(some_of(names, places), rows[places], now), places)

    def _of_rows(self, names: Sequence[str], rows: RowArray, now: float) -> CandidateNodes:
        in_flight = self.rules.in_flight != "none"
        return CandidateNodes(self._table, names, now, in_flight=in_flight, rows=rows)

    def _remember(self, uid: str, asked: PodDemand, nodes: _Ordered) -> None:
        versions = (self._table.version, self._table.names_version)
        self._cycles[uid] = _Cycle(asked, nodes, versions)
        self._cycles.move_to_end(uid)
        now = nodes.moment.now
        while len(self._cycles) > CYCLES_KEPT or self._is_over(next(iter(self._cycles)), now):
            self._cycles.popitem(last=False)

    def _is_over(self, uid: str, now: float) -> bool:
        return not 0 <= now - self._cycles[uid].nodes.moment.now < CYCLE_SECONDS

    def _recall(
        self, pod: PodRecord, names: Sequence[str], now: float
    ) -> tuple[PodDemand, _Ordered, CycleUse]:
        """What filter found of this pod, of the nodes that are still asked for: other extenders may
        have refused some. If anything came in since, all but their rows is looked at anew: what
        filter did not look at would be of another moment."""
        cycle = self._cycles.pop(pod.uid, None)
        if self._table.withdraw(pod.uid):
            # It counts on the node that was left alone, which somebody asks about all the same.
            cycle = None
        if cycle is not None and cycle.asked.pod != pod:
            cycle = None
        if cycle is None or not 0 <= now - cycle.nodes.moment.now < CYCLE_SECONDS:
            return self.asked(pod), self._ordered(names, now), "anew"
        version, names_version = cycle.versions
        found = cycle.nodes.among(names)
        if found is None or names_version != self._table.names_version:
            return cycle.asked, self._ordered(names, now), "anew"
        if version != self._table.version:
            moment = self._of_rows(found.moment.names, found.moment.rows, now)
            return cycle.asked, found._replace(moment=moment), "rows"
        return cycle.asked, found, "reused"


def _as_asked(moment: CandidateNodes) -> _Ordered:
    """These nodes in the order that they are in."""
    return _Ordered(moment.names, moment, np.arange(len(moment)))


def _others(refused: Mapping[int, Refusal], nodes: int) -> NodePositions:
    """The places of those that are not refused."""
    kept = np.ones(nodes, np.bool_)
    kept[list(refused)] = False
    return np.flatnonzero(kept)
