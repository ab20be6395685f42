"""From the state table to an answer: who is refused and why, and how good the others are.

Owes the rest: both answers for the nodes of one question, from one moment of the table. It takes
the columns and hands them to the processors; all that is decided is decided there.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pipeline.processors.leastused import extender_score, least_used
from pipeline.processors.thresholds import (
    RESOURCES,
    FloatArray,
    UsageVerdict,
    filter_by_usage,
    refusal,
)
from pipeline.settings import ExtenderSettings
from pipeline.table import Table
from pipeline.table.columns import RowArray

_UNITS: Mapping[str, str] = {"cpu": "cpu_cores", "memory": "memory_bytes"}


class Policy(NamedTuple):
    """Thresholds in percent of allocatable by resource (0: off), and when a window is stale."""

    thresholds_percent: Mapping[str, float]
    stale_after_seconds: float

    @classmethod
    def of(cls, settings: ExtenderSettings) -> "Policy":
        return cls(
            {"cpu": settings.cpu_threshold_percent, "memory": settings.memory_threshold_percent},
            settings.stale_after_seconds,
        )


class Judgement(NamedTuple):
    """The filter's answer for `names`: `refused` maps a node to the reason."""

    refused: Mapping[str, str]
    verdict: UsageVerdict

    def counts(self) -> dict[str, int]:
        """How many nodes passed on their data, were refused, or passed without being judged."""
        known, refused = int(self.verdict.known.sum()), len(self.refused)
        unjudged = len(self.verdict.known) - known
        return {"passed": known - refused, "refused": refused, "unknown": unjudged}


def judge(table: Table, names: Sequence[str], now: float, policy: Policy) -> Judgement:
    """Filter `names` (each once) by the usage of their last window."""
    rows = table.lookup(names)
    ages = table.ages(rows, now)
    used, allocatable = _amounts(table, rows)
    thresholds = policy.thresholds_percent
    fresh = table.fresh(rows, now, policy.stale_after_seconds)
    verdict = filter_by_usage(used, allocatable, fresh, thresholds_percent=thresholds)
    refused = {
        names[place]: refusal(
            names[place],
            verdict,
            place,
            thresholds_percent=thresholds,
            age_seconds=float(ages[place]),
        )
        for place in verdict.refused.nonzero()[0].tolist()
    }
    return Judgement(refused, verdict)


def score(table: Table, names: Sequence[str], now: float, policy: Policy) -> list[int]:
    """0 to 10 for each of `names`: least used is best; unknown and stale nodes get 0."""
    rows = table.lookup(names)
    fresh = table.fresh(rows, now, policy.stale_after_seconds)
    scores: list[int] = (extender_score(least_used(*_amounts(table, rows))) * fresh).tolist()
    return scores


def _amounts(table: Table, rows: RowArray) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
    used = {name: table[f"usage_{_UNITS[name]}"][rows] for name in RESOURCES}
    allocatable = {name: table[f"allocatable_{_UNITS[name]}"][rows] for name in RESOURCES}
    return used, allocatable
