"""Pods begin with what pods of their workload used on other nodes."""

from itertools import pairwise

import numpy as np
import pytest

from pipeline.processors.arrays import FloatArray
from pipeline.processors.calibrated.calibrated_pool import CalibratedPool
from pipeline.processors.calibrated.horizon import Horizon
from pipeline.processors.calibrated.pod_usage import PodUsage
from pipeline.processors.calibrated.workload_history import (
    LEAST_HOURS,
    HourlyPeaks,
    hourly_peaks,
    stated,
)
from pipeline.topics.workload_histories import MOST_HOURS
from tests.processors.calibrated.streams import RISKS

HOURLY = Horizon(24, 3600)
DAY = Horizon(288)
QUARTERS = Horizon(72)
"""Blocks of a quarter of an hour."""
FORTIES = Horizon(192)
"""Blocks of 40 minutes, which divide no hour."""
WEB = 7


def new_pool(horizon: Horizon = HOURLY) -> CalibratedPool:
    return CalibratedPool(horizon, RISKS, single_node=True, most_departed=10)


def observe(
    pool: CalibratedPool,
    step: int,
    pods: dict[int, float],
    elsewhere: dict[int, HourlyPeaks] | None = None,
    workload: int = WEB,
) -> None:
    """Usage by id of pod, all of one workload, with a request of 100."""
    ids = np.array([*pods], np.int64)
    usage = np.array([*pods.values()], np.float64)
    hundred = np.full(len(ids), 100.0)
    of_pods, nodes = np.full(len(ids), workload), np.zeros(len(ids), np.int64)
    told = {} if elsewhere is None else elsewhere
    pool.observe(step, PodUsage(ids, nodes, usage, hundred, 4.0 * hundred, of_pods), told)


def row_of(pool: CalibratedPool, pod: int) -> int:
    return int(pool._state.pods.find(np.array([pod]))[0])


def blocks_of(pool: CalibratedPool, pod: int, blocks: range) -> list[float]:
    ring: FloatArray = pool._state.pods["maxima"][row_of(pool, pod)]
    of_blocks: list[float] = ring[np.array(blocks) % len(ring)].tolist()
    return of_blocks


def field(pool: CalibratedPool, pod: int, name: str) -> float:
    return float(pool._state.pods[name][row_of(pool, pod)])


def daily(hours: int) -> list[float]:
    """A usage that is another one in each hour of the day."""
    return [10.0 + hour % 24 for hour in range(hours)]


