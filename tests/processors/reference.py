"""The mathematics of the models once more, slowly: exact fractions, one object per histogram.

Weights are kept relative to the newest sample; nothing here shares code with the product except
the bucket edges, which tests/processors/model/test_histogram.py holds against their formula.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

# Half-lives that are whole numbers of steps would hide rounding; tests keep their own.


def bucket_of(starts: Sequence[float], value: float) -> int:
    """By walking the edges."""
    result = 0
    for i, start in enumerate(starts):
        if value >= start:
            result = i
    return result


@dataclass
class SlowHistogram:
    """Samples as (bucket, weight) with exact weights."""

    starts: Sequence[float]
    samples: list[tuple[int, Fraction]] = field(default_factory=list)

    def add(self, value: float, weight: Fraction) -> None:
        self.samples.append((bucket_of(self.starts, value), weight))

    def quantile(self, fraction: Fraction) -> float | None:
        if not self.samples:
            return None
        total = sum((weight for _, weight in self.samples), Fraction(0))
        buckets = sorted({bucket for bucket, _ in self.samples})
        running = Fraction(0)
        for bucket in buckets:
            running += sum((w for b, w in self.samples if b == bucket), Fraction(0))
            if running >= fraction * total or bucket == buckets[-1]:
                return self.starts[min(bucket + 1, len(self.starts) - 1)]
        raise AssertionError


def mean_and_variance(samples: Sequence[tuple[float, Fraction]]) -> tuple[Fraction, Fraction]:
    """Weighted mean and population variance, exactly."""
    total = sum((weight for _, weight in samples), Fraction(0))
    mean = sum((Fraction(value) * weight for value, weight in samples), Fraction(0)) / total
    squares = sum(((Fraction(v) - mean) ** 2 * w for v, w in samples), Fraction(0))
    return mean, squares / total
