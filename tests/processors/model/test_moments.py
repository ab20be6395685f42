from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.model import moments
from tests.processors.reference import mean_and_variance

SAMPLES = st.lists(
    st.tuples(
        st.floats(min_value=0, max_value=1e6), st.floats(min_value=2.0**-1, max_value=2.0**20)
    ),
    min_size=1,
    max_size=30,
)


def _feed(samples: list[tuple[float, float]]) -> tuple[float, float, float]:
    weight, mean, squares = (np.zeros(1), np.zeros(1), np.zeros(1))
    for sample in samples:
        value, own_weight = (np.array([each]) for each in sample)
        weight, mean, squares = moments.add(weight, mean, squares, value, own_weight)
    return float(weight[0]), float(mean[0]), float(moments.stdev(weight, squares)[0])


@given(SAMPLES)
def test_mean_and_deviation_are_those_of_exact_fractions(
    samples: list[tuple[float, float]],
) -> None:
    weight, mean, stdev = _feed(samples)
    exact_mean, variance = mean_and_variance([(v, Fraction(w)) for v, w in samples])
    spread = max(value for value, _ in samples)
    assert weight == pytest.approx(sum(w for _, w in samples), rel=1e-12)
    assert mean == pytest.approx(float(exact_mean), rel=1e-9, abs=1e-12)
    assert stdev == pytest.approx(float(variance) ** 0.5, rel=1e-6, abs=1e-7 * spread)


def test_no_sample_has_no_deviation() -> None:
    assert np.isnan(moments.stdev(np.zeros(2), np.zeros(2))).all()


def test_nan_leaves_moments_unchanged() -> None:
    before = (np.array([2.0]), np.array([3.0]), np.array([4.0]))
    after = moments.add(*before, np.array([np.nan]), np.array([1.0]))
    assert [float(a[0]) for a in after] == [2.0, 3.0, 4.0]


def test_one_constant_has_no_deviation() -> None:
    assert _feed([(5.0, 1.0), (5.0, 7.0)]) == (8.0, 5.0, 0.0)
