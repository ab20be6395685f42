"""Edge cases of the usage formulas."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_exporter.kernel import formulas


def test_results_are_never_negative() -> None:
    assert formulas.hot_bytes(5, 6) == 0
    assert formulas.system_usage(1.0, [2.0], [3.0]) == 0.0


@given(n=st.integers(1, 400), percent=st.integers(0, 100))
def test_ranks_are_exact(n: int, percent: int) -> None:
    values = [float(i) for i in range(1, n + 1)]
    assert formulas.rank_percentile(values, Fraction(percent, 100)) == max(1, n * percent // 100)


def test_statistics_of_no_values_are_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        formulas.rank_percentile([], Fraction(1, 2))
    with pytest.raises(ValueError, match="no values"):
        formulas.average([])
