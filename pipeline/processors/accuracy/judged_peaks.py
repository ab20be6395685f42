"""Judge predicted peaks of Prod whose horizon is over.

The measures are those of the backtest (`pipeline.processors.backtest.protocol`): peak and highest
usage are cut at the requests, beyond which there is nothing to give away.
"""

from collections.abc import Mapping

import numpy as np

from pipeline.processors.arrays import FloatArray
from pipeline.processors.backtest.protocol import TOLERANCE, effective, is_violation
from pipeline.processors.model.model_config import RESOURCES
from pipeline.processors.model.pending_peaks import EndedPeak
from pipeline.times import format_time
from pipeline.topics.accuracy import (
    KNOWN_SHARE,
    AccuracyRecord,
    Judgement,
    PeakAmounts,
    PredictorJudgement,
)


def judge(
    ended: EndedPeak,
    *,
    node: str,
    pool: str,
    decides: str,
    horizon_seconds: float,
    end_ms: int,
    position: Mapping[str, int],
) -> AccuracyRecord:
    """The record of a peak of `node` whose horizon was over with the window that ended at `end_ms`
    and has this position in the log."""
    return AccuracyRecord(
        node=node,
        as_of=format_time(end_ms / 1000),
        **position,
        made_at=format_time(ended.made_ms / 1000),
        horizon_seconds=horizon_seconds,
        pool=pool,
        decides=decides,
        requests=_amounts(ended.requests),
        highest=_amounts(np.where(ended.known > 0.0, ended.highest, np.nan)),
        known_share_cpu=float(ended.known[0]),
        known_share_memory=float(ended.known[1]),
        predictors={name: _judgement(ended, peaks) for name, peaks in ended.peaks.items()},
    )


def _judgement(ended: EndedPeak, peaks: FloatArray) -> PredictorJudgement:
    cut = effective(peaks, ended.requests)
    highest = np.minimum(ended.highest, ended.requests)
    is_judged = (ended.known >= KNOWN_SHARE) & ~np.isnan(peaks) & (ended.requests > 0.0)
    judgements = {}
    for r, resource in enumerate(RESOURCES):
        if not is_judged[r]:
            judgements[resource] = Judgement(peak=_known(peaks[r]))
            continue
        violated = bool(is_violation(cut[r], highest[r], float(TOLERANCE[r])))
        judgements[resource] = Judgement(
            peak=float(peaks[r]),
            violated=violated,
            severity=float((highest[r] - cut[r]) / highest[r]) if violated else 0.0,
            savings=float((ended.requests[r] - cut[r]) / ended.requests[r]),
        )
    return PredictorJudgement(**judgements)


def _amounts(values: FloatArray) -> PeakAmounts:
    return PeakAmounts(cpu=_known(values[0]), memory=_known(values[1]))


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
