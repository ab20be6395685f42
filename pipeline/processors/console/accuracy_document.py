"""Judged peaks by pool, predictor and resource as one JSON document."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

import msgspec

from pipeline import API_VERSION
from pipeline.processors.accuracy.accuracy_totals import AccuracyTotals
from pipeline.processors.console import limits
from pipeline.topics.hot_node_policy import DEFAULT_POOL

CALIBRATED: Final = "calibrated"
"""The predictor whose pools declare a risk."""


class Accuracy(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted peaks of Prod that were judged in a time, as `springtide accuracy` shows them. Each
    column has one value for each group of peaks; shares are 0 to 1, null is unknown.

    since_seconds: Begin of the time, in seconds since 1970.
    read_at_seconds: End of the time: when the records were read.
    pool: Node pool of the group.
    predictor: Predictor of the group.
    resource: `cpu` or `memory`.
    nodes: Nodes with a judged peak.
    deciding_nodes: Nodes of the pool for which the predictor decides.
    judged: Peaks whose horizon is over, with usage known for 90% of it.
    unjudged: Peaks that could not be judged, because usage or the peak was unknown.
    violation: Share of peaks that usage exceeded, mean over nodes.
    violation_p90: The share that nine of ten nodes stay below.
    declared_risk: The share that the settings of the pool declare; null for predictors without a
      declared risk, and where the planner has stated none for an hour.
    severity: By what share of the usage a peak was too low, when it was.
    savings: Share of the requests of Prod that the predictor gave away.
    possible_savings: The share that could have been given away without a violation.
    judged_until_seconds: When the newest judged peak ended, in seconds since 1970.
    problem: Why the records could not be read again since; empty if the last reading succeeded.
    """

    apiVersion: str = API_VERSION
    kind: Literal["Accuracy"] = "Accuracy"
    since_seconds: int
    read_at_seconds: int
    pool: list[str]
    predictor: list[str]
    resource: list[str]
    nodes: list[int]
    deciding_nodes: list[int]
    judged: list[int]
    unjudged: list[int]
    violation: list[float | None]
    violation_p90: list[float | None]
    declared_risk: list[float | None]
    severity: list[float | None]
    savings: list[float | None]
    possible_savings: list[float | None]
    judged_until_seconds: list[int | None]
    problem: str = ""


class JudgedFleet(NamedTuple):
    """Judged peaks from `since` to `read_at` (Unix times); pool and deciding predictor of each node
    in its newest record, and the declared risk of pools."""

    totals: AccuracyTotals
    deciding: Mapping[str, tuple[str, str]]
    risks: Mapping[str, float]
    since: float
    read_at: float


def accuracy_document(judged: JudgedFleet) -> Accuracy:
    """The document of these peaks."""
    totals, deciding = judged.totals, Counter(judged.deciding.values())
    groups = [*totals.scores()][: limits.GROUPS]
    ends = [totals.judged_until(group) for group, _ in groups]
    return Accuracy(
        since_seconds=round(judged.since),
        read_at_seconds=round(judged.read_at),
        pool=[group.pool or DEFAULT_POOL for group, _ in groups],
        predictor=[group.predictor for group, _ in groups],
        resource=[group.resource for group, _ in groups],
        nodes=[scores.machines for _, scores in groups],
        deciding_nodes=[deciding[group.pool, group.predictor] for group, _ in groups],
        judged=[scores.points for _, scores in groups],
        unjudged=[totals.unjudged(group) for group, _ in groups],
        violation=[_known(scores.violation) for _, scores in groups],
        violation_p90=[_known(scores.violation_p90) for _, scores in groups],
        declared_risk=[
            judged.risks.get(group.pool or DEFAULT_POOL) if group.predictor == CALIBRATED else None
            for group, _ in groups
        ],
        severity=[_known(scores.severity) for _, scores in groups],
        savings=[_known(scores.savings) for _, scores in groups],
        possible_savings=[_known(scores.oracle_savings) for _, scores in groups],
        judged_until_seconds=[None if math.isnan(end) else round(end) for end in ends],
    )


def _known(share: float) -> float | None:
    return None if math.isnan(share) else share
