"""Network and disk rates of a node over the last minutes, from the node states that were read.

A node state has the rates of its last window alone. Means and deviations over longer spans are
weighted by the length of windows, and unknown while windows with rates reach over less than half of
the span, as after a restart. Consecutive windows shorter than `_SHORTEST_SECONDS` count as their
mean, so that a few windows reach over the longest span.
"""

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from pipeline.errors import InvalidRecordError
from pipeline.processors.arrays import FloatArray
from pipeline.table.limits import LARGEST_USAGE
from pipeline.times import parse_time
from pipeline.topics.node_state import DEVIATION, NodeStateRecord
from pipeline.topics.resource_amounts import RATES

_LONGEST_SECONDS: Final = max(DEVIATION.values())
_MAX_WINDOWS: Final = 256
_SHORTEST_SECONDS: Final = _LONGEST_SECONDS / _MAX_WINDOWS


@dataclass(frozen=True, slots=True, eq=False)
class RecentRates:
    """Windows of a node, oldest first: `spans` (n, 2) have their ends and lengths in seconds,
    `rates` (n, 4) bytes a second in the order of `RATES`. `statistics` (3, 2, 4) are mean and
    deviation over each span of `DEVIATION`. NaN is unknown."""

    spans: FloatArray
    rates: FloatArray
    statistics: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        spans = [self._over(seconds) for seconds in DEVIATION.values()]
        object.__setattr__(self, "statistics", np.array(spans))

    def _over(self, seconds: float) -> FloatArray:
        """Mean and deviation over the last `seconds`, (2, 4)."""
        ends, lengths = self.spans.T
        within = ends - lengths >= ends[-1] - seconds
        known = within[:, None] & ~np.isnan(self.rates)
        weights = np.where(known, lengths[:, None], 0.0)
        values = np.where(known, self.rates, 0.0)
        total = np.where(known.any(axis=0), weights.sum(axis=0), np.nan)
        oldest = np.where(known, (ends - lengths)[:, None], np.inf).min(axis=0)
        total = np.where(2 * (ends[-1] - oldest) >= seconds, total, np.nan)
        mean = (values * weights).sum(axis=0) / total
        variance = (weights * np.where(known, self.rates - mean, 0.0) ** 2).sum(axis=0) / total
        return np.array([mean, np.sqrt(variance)])


def with_state(recent: RecentRates | None, state: NodeStateRecord) -> RecentRates | None:
    """The recent rates of a node after its next state; None for a node without any.

    Raises `InvalidRecordError` for an invalid time. A state that is not newer than the last
    replaces them.
    """
    if not state.rates and recent is None:
        return None
    try:
        end = parse_time(state.as_of)
    except ValueError as error:
        raise InvalidRecordError(f"as_of is not readable: {error}") from error
    rates = [_known(state.rates.get(name)) for name in RATES]
    length = min(max(state.window_seconds, 0.0), _LONGEST_SECONDS)
    span, row = np.array([end, length]), np.array(rates)
    if recent is None or recent.spans[-1, 0] >= end:
        return RecentRates(span[None], row[None])
    keep = recent.spans[:, 0] > end - _LONGEST_SECONDS
    if _are_one(recent, span, row):
        keep[-1] = False
        (_, before), total = recent.spans[-1], recent.spans[-1, 1] + length
        row = (recent.rates[-1] * before + row * length) / total
        span = np.array([end, total])
    spans = np.concatenate([recent.spans[keep], span[None]])[-_MAX_WINDOWS:]
    return RecentRates(spans, np.concatenate([recent.rates[keep], row[None]])[-_MAX_WINDOWS:])


def _are_one(recent: RecentRates, span: FloatArray, rates: FloatArray) -> bool:
    """Whether a window continues a short one in which the same rates are known."""
    (last_end, last_length), (end, length) = recent.spans[-1], span
    return bool(
        0.0 < last_length < _SHORTEST_SECONDS
        and abs(end - length - last_end) < 0.5 * length
        and np.array_equal(np.isnan(recent.rates[-1]), np.isnan(rates))
    )


def _known(rate: float | None) -> float:
    return rate if rate is not None and 0.0 <= rate <= LARGEST_USAGE else np.nan
