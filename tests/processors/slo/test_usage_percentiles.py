"""Percentiles over several windows lie between the smallest and the largest statistic."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.slo.usage_percentiles import WindowStatistics


def windows(*statistics: tuple[float, float, float, float], length: int = 30) -> WindowStatistics:
    """Windows one after another, of whose node and system these are avg, p90, p95 and max."""
    result = WindowStatistics()
    for number, values in enumerate(statistics):
        span = np.array([number * length, (number + 1) * length]) * 1000
        own = np.broadcast_to(np.array(values)[:, None], (2, 4, 2))
        result = result.with_window(span, 1.0, own, 3600)
    return result


def cpu(found: WindowStatistics, seconds: float) -> list[float]:
    """avg, p50, p90, p95 and p99 of the node."""
    return found.aggregated(seconds)[0, :, 0].tolist()


def test_one_window_gives_its_own_statistics() -> None:
    assert cpu(windows((1.0, 2.0, 3.0, 4.0)), 30) == [1.0, 1.0, 2.0, 3.0, 4.0]


def test_a_short_peak_counts_in_high_percentiles_alone() -> None:
    quiet, hot = (1.0, 1.0, 1.0, 1.0), (8.0, 8.0, 8.0, 8.0)
    assert cpu(windows(*[quiet] * 19, hot), 600) == [1.35, 1.0, 1.0, 1.0, 8.0]


def test_windows_before_the_time_do_not_count() -> None:
    found = windows((9.0, 9.0, 9.0, 9.0), *[(1.0, 1.0, 1.0, 1.0)] * 4)
    assert cpu(found, 120) == [1.0] * 5


@pytest.mark.parametrize("seconds", [0.0, 1.5, 29.9, 241.0, 3601.0, 1e12])
def test_a_time_of_which_less_than_half_was_seen_is_unknown(seconds: float) -> None:
    assert np.isnan(windows(*[(1.0, 1.0, 1.0, 1.0)] * 4).aggregated(seconds)).all()


def test_windows_are_stored_for_an_hour_at_most() -> None:
    assert len(windows(*[(1.0, 1.0, 1.0, 1.0)] * 200).spans) == 120


def test_a_window_without_statistics_does_not_count() -> None:
    nan = float("nan")
    assert cpu(windows((nan, nan, nan, nan), (1.0, 2.0, 3.0, 4.0)), 60) == [1.0, 1.0, 2.0, 3.0, 4.0]


VALUES = st.tuples(*[st.floats(0, 1000, width=32)] * 4)


@given(st.lists(VALUES, min_size=1, max_size=30))
def test_percentiles_ascend_within_the_statistics(
    statistics: list[tuple[float, float, float, float]],
) -> None:
    found = cpu(windows(*statistics), 30 * len(statistics))
    assert found[1:] == sorted(found[1:])
    values = [value for window in statistics for value in window]
    assert min(values) <= found[1] <= found[-1] <= max(values)
    averages = [window[0] for window in statistics]
    assert found[0] == pytest.approx(sum(averages) / len(averages), rel=1e-6, abs=1e-6)
