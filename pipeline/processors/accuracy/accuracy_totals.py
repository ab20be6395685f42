"""Add up judged peaks by pool, predictor and resource, with the measures of the backtest.

Each node counts the same in its pool, whatever the number of its peaks, as each machine does in a
backtest: `pipeline.processors.backtest.protocol.over_machines`.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from pipeline.processors.arrays import FloatArray
from pipeline.processors.backtest.protocol import FleetScores, MachineScores, over_machines
from pipeline.processors.model.model_config import RESOURCES
from pipeline.topics.accuracy import AccuracyRecord, Judgement

_SUMS: Final = ("points", "violations", "severity", "savings", "oracle_savings", "unknown")


class PeakGroup(NamedTuple):
    """Peaks of one pool by one predictor for one resource."""

    pool: str
    predictor: str
    resource: str


class AccuracyTotals:
    """Sums over judged peaks, added in the order in which they were published.

    A peak that was published again, after a recovery, counts once.
    """

    def __init__(self) -> None:
        self._newest: dict[str, str] = {}
        self._sums: dict[PeakGroup, dict[str, FloatArray]] = defaultdict(
            lambda: defaultdict(lambda: np.zeros(len(_SUMS)))
        )

    def add(self, record: AccuracyRecord) -> None:
        """Count the peaks of a record."""
        # Times of one form, which sort as text.
        if record.made_at <= self._newest.get(record.node, ""):
            return
        self._newest[record.node] = record.made_at
        for predictor, judgement in record.predictors.items():
            for resource in RESOURCES:
                group = PeakGroup(record.pool, predictor, resource)
                judged: Judgement = getattr(judgement, resource)
                self._sums[group][record.node] += _sums_of(record, judged, resource)

    def scores(self) -> Iterator[tuple[PeakGroup, FleetScores]]:
        """The scores of each group, in order. `points` are its judged peaks, `unknown` is the share
        of peaks that could not be judged."""
        for group in sorted(self._sums):
            points, violations, severity, savings, oracle, unknown = np.array(
                [*self._sums[group].values()]
            ).T
            seen = points + unknown
            machines = MachineScores(
                points=points.astype(np.int64),
                violation=_ratio(violations, points),
                severity=_ratio(severity, violations),
                savings=_ratio(savings, points),
                oracle_savings=_ratio(oracle, points),
                unknown=_ratio(unknown, seen),
            )
            yield group, over_machines(machines)


def _sums_of(record: AccuracyRecord, judged: Judgement, resource: str) -> FloatArray:
    if judged.violated is None:
        return np.array([0.0, 0.0, 0.0, 0.0, 0.0, 1.0])
    requests = getattr(record.requests, resource)
    highest = min(getattr(record.highest, resource), requests)
    oracle = (requests - highest) / requests
    return np.array([1.0, judged.violated, judged.severity, judged.savings, oracle, 0.0])


def _ratio(sums: FloatArray, counts: FloatArray) -> FloatArray:
    means = np.full(len(sums), np.nan)
    np.divide(sums, counts, out=means, where=counts > 0.0)
    return means
