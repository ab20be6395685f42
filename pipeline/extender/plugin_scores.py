"""Score nodes by the enabled plugins. Plugins are foreign code: a failure is counted and logged,
and best fit by requests replaces its scores.
"""

from typing import Final

import numpy as np

from pipeline.extender import limits
from pipeline.extender.candidate_nodes import CandidateNodes
from pipeline.logs import get_logger
from pipeline.metrics import counter
from pipeline.processors.arrays import BoolArray, IntArray
from pipeline.processors.placement.combine_scores import best_fit, weighted_mean
from pipeline.processors.placement.enabled_plugins import Placement
from pipeline.processors.scorers.doubtful_usage import cap_doubtful
from pipeline.processors.scorers.registry import SCORERS
from pipeline.processors.scorers.rounding import MAX_SCORE
from pipeline.processors.scorers.scorer import PodAmount, PodDemand
from pipeline.topics.pods import CountedPod, PodRecord

BEST_FIT: Final = "BestFit"
PLUGIN_FAILURES: Final = counter(
    "decisions_plugin_failures",
    "Scores that a plugin failed to compute, which requests replaced, and amounts of pods, which "
    "count as 0.",
    ["plugin"],
)

_log = get_logger(__name__)


def guard_amount(plugin: str, amount: PodAmount) -> PodAmount:
    """Make a plugin's amount 0 for pods for which it fails: else no pod could be read."""

    def guarded(pod: CountedPod | PodRecord) -> int:
        try:
            return int(amount(pod))
        except Exception:  # foreign code may raise anything
            PLUGIN_FAILURES.labels(plugin).inc()
            return 0

    return guarded


class PluginScores:
    """The scores of the plugins that `placement` enables."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._scorers = {name: SCORERS.get(name) for name, _ in placement.scores}
        self._logged: dict[str, float] = {}  # plugin -> time of its last logged failure

    def weighted(
        self, nodes: CandidateNodes, demand: PodDemand
    ) -> tuple[IntArray, dict[str, IntArray]]:
        """Scores of 0 to 100 over all plugins and by plugin, (nodes,)."""
        by_plugin: dict[str, IntArray] = {}
        scores: list[IntArray] = []
        weights: list[int] = []
        for plugin, weight in self._placement.scores:
            name, of_plugin = self._scores_of(plugin, nodes, demand)
            if of_plugin is not None:
                by_plugin[name] = of_plugin
                scores.append(of_plugin)
                weights.append(weight)
        percent = weighted_mean(scores, weights) if scores else np.zeros(len(nodes), np.int64)
        return percent, by_plugin

    def _scores_of(
        self, plugin: str, nodes: CandidateNodes, demand: PodDemand
    ) -> tuple[str, IntArray | None]:
        """The name and scores of a plugin, None if it abstains; those of best fit if it goes by
        usage and that of all nodes is unknown or too old, or if it fails. Failures are counted, and
        logged once a minute."""
        scorer, args = self._scorers[plugin], self._placement.args[plugin]
        try:
            seconds = scorer.expiration_seconds(args)
            if seconds is not None and not np.count_nonzero(_are_judged(nodes, seconds)):
                return self._best_fit(nodes, demand)
            if not scorer.knows(nodes, args):
                return plugin, None
            scores = scorer.score(nodes, demand, args)
            if np.shape(scores) != (len(nodes),):
                raise ValueError(f"{np.shape(scores)} is not the shape of {len(nodes)} scores")
            # Scores out of range would garble the reply, or weigh more than all other plugins.
            if not _are_scores(scores):
                raise ValueError(f"the scores are not whole numbers from 0 to {MAX_SCORE}")
            if seconds is not None:
                scores = cap_doubtful(nodes, scores, seconds)
        except Exception:  # foreign code may raise anything
            PLUGIN_FAILURES.labels(plugin).inc()
            if not 0 <= nodes.now - self._logged.get(plugin, -np.inf) < limits.FAILURE_LOG_SECONDS:
                self._logged[plugin] = nodes.now
                _log.exception("scoring plugin failed: disable or update it", plugin=plugin)
            return self._best_fit(nodes, demand)
        return plugin, scores

    def _best_fit(self, nodes: CandidateNodes, demand: PodDemand) -> tuple[str, IntArray]:
        """Best fit by requests or estimates, whichever is more: estimates count limits, and pods
        without either, which would pile up on the fullest node."""
        names, estimated = ("cpu", "memory"), self._placement.load_aware.resources
        kinds = {name: ("request", "estimate")[: 1 + (name in estimated)] for name in names}
        return BEST_FIT, best_fit(
            {name: nodes.allocatable(name) for name in names},
            {
                name: np.maximum.reduce([nodes.counted(f"{kind}:{name}") for kind in kinds[name]])
                for name in names
            },
            {name: max(demand.counted[f"{kind}:{name}"] for kind in kinds[name]) for name in names},
        )


def _are_judged(nodes: CandidateNodes, seconds: float) -> BoolArray:
    """Where usage of cpu or memory is known and younger than this, (nodes,)."""
    return nodes.cached(
        f"judged {seconds}",
        lambda: (
            (nodes.has_usage("usage", ("cpu", "memory")) | nodes.is_new()) & nodes.is_fresh(seconds)
        ),
    )


def _are_scores(scores: IntArray) -> bool:
    """Whether an array has whole numbers from 0 to 100 only."""
    if not (isinstance(scores, np.ndarray) and scores.dtype.kind == "i"):
        return False
    return not np.logical_or.reduce((scores < 0) | (scores > MAX_SCORE))
