"""New pods take over what pods of their workload did."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.processors.arrays import FloatArray
from pipeline.processors.calibrated.calibrated_pool import CalibratedPool, PoolPeaks
from pipeline.processors.calibrated.horizon import Horizon
from pipeline.processors.calibrated.pod_usage import PodUsage
from tests.processors.calibrated.streams import RISKS, stationary

_HORIZON = Horizon(24, 3600)
"""Steps and blocks of an hour: a day is 24 of them."""
_NONE = -1


def new_pool(most_departed: int = 10) -> CalibratedPool:
    return CalibratedPool(_HORIZON, RISKS, single_node=True, most_departed=most_departed)


def observe(
    pool: CalibratedPool, step: int, pods: dict[int, float], workloads: dict[int, int] | None = None
) -> None:
    """Usage by id of pod, all on one node with a request of 100; the workload of each, by default
    the same."""
    ids = np.array([*pods], np.int64)
    same = dict.fromkeys(pods, 7) if workloads is None else workloads
    usage = np.array([*pods.values()], np.float64)
    hundred = np.full(len(ids), 100.0)
    of_pods = np.array([same[pod] for pod in pods], np.int64)
    nodes = np.zeros(len(ids), np.int64)
    pool.observe(step, PodUsage(ids, nodes, usage, hundred, 4.0 * hundred, of_pods))


def history(pool: CalibratedPool, pod: int, steps: range) -> list[float]:
    """The highest usage of a pod in each of these hours."""
    row = int(pool._state.pods.find(np.array([pod]))[0])
    ring: FloatArray = pool._state.pods["maxima"][row]
    hours: list[float] = ring[np.array(steps) % len(ring)].tolist()
    return hours


def first_step(pool: CalibratedPool, pod: int) -> int:
    return int(pool._state.pods["first_step"][pool._state.pods.find(np.array([pod]))[0]])


def test_a_pod_continues_the_history_of_the_one_that_it_replaces() -> None:
    pool = new_pool()
    for step, used in enumerate((10.0, 20.0, 30.0)):
        observe(pool, step, {1: used})
    observe(pool, 3, {2: 40.0})
    assert history(pool, 2, range(4)) == [10.0, 20.0, 30.0, 40.0]
    assert first_step(pool, 2) == 0
    assert pool.highest_usage(np.array([2])).tolist() == [40.0]


def test_an_absence_repeats_the_last_day() -> None:
    pool = new_pool()
    for step in range(30):
        observe(pool, step, {1: float(step)})
    for step in range(30, 36):
        observe(pool, step, {9: 5.0}, {9: 8})
    observe(pool, 36, {9: 5.0, 2: 99.0}, {9: 8, 2: 7})
    # From 30 on it did what it did a day before.
    assert history(pool, 2, range(28, 37)) == [28, 29, 6, 7, 8, 9, 10, 11, 99]


def test_an_absence_while_nothing_is_known_of_the_node_repeats_the_last_day_too() -> None:
    pool, day = new_pool(), [float(10 + hour) for hour in range(24)]
    for step in range(48):
        observe(pool, step, {1: day[step % 24]})
    observe(pool, 48 + 60, {2: 5.0})
    assert history(pool, 2, range(48, 48 + 60)) == [day[step % 24] for step in range(48, 108)]
    assert history(pool, 2, range(108, 109)) == [5.0]


def test_an_absence_repeats_all_of_a_history_below_a_day() -> None:
    pool = new_pool()
    for step, used in enumerate((10.0, 20.0, 30.0)):
        observe(pool, step, {1: used, 9: 5.0}, {1: 7, 9: 8})
    for step in range(3, 8):
        observe(pool, step, {9: 5.0}, {9: 8})
    observe(pool, 8, {9: 5.0, 2: 40.0}, {9: 8, 2: 7})
    assert history(pool, 2, range(9)) == [10, 20, 30, 10, 20, 30, 10, 20, 40]


def test_each_pod_of_a_workload_hands_its_history_to_another_one() -> None:
    pool = new_pool()
    for step in range(3):
        observe(pool, step, {1: 10.0, 2: 20.0})
    observe(pool, 3, {3: 15.0, 4: 15.0})
    assert sorted(history(pool, pod, range(3))[0] for pod in (3, 4)) == [10.0, 20.0]


def test_more_pods_than_were_replaced_take_copies() -> None:
    pool = new_pool()
    for step in range(3):
        observe(pool, step, {1: 10.0})
    observe(pool, 3, {3: 15.0, 4: 15.0})
    assert [history(pool, pod, range(3)) for pod in (3, 4)] == [[10.0] * 3] * 2


def test_one_more_replica_copies_the_longest_history() -> None:
    pool = new_pool()
    observe(pool, 0, {2: 20.0, 1: 1.0}, {2: 7, 1: _NONE})
    observe(pool, 1, {2: 20.0, 1: 1.0, 5: 3.0}, {2: 7, 1: _NONE, 5: _NONE})
    observe(pool, 2, {2: 20.0, 1: 1.0, 5: 3.0, 6: 4.0}, {2: 7, 1: 9, 5: 7, 6: 7})
    assert history(pool, 6, range(3)) == [20.0, 20.0, 4.0]


def test_a_pod_that_left_long_ago_is_a_worse_example_than_one_that_runs() -> None:
    pool = new_pool()
    observe(pool, 0, {1: 10.0, 2: 20.0})
    for step in range(1, 4):
        observe(pool, step, {2: 20.0})
    observe(pool, 4, {2: 20.0, 3: 1.0})
    assert history(pool, 3, range(4)) == [20.0] * 4


@pytest.mark.parametrize("workload", [_NONE, 7])
def test_a_pod_that_returns_has_its_own_history_even_without_a_workload(workload: int) -> None:
    pool = new_pool()
    for step in range(2):
        observe(pool, step, {1: 10.0, 2: 20.0}, {1: workload, 2: 7})
    observe(pool, 2, {2: 20.0})
    observe(pool, 3, {1: 1.0, 2: 20.0}, {1: workload, 2: 7})
    assert history(pool, 1, range(4)) == [10.0, 10.0, 10.0, 1.0]


@pytest.mark.parametrize("workload", [_NONE, 8])
def test_strangers_borrow_nothing(workload: int) -> None:
    pool = new_pool()
    for step in range(3):
        observe(pool, step, {1: 10.0, 3: 30.0}, {1: _NONE, 3: 7})
    observe(pool, 3, {2: 40.0}, {2: workload})
    assert first_step(pool, 2) == 3


@pytest.mark.parametrize("every", [2, 24])
def test_each_run_of_a_cron_job_borrows_from_the_last(every: int) -> None:
    pool = new_pool()
    peaks = []
    for step in range(24 * 12):
        run = {100 + step: 20.0 + step % 5} if step % every == 0 else {}
        observe(pool, step, {1: 10.0} | run, {1: _NONE} | dict.fromkeys(run, 7))
        result = pool.predict()
        if run:
            assert first_step(pool, 100 + step) == 0
            peaks.append(float(result.peaks[0, 1]))
        assert len(pool._state.departed) <= 1
    # The requests are 200.
    assert all(30.0 < peak < 150.0 for peak in peaks[-5:])


@pytest.mark.parametrize(("days", "first"), [(7, 0), (8, 24 * 8)])
def test_histories_expire_after_a_week(days: int, first: int) -> None:
    pool = new_pool()
    for step in range(24 * days):
        observe(pool, step, {1: 10.0} if step == 0 else {9: 5.0}, {1: 7, 9: 8})
    observe(pool, 24 * days, {2: 10.0})
    assert first_step(pool, 2) == first


def test_jobs_with_ever_new_pods_do_not_push_out_other_workloads() -> None:
    pool = new_pool(most_departed=4)
    for step in range(8):
        observe(pool, step, {1: 10.0, 2: 20.0}, {1: 7, 2: 8})
    for step in range(8, 100):
        of_one_job = {100 + 3 * step + i: float(step) for i in range(step % 4)}
        of_another, without = {1_000 + step: 1.0}, {2_000 + step: 1.0}
        observe(
            pool,
            step,
            of_one_job | of_another | without,
            dict.fromkeys(of_one_job, 5) | dict.fromkeys(of_another, step) | {2_000 + step: _NONE},
        )
        assert len(pool._state.departed) <= 4
    observe(pool, 100, {3: 1.0, 4: 1.0}, {3: 7, 4: 8})
    assert [first_step(pool, pod) for pod in (3, 4)] == [0, 0]


def test_without_room_for_departed_pods_only_running_ones_lend() -> None:
    pool = new_pool(most_departed=0)
    observe(pool, 0, {1: 10.0, 2: 20.0})
    observe(pool, 1, {2: 20.0, 3: 5.0})
    observe(pool, 2, {4: 1.0})
    assert first_step(pool, 4) == 2


def test_another_request_does_not_change_what_was_used() -> None:
    pool = new_pool()
    for step in range(3):
        observe(pool, step, {1: 50.0})
    one = np.ones(1, np.int64)
    half = PodUsage(2 * one, 0 * one, np.array([45.0]), np.full(1, 60.0), np.full(1, 60.0), 7 * one)
    pool.observe(3, half)
    assert history(pool, 2, range(4)) == [50.0, 50.0, 50.0, 45.0]
    assert pool.predict().requests.tolist() == [60.0]


def test_borrowed_first_horizons_are_no_experience_of_strangers() -> None:
    pool = new_pool()
    for step in range(20):
        observe(pool, step, {step: 10.0})
    for step in range(20, 60):
        observe(pool, step, {20: 10.0})
    # That of the pod of step 0, which ended at once.
    assert pool._state.experience.first_windows().tolist() == [pytest.approx([0.1] + [0.0] * 24)]


def _renamed(seed: int, steps: int, every: int, workloads: bool) -> list[tuple[int, PodUsage]]:
    """A stationary stream whose pods are replaced by new ones of their workload every so many
    steps, all at once."""
    return [
        (
            step,
            replace(
                usage,
                pods=usage.pods + 1000 * (step // every),
                workloads=usage.pods if workloads else None,
            ),
        )
        for step, usage in stationary(seed, steps, nodes=1)
    ]


def _peaks(pool: CalibratedPool, stream: list[tuple[int, PodUsage]]) -> list[PoolPeaks]:
    results = []
    for step, usage in stream:
        pool.observe(step, usage)
        results.append(pool.predict())
    return results


@pytest.mark.parametrize("seed", range(3))
def test_rollouts_of_known_workloads_hardly_change_peaks(seed: int) -> None:
    steps, last = 130, 120
    kept = _peaks(new_pool(), list(stationary(seed, steps, nodes=1)))[last].peaks[0, 1]
    known = _peaks(new_pool(), _renamed(seed, steps, last, workloads=True))[last].peaks[0, 1]
    strange = _peaks(new_pool(), _renamed(seed, steps, last, workloads=False))[last].peaks[0, 1]
    assert known == pytest.approx(kept, rel=0.03)
    assert strange > 1.05 * kept


@pytest.mark.parametrize("seed", range(2))
def test_a_pool_restored_at_any_step_continues_exactly(seed: int) -> None:
    stream = _renamed(seed, 150, 17, workloads=True)
    undisturbed = _peaks(new_pool(), stream)
    random = np.random.default_rng(seed)
    pool, results = new_pool(), []
    for first, last in pairwise([0, *sorted(random.integers(1, 150, 5).tolist()), 150]):
        restored = new_pool()
        restored.restore(pool.state())
        pool = restored
        results += _peaks(pool, stream[first:last])
    for got, expected in zip(results, undisturbed, strict=True):
        assert (got.peaks == expected.peaks).all()


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_histories_under_random_churn(seed: int) -> None:
    """Pods of a few workloads come, go and return at any step, listed in any order."""
    random = np.random.default_rng(seed)
    pool, mixed, began = new_pool(most_departed=3), new_pool(most_departed=3), dict[int, int]()
    for step in np.cumsum(random.integers(1, 4, 120)).tolist():
        ids = np.sort(random.choice(12, random.integers(0, 6), replace=False))
        workloads = ids % 4 - 1
        usage = random.lognormal(3.0, 1.0, len(ids))
        listed = PodUsage(
            ids, 0 * ids, usage, np.full(len(ids), 60.0), np.full(len(ids), 240.0), workloads
        )
        order = random.permutation(len(ids))
        names = ("pods", "nodes", "usage", "requests", "limits", "workloads")
        pool.observe(step, listed)
        mixed.observe(step, PodUsage(*(getattr(listed, name)[order] for name in names)))
        pool.predict()
        mixed.predict()
        assert pool.state() == mixed.state()
        rows, departed = pool._state.pods.rows, pool._state.departed
        assert len(departed) <= 3
        assert (departed.find(ids) < 0).all()
        for pod, workload in zip(ids.tolist(), workloads.tolist(), strict=True):
            began.setdefault(workload if workload >= 0 else -1 - pod, step)
        firsts = zip(
            ids.tolist(),
            workloads.tolist(),
            pool._state.pods["first_step"][rows].tolist(),
            strict=True,
        )
        for pod, workload, first in firsts:
            assert began[workload if workload >= 0 else -1 - pod] <= first <= step


def test_a_state_without_workloads_is_restored() -> None:
    stream = list(stationary(1, 60, nodes=1))
    pool = new_pool()
    _peaks(pool, stream[:40])
    old = pool.state()
    del old["departed"], old["pods"]["workload"]
    restored = new_pool()
    restored.restore(old)
    for got, expected in zip(_peaks(restored, stream[40:]), _peaks(pool, stream[40:]), strict=True):
        assert (got.peaks == expected.peaks).all()
