"""Add up the outcomes of the nodes of a pool: margins, and the level of risk."""

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from pipeline.processors.arrays import FloatArray
from pipeline.processors.calibrated import risk_level
from pipeline.processors.calibrated.outcome_quantiles import distribution_of, quantiles_of
from pipeline.processors.calibrated.outcome_tally import UNSPENT_HALF_LIFE_DAYS
from pipeline.processors.calibrated.pooled_margins import BINS, POOL_HALF_LIFE_DAYS
from pipeline.times import format_time
from pipeline.topics.pool_outcomes import (
    PROBABILITIES,
    NodeOutcomes,
    OutcomeQuantiles,
    PooledOutcomes,
    PoolOutcomesRecord,
    ResourceOutcomes,
)

LEAST_NODES: Final = 2
"""Fewer nodes are no pool: a node alone relies on its own outcomes."""
_OLDEST_DAYS: Final = 1.0
"""Outcomes of nodes that stated none for longer do not count."""
_MOST_WEIGHT: Final = 30.0
"""Outcomes that a node has at most, in horizons: an absurd record must not outweigh a pool."""
_MOST_JUDGED_DAYS: Final = 2 * UNSPENT_HALF_LIFE_DAYS
"""What was judged of a node has faded to less, with what it predicted in the last horizon."""
_DAY_SECONDS: Final = 86_400
_DAY_MS: Final = 1000 * _DAY_SECONDS
_DIGITS: Final = 4
_LEAST_WEIGHT: Final = 10.0**-_DIGITS


class StatedOutcomes(NamedTuple):
    """The outcomes of a node as of `at_ms`, milliseconds since 1970."""

    at_ms: int
    outcomes: NodeOutcomes


def pool_outcomes(pool: str, stated: Sequence[StatedOutcomes]) -> PoolOutcomesRecord | None:
    """The outcomes of a pool, of what its nodes stated; the order does not matter. None if fewer
    than `LEAST_NODES` of them had any outcome, risk and horizon as most others have."""
    kinds = Counter((own.horizon_seconds, own.risk) for _, own in stated)
    if not kinds:
        return None
    horizon_seconds, risk = kind = max(sorted(kinds), key=kinds.__getitem__)
    alike = [each for each in stated if (each[1].horizon_seconds, each[1].risk) == kind]
    newest_ms = max(at_ms for at_ms, _ in alike)
    alike = sorted(
        (each for each in alike if newest_ms - each.at_ms <= _OLDEST_DAYS * _DAY_MS), key=_order
    )
    alike = [each for each in alike if _has_any(each.outcomes)]
    if len(alike) < LEAST_NODES:
        return None
    days = [(newest_ms - at_ms) / _DAY_MS for at_ms, _ in alike]
    cpu, memory = (
        _pooled(list(zip(days, resource, strict=True)), risk, horizon_seconds)
        for resource in zip(*((own.cpu, own.memory) for _, own in alike), strict=True)
    )
    return PoolOutcomesRecord(
        pool=pool,
        at=format_time(newest_ms / 1000),
        nodes=len(alike),
        horizon_seconds=horizon_seconds,
        risk=risk,
        cpu=cpu,
        memory=memory,
    )


def _has_any(own: NodeOutcomes) -> bool:
    return own.cpu.distribution is not None or own.memory.distribution is not None


def _order(each: StatedOutcomes) -> tuple[int, str]:
    # Sums of floats depend on their order.
    return each.at_ms, repr(each.outcomes)


def _pooled(
    stated: Sequence[tuple[float, ResourceOutcomes]], risk: float, horizon_seconds: int
) -> PooledOutcomes:
    """The outcomes of one resource; each was stated so many days ago.

    What happens on a day happens to many nodes at once: outcomes of a horizon weigh as much as
    those of one node, the mean over all outcomes of the weight of their node.
    """
    histogram, squares = np.zeros(BINS), 0.0
    for days, own in stated:
        if (outcomes := own.distribution) is not None:
            faded = 0.5 ** (days / POOL_HALF_LIFE_DAYS)
            weight = faded * min(outcomes.weight, _MOST_WEIGHT)
            squares += weight**2
            histogram += weight * distribution_of(outcomes.quantiles, PROBABILITIES)
    total = float(histogram.sum())
    weight = squares / max(total, _LEAST_WEIGHT)
    is_known = weight >= _LEAST_WEIGHT
    return PooledOutcomes(
        distribution=OutcomeQuantiles(
            weight=round(weight, _DIGITS),
            quantiles=tuple(quantiles_of(histogram, PROBABILITIES)),
        )
        if is_known
        else None,
        level=_level([own for _, own in stated], risk, horizon_seconds),
    )


def _level(stated: Sequence[ResourceOutcomes], risk: float, horizon_seconds: int) -> float | None:
    """The level of risk of a pool. The more was judged of a node, the more it counts."""
    judged = np.minimum([own.judged_days for own in stated], _MOST_JUDGED_DAYS)
    if not judged.any():
        return None
    weights = judged / judged.sum()
    # Nobody can spend more than all that was judged, nor leave more than the risk that was taken;
    # running predictions count the declared one.
    longest = np.minimum(judged, horizon_seconds / _DAY_SECONDS)
    taken = risk_level.HIGHEST * risk * judged
    unspent = weights @ np.clip([own.unspent_days for own in stated], -judged, taken)
    running = weights @ np.clip([own.running_days for own in stated], -longest, risk * longest)
    repayment = risk_level.repayment_steps(horizon_seconds, _DAY_SECONDS) / _DAY_SECONDS
    risks = np.array([risk])
    bounded = risk_level.bounded(np.array([unspent]), risks, repayment)
    level = risk_level.level(risks, bounded, np.array([running]), repayment)
    return round(float(level[0]), 2 * _DIGITS)


@lru_cache(maxsize=64)  # all nodes of a pool have the same record
def margins(pooled: PooledOutcomes) -> FloatArray:
    """Weights of the outcomes of a pool by bin, (BINS,), see `pooled_margins`."""
    histogram = np.zeros(BINS)
    if (outcomes := pooled.distribution) is not None:
        histogram = outcomes.weight * distribution_of(outcomes.quantiles, PROBABILITIES)
    histogram.flags.writeable = False
    return histogram
