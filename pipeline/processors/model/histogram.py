"""Histograms with decaying weights: bucket layouts, quantiles, the decay reference, checkpoints.

Weight arrays are (rows, buckets); the bits of a row do not depend on how many rows are computed
together. Buckets are looked up on stored edges, sums run from left to right in each row, and the
decay factor of a window is one Python float. Every weight is 0 or at least the layout's epsilon;
lighter weights become 0, so that a bucket empties some day. A quantile of an empty histogram is
NaN, unknown.

Formulas: the histogram of the Vertical Pod Autoscaler and of Koordinator (bucket i of an
exponential layout starts at first*(ratio**i - 1)/(ratio - 1); a sample at time t weighs
2**((t - reference)/half_life)).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pipeline.errors import CheckpointError
from pipeline.processors.arrays import FloatArray, IntArray

# The reference lies on multiples of the half-life counted from 0001-01-01T00:00:00Z.
YEAR_ONE_MS: Final = 62_135_596_800_000
MAX_HALF_LIVES: Final = 100
CHECKPOINT_SCALE: Final = 10_000
MAX_BUCKETS: Final = 4096
# With the smallest positive number, a threshold of 0 still needs a filled bucket.
_SMALLEST: Final = math.ulp(0.0)
_MANY_ROWS: Final = 512
_PIECE: Final = 256


@dataclass(frozen=True, slots=True)
class Layout:
    """Buckets by their starts, float64 (buckets,), ascending: starts[i] <= v < starts[i+1].

    Smaller values are in the first bucket, larger ones in the last. `ends` (buckets,) are the
    quantiles: the next start; of the last bucket its own start.
    """

    name: str
    epsilon: float
    starts: FloatArray = field(repr=False, compare=False)
    buckets: tuple[float, float, float] | None = field(default=None, repr=False, compare=False)
    """First bucket size, ratio and maximum of an exponential layout."""
    ends: FloatArray = field(init=False, repr=False, compare=False)
    _upper_edges: FloatArray = field(init=False, repr=False, compare=False)
    """The start of the next bucket; NaN for the last, which no value reaches."""
    _table: npt.NDArray[np.uint16] | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.starts.flags.writeable = False
        object.__setattr__(self, "ends", np.append(self.starts[1:], self.starts[-1:]))
        self.ends.flags.writeable = False
        object.__setattr__(self, "_upper_edges", np.append(self.starts[1:], np.nan))
        object.__setattr__(self, "_table", _bucket_table(self.starts))

    @property
    def num_buckets(self) -> int:
        return len(self.starts)

    def digitize(self, values: npt.ArrayLike) -> IntArray:
        """The bucket of each value (any shape, int64), clamped to the first and last one."""
        # The sign bit, even of -0.0, would be part of the position in the table.
        values = np.abs(np.maximum(np.asarray(values, dtype=np.float64), 0.0))
        if self._table is None:
            buckets = np.searchsorted(self.starts, values, side="right") - 1
            return np.maximum(buckets, 0).astype(np.int64)
        buckets = self._table.take(values.view(np.int64) >> _TABLE_SHIFT).astype(np.int64)
        buckets += values >= self._upper_edges.take(buckets)
        return buckets


# Exponent and 5 bits of the mantissa divide the positive doubles into ranges of 1.6 to 3.2%.
# Buckets of the default layouts are wider, so that a range meets at most two of them: a table and
# one comparison are many times as fast as `np.searchsorted`.
_TABLE_SHIFT: Final = 47


def _bucket_table(starts: FloatArray) -> npt.NDArray[np.uint16] | None:
    """The bucket at the start of each range of doubles; None if more than one bucket begins within
    a range."""
    lowest = (np.arange(1 << (63 - _TABLE_SHIFT)) << _TABLE_SHIFT).view(np.float64)
    buckets = np.maximum(np.searchsorted(starts, lowest, side="right") - 1, 0)
    return None if (np.diff(buckets) > 1).any() else buckets.astype(np.uint16)


def exponential_layout(
    *, max_value: float, first_bucket_size: float, ratio: float = 1.05, epsilon: float = 1e-4
) -> Layout:
    """Buckets that grow by `ratio`; ratio and epsilon default to those of Koordinator and VPA.

    Raises ValueError unless all are positive and ratio > 1.
    """
    _require_positive(max_value=max_value, first_bucket_size=first_bucket_size, epsilon=epsilon)
    if not (math.isfinite(ratio) and ratio > 1):
        raise ValueError(f"ratio is {ratio!r}; buckets can only grow by more than 1")
    growth = math.log(max_value * (ratio - 1) / first_bucket_size + 1) / math.log(ratio)
    if growth > MAX_BUCKETS:
        raise ValueError(f"{growth:,.0f} buckets, more than {MAX_BUCKETS}; let them grow faster")
    starts = [
        first_bucket_size * (ratio**i - 1) / (ratio - 1) for i in range(math.ceil(growth) + 1)
    ]
    return Layout(
        name=(
            f"exponential(max={max_value!r},first={first_bucket_size!r},ratio={ratio!r},"
            f"epsilon={epsilon!r})"
        ),
        epsilon=epsilon,
        starts=np.array(starts),
        buckets=(first_bucket_size, ratio, max_value),
    )


def _require_positive(**settings: float) -> None:
    for name, value in settings.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} is {value!r}; a histogram layout needs it above 0")


CPU_LAYOUT: Final = exponential_layout(max_value=1024.0, first_bucket_size=0.025)
MEMORY_LAYOUT: Final = exponential_layout(max_value=2.0**41, first_bucket_size=5.0 * 2**20)
VPA_CPU_LAYOUT: Final = exponential_layout(max_value=1000.0, first_bucket_size=0.01)
VPA_MEMORY_LAYOUT: Final = exponential_layout(max_value=1e12, first_bucket_size=1e7)


def is_empty(weights: FloatArray) -> npt.NDArray[np.bool_]:
    """Whether each row is without samples, (rows,)."""
    return np.asarray(~weights.any(axis=-1))


def quantile_buckets(weights: FloatArray, fractions: Sequence[float | FloatArray]) -> IntArray:
    """The bucket of each quantile, int64 (fractions, rows); -1 where the row is empty.

    A fraction is a number for all rows or an array (rows,). The bucket is the first at which the
    running weight reaches fraction * total: for fractions below 0 the lowest filled bucket, above
    1 the highest.
    """
    running = cumulative_weights(weights)
    total = running[-1]
    reached = np.empty((len(fractions), len(weights)), dtype=np.int64)
    for i, fraction in enumerate(fractions):
        threshold = np.maximum(np.minimum(fraction, 1.0) * total, _SMALLEST)
        reached[i] = (running < threshold).sum(axis=0, dtype=np.int16)
    reached[:, total <= 0.0] = -1
    return reached


def cumulative_weights(weights: FloatArray) -> FloatArray:
    """Sums from the first bucket up to each, (buckets, rows). Both branches add from left to right
    within a row, so they give the same bits; the second is faster for many rows."""
    if len(weights) < _MANY_ROWS:
        return weights.cumsum(axis=1).T
    rows, buckets = weights.shape
    running = np.empty((buckets, rows))
    for first in range(0, rows, _PIECE):
        # Transposed in pieces that fit into the first cache.
        own = slice(first, first + _PIECE)
        running[:, own] = weights[own].T
    for before, after in itertools.pairwise(running):
        after += before
    return running


def quantiles(weights: FloatArray, layout: Layout, fractions: Sequence[float]) -> FloatArray:
    """Quantiles of each row, float64 (fractions, rows): the end of the bucket reached, for the last
    bucket of the layout its start; NaN where the row is empty."""
    buckets = quantile_buckets(weights, fractions)
    return np.where(buckets < 0, np.nan, layout.ends[buckets])


def nearest_reference_ms(time_ms: int, half_life_ms: int) -> int:
    """The multiple of the half-life nearest to `time_ms` (Unix milliseconds; tie = later)."""
    since_year_one = time_ms + YEAR_ONE_MS
    return (2 * since_year_one + half_life_ms) // (2 * half_life_ms) * half_life_ms - YEAR_ONE_MS


def shifted_reference_ms(reference_ms: int | None, time_ms: int, half_life_ms: int) -> int:
    """The reference for a sample at `time_ms`: the old one, unless there is none or the sample is
    more than 100 half-lives ahead of it."""
    if reference_ms is not None and time_ms <= reference_ms + MAX_HALF_LIVES * half_life_ms:
        return reference_ms
    return nearest_reference_ms(time_ms, half_life_ms)


def shift_factor(old_reference_ms: int, new_reference_ms: int, half_life_ms: int) -> float:
    """The factor of weights when the reference moves: an exact power of two."""
    distance = new_reference_ms - old_reference_ms
    return math.ldexp(1.0, -((2 * distance + half_life_ms) // (2 * half_life_ms)))


def decay_factor(time_ms: int, reference_ms: int, half_life_ms: int) -> float:
    """The weight of a sample at `time_ms` relative to one at the reference."""
    return float(2.0 ** ((time_ms - reference_ms) / half_life_ms))


def save_checkpoint(weights: FloatArray) -> dict[str, Any]:
    """One histogram (buckets,) in the rounded form of Koordinator and VPA: `totalWeight`, and
    `bucketWeights` scaled so that the heaviest is 10000, rounded half up, zeros dropped. Our own
    checkpoints are exact; this is for exports to one of those two (docs/explanation/models.md).
    """
    heaviest = float(weights.max(initial=0.0))
    if heaviest <= 0.0:
        return {"totalWeight": 0.0, "bucketWeights": {}}
    rounded = np.floor(weights / heaviest * CHECKPOINT_SCALE + 0.5).astype(np.int64)
    return {
        "totalWeight": float(np.cumsum(weights)[-1]),
        "bucketWeights": {str(i): int(rounded[i]) for i in np.flatnonzero(rounded)},
    }


def load_checkpoint(layout: Layout, stored: Mapping[str, Any] | None) -> FloatArray:
    """The weights (buckets,) that a rounded checkpoint stands for; add them to a histogram.

    Raises CheckpointError if there is none, its total is negative or not finite, or a bucket is
    not of the layout.
    """
    if stored is None:
        raise CheckpointError("there is no histogram checkpoint to load")
    for name in ("totalWeight", "bucketWeights"):
        if not isinstance(stored, Mapping) or name not in stored:
            raise CheckpointError(f"not a histogram checkpoint: it has no {name}")
    if not isinstance(stored["bucketWeights"], Mapping):
        raise CheckpointError("bucketWeights of a histogram checkpoint are not weights by bucket")
    try:
        total = _number(stored["totalWeight"])
        buckets = {int(i): _number(weight) for i, weight in stored["bucketWeights"].items()}
    except (TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(f"not a histogram checkpoint: {error}") from error
    if not (math.isfinite(total) and total >= 0):
        raise CheckpointError(f"totalWeight of a histogram checkpoint is {total!r}, not 0 or more")
    weights = np.zeros(layout.num_buckets)
    for bucket, weight in buckets.items():
        if not (0 <= bucket < layout.num_buckets and math.isfinite(weight) and weight >= 0):
            raise CheckpointError(
                f"bucket {bucket} with weight {weight!r} of a histogram checkpoint does not fit "
                f"{layout.num_buckets} buckets",
                hint="it was written with other bucket settings",
            )
        weights[bucket] = weight
    with np.errstate(over="ignore", invalid="ignore"):
        sum_stored = float(np.cumsum(weights)[-1])
        if sum_stored > 0.0:
            weights = weights * total / sum_stored
    if not np.isfinite(weights).all():
        raise CheckpointError("the weights of a histogram checkpoint are too large")
    weights[weights < layout.epsilon] = 0.0
    return weights


def _number(value: object) -> float:
    """Return a number. Raises TypeError for other values, such as JSON's `true`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r:.100} is not a number")
    return float(value)
