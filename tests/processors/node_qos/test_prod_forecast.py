"""The peak of the next minute, from the last one."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.node_qos.cgroup_values import Knob, Place
from pipeline.processors.node_qos.cpu_suppression import CpuSuppression
from pipeline.processors.node_qos.prod_forecast import predicted_peak_cores
from pipeline.processors.slo.nodeslo import NodeSLOSpec, ThresholdStrategy
from tests.processors.node_qos.worlds import amounts, claimed, node, pod

USAGES = st.lists(st.floats(0, 64, allow_nan=False), min_size=10, max_size=80)


def test_less_than_ten_seconds_predict_nothing() -> None:
    assert predicted_peak_cores([1.0] * 9, 3.0) is None
    assert predicted_peak_cores([], 3.0) is None


def test_constant_usage_is_its_own_peak() -> None:
    assert predicted_peak_cores([1.5] * 60, 3.0) == pytest.approx(1.5)


def test_the_peak_of_varying_usage_is_mean_plus_sigmas_up_to_the_highest() -> None:
    usage = [1.0, 3.0, 3.0, 1.0] * 15
    assert predicted_peak_cores(usage, 0.5) == pytest.approx(2.5)
    assert predicted_peak_cores(usage, 3.0) == pytest.approx(3.0)


def test_a_steady_rise_goes_on_for_a_minute() -> None:
    usage = [second / 10 for second in range(60)]
    assert predicted_peak_cores(usage, 3.0) == pytest.approx(5.9 + 5.9)


def test_a_fall_predicts_no_less_than_the_level_of_the_minute() -> None:
    usage = [(60 - second) / 10 for second in range(60)]
    assert predicted_peak_cores(usage, 3.0) == pytest.approx(6.0)


def test_a_step_that_is_over_is_no_rise() -> None:
    assert predicted_peak_cores([0.2] * 30 + [1.8] * 30, 3.0) == pytest.approx(1.8)


def test_only_the_last_minute_counts() -> None:
    assert predicted_peak_cores([50.0] * 20 + [1.0] * 60, 3.0) == pytest.approx(1.0)


@given(USAGES, st.floats(0, 5))
def test_a_peak_lies_between_the_mean_and_twice_the_range(
    usage: list[float], sigmas: float
) -> None:
    window = usage[-60:]
    peak = predicted_peak_cores(usage, sigmas)
    assert peak is not None
    least, most = sum(window) / len(window), max(window) + max(window) - min(window)
    assert least - 1e-9 <= peak <= most + 1e-9


@given(USAGES, st.floats(0, 5), st.floats(0, 5))
def test_more_sigmas_predict_no_lower_peak(usage: list[float], one: float, other: float) -> None:
    low, high = (predicted_peak_cores(usage, sigmas) for sigmas in sorted((one, other)))
    assert low is not None
    assert high is not None
    assert low <= high


def test_suppression_makes_room_before_a_rise_needs_it() -> None:
    strategy = ThresholdStrategy(enable=True, cpu_suppress_policy="cfsQuota")
    state = node(
        pod("web", cpu_cores=3.0),
        slo=NodeSLOSpec(resource_used_threshold_with_be=strategy),
        capacity=amounts(10_000),
        cpu_cores=3.0,
        recent_prod_cores=tuple(1.0 + second / 30 for second in range(60)),
    )
    place = Place("kubepods/besteffort", Knob.CPU_QUOTA)
    assert claimed(CpuSuppression(None, None), state) == {place: 350_000}
    predicted = 1.0 + 59 / 30 + 59 / 30
    expected = (6500 - int(predicted * 1000)) * 100
    assert claimed(CpuSuppression(None, 3.0), state) == {place: expected}
    unknown = msgspec.structs.replace(state, recent_prod_cores=())
    assert claimed(CpuSuppression(None, 3.0), unknown) == {place: 350_000}