def learned(steps: int, horizon: Horizon = HOURLY) -> CalibratedPool:
    """A node whose pod 1 used `daily`."""
    pool, hour = new_pool(horizon), 3600 // horizon.step_seconds
    usage = daily(steps // hour + 1)
    for step in range(steps):
        observe(pool, step, {1: usage[step // hour]})
    return pool


def test_a_node_states_the_hours_of_its_workloads() -> None:
    history = learned(30).workload_histories()[WEB]
    assert (history.end_hour, history.peaks.tolist()) == (30, daily(30))


def test_a_history_has_seven_days_at_most() -> None:
    history = learned(24 * 10).workload_histories()[WEB]
    assert (history.end_hour, len(history.peaks)) == (240, MOST_HOURS)


def test_hours_that_are_not_over_are_left_out() -> None:
    pool = new_pool(DAY)
    for step in range(6, 12 * 8 + 3):
        observe(pool, step, {1: float(step)})
    history = pool.workload_histories()[WEB]
    assert history.end_hour == 8
    assert history.peaks.tolist() == [float(12 * hour + 11) for hour in range(1, 8)]


@pytest.mark.parametrize(("hours", "is_stated"), [(LEAST_HOURS - 1, False), (LEAST_HOURS, True)])
def test_young_pods_say_nothing_of_their_workload(hours: int, is_stated: bool) -> None:
    assert (WEB in learned(hours).workload_histories()) == is_stated


def test_pods_without_a_workload_say_nothing() -> None:
    pool = new_pool()
    for step in range(30):
        observe(pool, step, {1: 10.0}, workload=-1)
    assert pool.workload_histories() == {}


def test_the_longest_history_counts_also_of_a_pod_that_ended() -> None:
    pool = learned(30)
    for step in range(30, 30 + 24 * 7):
        observe(pool, step, {9: 9.0}, workload=-1)
    history = pool.workload_histories()[WEB]
    assert (history.end_hour, history.peaks.tolist()) == (30, daily(30))
    observe(pool, 31 + 24 * 7, {9: 9.0}, workload=-1)
    assert pool.workload_histories() == {}


def test_of_two_pods_with_one_history_the_first_counts() -> None:
    pool = learned(20)
    for step in range(20, 30):
        observe(pool, step, {1: 1.0, 2: 2.0})
    assert pool.workload_histories()[WEB].peaks.tolist() == [*daily(20), *[1.0] * 10]
    for step in range(30, 34):
        observe(pool, step, {2: 2.0})
    assert pool.workload_histories()[WEB].peaks.tolist() == [*daily(20), *[2.0] * 14]


def test_a_pod_begins_with_what_its_workload_used_on_another_node() -> None:
    pool, told = new_pool(), learned(48).workload_histories()
    observe(pool, 48, {2: 99.0}, told)
    assert blocks_of(pool, 2, range(49)) == [*daily(48), 99.0]
    assert (field(pool, 2, "first_step"), field(pool, 2, "arrived")) == (0, 48)
    assert (field(pool, 2, "past_peak"), field(pool, 2, "peak")) == (33.0, 99.0)
    assert field(pool, 2, "sum") / field(pool, 2, "samples") == pytest.approx(
        (sum(daily(48)) + 99.0) / 49
    )


def test_the_hours_since_then_repeat_the_last_day() -> None:
    pool, told = new_pool(), learned(48).workload_histories()
    observe(pool, 48 + 100, {2: 99.0}, told)
    assert blocks_of(pool, 2, range(148)) == daily(148)


def test_a_history_below_a_day_repeats_all_of_it() -> None:
    pool = new_pool()
    told = {WEB: HourlyPeaks(10, np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]))}
    observe(pool, 20, {2: 9.0}, told)
    assert blocks_of(pool, 2, range(3, 21)) == [
        1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 9,
    ]  # fmt: skip


@pytest.mark.parametrize("target", [DAY, QUARTERS, FORTIES])
@pytest.mark.parametrize("source", [DAY, QUARTERS, FORTIES])
def test_horizons_may_differ(source: Horizon, target: Horizon) -> None:
    """Whatever the blocks, what is known of a time is never lower than what was used."""
    told = learned(48 * 12, source).workload_histories()
    pool, step, usage = new_pool(target), 48 * 12 + 7, daily(50)
    observe(pool, step, {2: 9.0}, told)
    length = target.block_steps
    got = blocks_of(pool, 2, range(step // length))
    for block, peak in enumerate(got):
        first, last = block * length // 12, ((block + 1) * length - 1) // 12
        highest = max(usage[first : last + 1])
        near = max(usage[max(first - 1, 0) : last + 2])
        assert highest <= peak <= near, (block, peak)


def test_what_is_known_on_the_node_comes_first() -> None:
    told = {WEB: HourlyPeaks(30, np.full(30, 50.0))}
    running, ended = learned(30), learned(30)
    observe(running, 30, {1: 10.0, 2: 9.0}, told)
    observe(ended, 30, {9: 9.0}, told, workload=-1)
    observe(ended, 35, {2: 9.0}, told)
    for pool in (running, ended):
        assert blocks_of(pool, 2, range(30)) == daily(30)


def test_several_pods_that_come_at_once_have_the_same_history() -> None:
    pool, told = new_pool(), learned(30).workload_histories()
    observe(pool, 30, {2: 9.0, 3: 8.0}, told)
    assert blocks_of(pool, 2, range(30)) == blocks_of(pool, 3, range(30)) == daily(30)


@pytest.mark.parametrize(
    "told", [{WEB + 1: HourlyPeaks(30, np.full(30, 50.0))}, {WEB: HourlyPeaks(90, np.ones(30))}]
)
def test_a_history_of_another_workload_or_of_the_future_is_not_used(
    told: dict[int, HourlyPeaks],
) -> None:
    pool = new_pool()
    observe(pool, 30, {2: 9.0}, told)
    assert field(pool, 2, "first_step") == 30


def test_of_a_history_that_reaches_into_the_future_the_past_counts() -> None:
    pool = new_pool()
    observe(pool, 30, {2: 9.0}, {WEB: HourlyPeaks(40, np.array(daily(40)))})
    assert blocks_of(pool, 2, range(31)) == [*daily(30), 9.0]


def test_borrowed_hours_tell_nothing_of_strangers() -> None:
    pool, told = new_pool(), learned(30).workload_histories()
    for step in range(30, 80):
        observe(pool, step, {2: 9.0}, told)
    assert not len(pool._state.experience.first_windows())


def test_a_node_learns_from_a_history_how_pods_grow() -> None:
    hours = np.repeat([10.0, 10.0, 20.0, 20.0, 20.0], 24)
    pool = new_pool()
    observe(pool, 120, {2: 9.0}, {WEB: HourlyPeaks(120, hours)})
    # Of four horizons one outgrew the past: from 10 to 20, of a limit of 400.
    seen = pool._state.experience
    ages = seen.probability_to_outgrow(np.array([1, 2, 3, 4, 7]))
    assert ages == pytest.approx([1 / 3, 2 / 4, 1 / 6, 1 / 7, 1 / 8])
    assert seen.growth_steps() == pytest.approx([np.log(2.0) / np.log(40.0)])


def test_a_history_teaches_growth_once_whatever_the_number_of_its_pods() -> None:
    hours = {WEB: HourlyPeaks(120, np.repeat([10.0, 10.0, 20.0, 20.0, 20.0], 24))}
    one, several = new_pool(), new_pool()
    observe(one, 120, {2: 9.0}, hours)
    observe(several, 120, {2: 9.0, 3: 9.0, 4: 9.0}, hours)
    assert several._state.experience.state() == one._state.experience.state()


def test_a_known_pod_is_predicted_from_its_day_and_a_stranger_from_its_request() -> None:
    shares = []
    for told in ({}, learned(24 * 7).workload_histories()):
        pool = new_pool()
        observe(pool, 24 * 7, {2: 12.0}, told)
        (peaks,) = pool.predict().peaks
        assert all(lower >= higher for lower, higher in pairwise(peaks.tolist()))
        shares.append(peaks[1] / 100.0)
    stranger, known = shares
    assert known < 0.7 * stranger


@pytest.mark.parametrize("unit", [1e-3, 2.0**20])
def test_a_stated_history_is_the_same_to_a_255th_and_never_lower(unit: float) -> None:
    peaks = np.random.default_rng(1).lognormal(3.0, 1.0, MOST_HOURS)
    history = HourlyPeaks(472_222, peaks)
    got = hourly_peaks(stated(history, unit), unit)
    assert got.end_hour == history.end_hour
    assert (got.peaks >= peaks * (1 - 1e-12)).all()
    assert (got.peaks <= peaks + peaks.max() / 255 + 1e-9).all()


def test_a_workload_that_used_nothing_is_stated_too() -> None:
    got = hourly_peaks(stated(HourlyPeaks(472_222, np.zeros(6)), 1e-3), 1e-3)
    assert got.peaks.tolist() == [0.0] * 6
