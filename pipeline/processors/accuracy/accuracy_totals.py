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
from pipeline.times import parse_time
from pipeline.topics.accuracy import AccuracyRecord, Judgement

_SUMS: Final = ("points", "violations", "severity", "savings", "oracle_savings", "unknown")


class PeakGroup(NamedTuple):
    """Peaks of one pool by one predictor for one resource."""

    pool: str
    predictor: str
    resource: str


class NodeAccuracy(NamedTuple):
    """The judged peaks of a node by one predictor.

    `cpu` and `memory` are the shares of peaks that usage exceeded, NaN if none was judged.
    `judged_until` (Unix seconds) is when the newest judged peak ended, `horizon_seconds` after it
    was predicted.
    """

    cpu: float
    memory: float
    judged_until: float
    horizon_seconds: float


class _Newest(NamedTuple):
    """The end of the newest judged peak, Unix seconds, and its horizon."""

    judged_until: float = -np.inf
    horizon_seconds: float = np.nan


class AccuracyTotals:
    """Sums over judged peaks, added in the order in which they were published.

    A peak that was published again, after a recovery, counts once.
    """

    def __init__(self) -> None:
        self._newest: dict[str, str] = {}
        self._sums: dict[PeakGroup, dict[str, FloatArray]] = defaultdict(
            lambda: defaultdict(lambda: np.zeros(len(_SUMS)))
        )
        self._judged: dict[tuple[PeakGroup, str], _Newest] = {}

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
                if _is_judged(record, judged, resource):
                    newest = _Newest(parse_time(record.as_of), record.horizon_seconds)
                    self._judged[group, record.node] = newest

    def unjudged(self, group: PeakGroup) -> int:
        """How many peaks of a group could not be judged, because usage or the peak was unknown."""
        return int(sum(sums[-1] for sums in self._sums[group].values()))

    def judged_until(self, group: PeakGroup) -> float:
        """When the newest judged peak of a group ended, Unix seconds; NaN if none was judged."""
        ends = [self._newest_of(group, node).judged_until for node in self._sums[group]]
        newest = max(ends, default=-np.inf)
        return newest if newest > -np.inf else np.nan

    def of_node(self, node: str, predictor: str) -> NodeAccuracy | None:
        """The judged peaks of a node by a predictor, in all pools it was in; None without any."""
        groups = [each for each in self._sums if each.predictor == predictor]
        newest = max((self._newest_of(group, node) for group in groups), default=_Newest())
        if newest.judged_until == -np.inf:
            return None
        sums = np.zeros((len(RESOURCES), len(_SUMS)))
        for group in groups:
            if node in self._sums[group]:
                sums[RESOURCES.index(group.resource)] += self._sums[group][node]
        cpu, memory = _ratio(sums[:, 1], sums[:, 0]).tolist()
        return NodeAccuracy(cpu, memory, *newest)

    def _newest_of(self, group: PeakGroup, node: str) -> _Newest:
        return self._judged.get((group, node), _Newest())

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


def _is_judged(record: AccuracyRecord, judged: Judgement, resource: str) -> bool:
    """Whether a judgement has all that a judged peak has; anybody may have written the record."""
    requests: float | None = getattr(record.requests, resource)
    needed = (judged.violated, judged.severity, judged.savings, getattr(record.highest, resource))
    return bool(requests and requests > 0.0) and None not in needed


def _sums_of(record: AccuracyRecord, judged: Judgement, resource: str) -> FloatArray:
    requests = getattr(record.requests, resource)
    if not _is_judged(record, judged, resource):
        # Without requests there is nothing to judge.
        return np.array([0.0, 0.0, 0.0, 0.0, 0.0, float(requests != 0.0)])
    highest = min(getattr(record.highest, resource), requests)
    oracle = (requests - highest) / requests
    return np.array([1.0, judged.violated, judged.severity, judged.savings, oracle, 0.0])


def _ratio(sums: FloatArray, counts: FloatArray) -> FloatArray:
    means = np.full(len(sums), np.nan)
    np.divide(sums, counts, out=means, where=counts > 0.0)
    return means
