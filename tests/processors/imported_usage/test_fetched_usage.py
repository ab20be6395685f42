"""Statistics of fetched points equal those of the exporter."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from node_exporter.kernel.formulas import rank_percentile
from pipeline.processors.imported_usage.fetched_usage import (
    TimeWindow,
    plausible,
    points,
    statistics,
    window_before,
)
from pipeline.topics.samples import STATISTICS

amounts = st.floats(0, 1e12)


@given(st.lists(amounts, min_size=2, max_size=200))
def test_statistics_are_those_that_an_exporter_makes(values: list[float]) -> None:
    result = statistics("cpu_cores", values)
    assert result.keys() == {f"cpu_cores_{of}" for of in STATISTICS}
    ascending = sorted(values)
    average = result.pop("cpu_cores_avg")
    assert result == {
        "cpu_cores_p90": rank_percentile(ascending, Fraction(9, 10)),
        "cpu_cores_p95": rank_percentile(ascending, Fraction(19, 20)),
        "cpu_cores_max": ascending[-1],
        "cpu_cores_last": values[-1],
    }
    assert ascending[0] <= average * (1 + 1e-12) + 1e-300
    assert average <= ascending[-1] * (1 + 1e-12)


def test_a_single_value_has_no_maximum() -> None:
    assert statistics("cpu_cores", [0.5]) == {"cpu_cores_avg": 0.5, "cpu_cores_last": 0.5}
    assert statistics("cpu_cores", []) == {}


@given(st.integers(0, 2**42), st.sampled_from([5_000, 60_000, 3_600_000]))
def test_windows_lie_on_the_grid(at_ms: int, length_ms: int) -> None:
    window = window_before(at_ms, length_ms)
    assert window.end_ms % length_ms == 0
    assert window.end_ms - window.start_ms == length_ms
    assert 0 <= at_ms - window.end_ms < length_ms


def test_a_window_has_its_end_and_not_its_start() -> None:
    window = TimeWindow(60_000, 120_000)
    assert [window.has(at) for at in (60_000, 60_001, 120_000, 120_001)] == [
        False, True, True, False,
    ]  # fmt: skip


@given(st.floats())
def test_a_plausible_value_is_a_number_in_range(value: float) -> None:
    result = plausible(value, 1e6)
    assert result is None or (result == value and 0 <= result <= 1e6)
    assert (result is None) == (not 0 <= value <= 1e6)


def test_points_have_a_null_where_one_resource_is_missing() -> None:
    result = points(TimeWindow(60_000, 120_000), {75_000: 0.5}, {75_000: 3.0, 120_000: 4.0})
    assert result == {
        "points_offset_seconds": [15.0, 60.0],
        "points_cpu_cores": [0.5, None],
        "points_memory_bytes": [3.0, 4.0],
    }
