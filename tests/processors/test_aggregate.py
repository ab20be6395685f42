import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import EmptyWindowError
from pipeline.processors.aggregate import aggregate, aggregate_rows

VALUES = st.floats(min_value=0, max_value=1e12, allow_nan=False)
STATISTICS = ("avg", "last", "max", "p0", "p50", "p90", "p95", "p99")


@pytest.mark.parametrize(
    ("samples", "statistic", "expected"),
    [
        ([1000.0], "p50", 1000.0),
        ([800, 100, 200, 600, 700, 0, 500, 400, 300], "p50", 300.0),  # the 4th of 9
        (range(1, 21), "p99", 19.0),  # floor(19.8) - 1
        (range(1, 21), "p95", 19.0),  # floor(19.0) - 1: 20 * 0.95 is 19 only in whole numbers
        (range(1, 101), "p90", 90.0),
        ([5.0], "p0", 5.0),
        ([3.0, 1.0, 2.0], "last", 2.0),
        ([3.0, 1.0, 2.0], "max", 3.0),
        ([3.0, 1.0, 2.0], "avg", 2.0),
        ([3.0, math.nan, 2.0], "count", 2.0),
        ([3.0, 4.0, math.nan], "last", 4.0),
        ([math.nan, 4.0, 2.0], "avg", 3.0),
        ([], "count", 0.0),
    ],
)
def test_statistics(samples: list[float], statistic: str, expected: float) -> None:
    assert aggregate([float(s) for s in samples], statistic) == expected


@pytest.mark.parametrize("statistic", STATISTICS)
@pytest.mark.parametrize("samples", [[], [math.nan, math.nan]])
def test_no_samples_is_an_error_for_one_and_nan_for_many(
    samples: list[float], statistic: str
) -> None:
    with pytest.raises(EmptyWindowError, match=statistic):
        aggregate(samples, statistic)
    assert np.isnan(aggregate_rows([samples, samples], statistic)).all()


@pytest.mark.parametrize("statistic", ["p100", "p5.5", "median", ""])
def test_unknown_statistic(statistic: str) -> None:
    with pytest.raises(ValueError, match="unknown statistic"):
        aggregate([1.0], statistic)


def test_rows_are_rows() -> None:
    with pytest.raises(ValueError, match="2 dimensions"):
        aggregate_rows([1.0, 2.0], "avg")


@given(n=st.integers(1, 250_000), percent=st.integers(0, 99))
def test_the_rank_is_the_exact_floor(n: int, percent: int) -> None:
    exact = max(math.floor(Fraction(n) * Fraction(percent, 100)) - 1, 0)
    assert max(n * percent // 100 - 1, 0) == exact
    if n <= 2000:
        assert aggregate(np.arange(n, dtype=float).tolist(), f"p{percent}") == exact


@given(
    st.lists(st.lists(VALUES | st.just(math.nan), min_size=0, max_size=9), min_size=1, max_size=6),
    st.sampled_from(STATISTICS),
)
def test_a_row_has_the_same_bits_alone_and_among_others(
    series: list[list[float]], statistic: str
) -> None:
    width = max(len(row) for row in series)
    padded = np.array([row + [math.nan] * (width - len(row)) for row in series])
    together = aggregate_rows(padded.reshape(len(series), width), statistic)
    for row, value in zip(series, together, strict=True):
        alone = aggregate_rows(np.array(row, dtype=float).reshape(1, -1), statistic)[0]
        assert alone.tobytes() == value.tobytes()
