import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.model.rank_percentiles import parse_percentile, row_percentiles

VALUES = st.floats(min_value=0, max_value=1e12, allow_nan=False)


def percentile(samples: Sequence[float], percent: int) -> float:
    return float(row_percentiles(np.array([samples], float), [percent])[0, 0])


@pytest.mark.parametrize(
    ("samples", "percent", "expected"),
    [
        ([1000.0], 50, 1000.0),
        ([800, 100, 200, 600, 700, 0, 500, 400, 300], 50, 300.0),  # the 4th of 9
        (range(1, 21), 99, 19.0),  # floor(19.8) - 1
        (range(1, 21), 95, 19.0),  # floor(19.0) - 1: 20 * 0.95 is 19 only in whole numbers
        (range(1, 101), 90, 90.0),
        ([5.0], 0, 5.0),
        ([math.nan, 4.0, 2.0], 99, 2.0),
    ],
)
def test_percentiles(samples: Sequence[float], percent: int, expected: float) -> None:
    assert percentile(samples, percent) == expected


@pytest.mark.parametrize("samples", [[], [math.nan, math.nan]])
def test_no_samples_is_unknown(samples: list[float]) -> None:
    assert np.isnan(row_percentiles(np.array([samples, samples], float), [0, 50, 99])).all()


@pytest.mark.parametrize("statistic", ["p100", "p5.5", "median", "avg", ""])
def test_other_statistics_have_no_percentage(statistic: str) -> None:
    assert parse_percentile("p05") == 5
    assert parse_percentile(statistic) is None


@given(n=st.integers(1, 250_000), percent=st.integers(0, 99))
def test_the_rank_is_the_exact_floor(n: int, percent: int) -> None:
    exact = max(math.floor(Fraction(n) * Fraction(percent, 100)) - 1, 0)
    assert max(n * percent // 100 - 1, 0) == exact
    if n <= 2000:
        assert percentile(range(n), percent) == exact


@given(
    st.lists(st.lists(VALUES | st.just(math.nan), min_size=0, max_size=9), min_size=1, max_size=6),
    st.integers(0, 99),
)
def test_a_row_has_the_same_bits_alone_and_among_others(
    series: list[list[float]], percent: int
) -> None:
    width = max(len(row) for row in series)
    padded = np.array([row + [math.nan] * (width - len(row)) for row in series], float)
    together = row_percentiles(padded.reshape(len(series), width), [percent])[:, 0]
    for row, value in zip(series, together, strict=True):
        alone = row_percentiles(np.array([row], float), [percent])[0, 0]
        assert alone.tobytes() == value.tobytes()
