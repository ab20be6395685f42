"""The cap that follows CPU pressure of pods that are not best-effort."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.node_qos.best_effort_room import Room, best_effort_room
from pipeline.processors.node_qos.cgroup_values import Knob, Place
from pipeline.processors.node_qos.cpu_suppression import CpuSuppression
from pipeline.processors.node_qos.node_state import NodeState, PodState, PressureLevels
from pipeline.processors.node_qos.pressure_reaction import PressureReaction
from pipeline.processors.slo.nodeslo import NodeSLOSpec, ThresholdStrategy
from tests.processors.node_qos.worlds import amounts, claimed, container, node, pod

QUOTA = Place("kubepods/besteffort", Knob.CPU_QUOTA)


def web(pressure: float | None, **fields: Any) -> PodState:
    levels = None if pressure is None else PressureLevels(pressure, 0.0)
    fields = {"cpu_cores": 1.0, "containers": (container(),), **fields}
    return msgspec.structs.replace(pod("web"), cpu_pressure=levels, **fields)


def world(*others: PodState, at: float = 1.0, batch: float | None = 4.0) -> NodeState:
    """Ten cores, of which best-effort pods may use 5.5 and use 4."""
    low = pod("batch", kube_qos="BestEffort", cpu_cores=batch)
    known = amounts(10_000)
    return node(*others, low, at=at, capacity=known, allocatable=known, cpu_cores=5.0)


def room(state: NodeState) -> Room:
    found = best_effort_room(state, 65)
    assert found is not None
    return found


def caps(reaction: PressureReaction, *pressures: float | None, **fields: Any) -> list[int | None]:
    """The caps of rounds one second apart, in which the web pod has these pressures."""
    states = [world(web(p), at=float(second), **fields) for second, p in enumerate(pressures)]
    return [reaction.cap_millicores(state, room(state)) for state in states]


def test_without_pressure_there_is_no_cap() -> None:
    assert caps(PressureReaction(10.0), 0.0, 4.9, 10.0, None) == [None] * 4


def test_lasting_pressure_takes_a_fifth_in_each_round_from_what_is_used() -> None:
    assert caps(PressureReaction(10.0), 20.0, 20.0, 25.0) == [3200, 2560, 2048]


def test_a_cap_waits_while_only_the_past_keeps_the_mean_high() -> None:
    """A mean of 10 seconds falls by a tenth in a second without any pressure."""
    assert caps(PressureReaction(10.0), 40.0, 36.2, 32.8) == [3200] * 3
    # From 36.2% to 34% there was pressure of about 13% in between.
    assert caps(PressureReaction(10.0), 40.0, 36.2, 34.0) == [3200, 3200, 2560]


def test_a_cap_stays_between_the_thresholds_and_rises_slowly_below_the_lower_one() -> None:
    assert caps(PressureReaction(10.0), 20.0, 7.0, 5.0, 4.9, 0.0) == [3200, 3200, 3200, 3300, 3400]


def test_a_cap_ends_when_it_reaches_the_room() -> None:
    assert caps(PressureReaction(10.0), 20.0, *[0.0] * 24)[22:] == [5400, None, None]


def test_unknown_pressure_neither_raises_nor_lowers_a_cap() -> None:
    assert caps(PressureReaction(10.0), 20.0, None, None) == [3200] * 3


def test_a_state_of_the_same_time_makes_no_step() -> None:
    reaction, state = PressureReaction(10.0), world(web(20.0))
    assert [reaction.cap_millicores(state, room(state)) for _ in range(3)] == [3200] * 3


def test_a_clock_that_is_set_back_stops_nothing() -> None:
    reaction = PressureReaction(10.0)
    states = [world(web(20.0 + at), at=float(at)) for at in (100, 3, 4)]
    assert [reaction.cap_millicores(s, room(s)) for s in states] == [3200, 2560, 2048]


def test_best_effort_work_that_does_not_run_is_not_the_cause() -> None:
    assert caps(PressureReaction(10.0), 50.0, 50.0, batch=0.1) == [None, None]


def test_best_effort_work_of_unknown_usage_may_be_the_cause() -> None:
    # Its usage counts as the system's, so the room is 1.5 cores.
    assert caps(PressureReaction(10.0), 50.0, batch=None) == [1200]


@pytest.mark.parametrize(
    "others",
    [
        web(50.0, throttled_ratio=0.45),
        web(50.0, containers=(container(throttled_ratio=0.2), container(throttled_ratio=0.3))),
        web(
            50.0,
            qos="LSE",
            annotations={"scheduling.koordinator.sh/resource-status": '{"cpuset":"0-1"}'},
        ),
        web(50.0, qos="BE"),
    ],
    ids=["throttled pod", "throttled container", "own CPUs", "best-effort"],
)
def test_pressure_that_best_effort_work_cannot_have_caused_is_ignored(others: PodState) -> None:
    state = world(others)
    assert PressureReaction(10.0).cap_millicores(state, room(state)) is None


def test_pressure_beyond_what_throttling_explains_counts() -> None:
    state = world(web(50.0, throttled_ratio=0.3))
    assert PressureReaction(10.0).cap_millicores(state, room(state)) == 3200


def test_the_highest_pressure_of_all_pods_decides() -> None:
    state = world(web(0.0, cpu_cores=0.5), web(None, cpu_cores=0.0), web(20.0, cpu_cores=0.5))
    assert PressureReaction(10.0).cap_millicores(state, room(state)) == 3200


@given(st.lists(st.one_of(st.none(), st.floats(0, 100, allow_nan=False)), max_size=40))
def test_a_cap_is_never_above_the_room_nor_below_zero(pressures: list[float | None]) -> None:
    found = caps(PressureReaction(10.0), *pressures)
    assert all(cap is None or 0 <= cap < 5500 for cap in found)


def _suppressed(at: float, pressure: float, **rules: Any) -> NodeState:
    strategy = ThresholdStrategy(enable=True, cpu_suppress_policy="cfsQuota", **rules)
    slo = NodeSLOSpec(resource_used_threshold_with_be=strategy)
    return msgspec.structs.replace(world(web(pressure), at=at), slo=slo)


def test_suppression_narrows_the_quota_before_usage_reaches_the_threshold() -> None:
    feature = CpuSuppression(pressure_percent=10.0, forecast_sigmas=None)
    first = claimed(feature, _suppressed(1.0, 0.0))
    assert first == {QUOTA: 550_000}
    assert claimed(feature, _suppressed(2.0, 20.0), first) == {QUOTA: 320_000}
    (claim,) = feature.claims(_suppressed(3.0, 20.0), {QUOTA: 320_000})
    assert (claim.value, claim.why) == (
        256_000, "2560m for best-effort work: other pods wait for CPU",
    )  # fmt: skip


def test_under_pressure_best_effort_work_keeps_its_minimum() -> None:
    feature = CpuSuppression(pressure_percent=10.0, forecast_sigmas=None)
    state = _suppressed(1.0, 20.0, cpu_suppress_min_percent=50)
    assert claimed(feature, state) == {QUOTA: 500_000}


def test_switching_suppression_off_forgets_the_cap() -> None:
    feature = CpuSuppression(pressure_percent=10.0, forecast_sigmas=None)
    claimed(feature, _suppressed(1.0, 20.0))
    assert claimed(feature, _suppressed(2.0, 0.0, cpu_suppress_min_percent=None))[QUOTA] == 330_000
    off = msgspec.structs.replace(_suppressed(3.0, 0.0), slo=NodeSLOSpec())
    assert claimed(feature, off) == {}
    assert claimed(feature, _suppressed(4.0, 0.0)) == {QUOTA: 550_000}
