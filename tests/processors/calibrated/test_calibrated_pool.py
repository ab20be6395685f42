from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import CheckpointError
from pipeline.processors.arrays import FloatArray
from pipeline.processors.calibrated import calibrated_pool
from pipeline.processors.calibrated.calibrated_pool import CalibratedPool, PoolPeaks
from pipeline.processors.calibrated.horizon import Horizon
from pipeline.processors.calibrated.pod_usage import PodUsage
from pipeline.processors.calibrated.pooled_margins import BINS
from tests.processors.calibrated.streams import HORIZON, RISKS, new_pool, stationary

_SEEDS = st.integers(0, 2**32 - 1)


def _run(pool: CalibratedPool, stream: list[tuple[int, PodUsage]]) -> list[PoolPeaks]:
    results = []
    for step, usage in stream:
        pool.observe(step, usage)
        results.append(pool.predict())
    return results


def _equal(one: PoolPeaks, other: PoolPeaks) -> bool:
    return (one.nodes == other.nodes).all() and bool((one.peaks == other.peaks).all())


@settings(max_examples=3, deadline=None)
@given(_SEEDS, st.sampled_from([0.0, 0.02]))
def test_peaks_lie_between_0_and_the_requests_and_fall_with_the_risk(
    seed: int, moves: float
) -> None:
    for result in _run(new_pool(), list(stationary(seed, 100, nodes=3, moves=moves))):
        assert (result.peaks >= 0.0).all()
        assert (result.peaks <= result.requests[:, None]).all()
        assert (np.diff(result.peaks, axis=1) <= 0.0).all()


@settings(max_examples=3, deadline=None)
@given(_SEEDS, st.integers(1, 99))
def test_a_pool_restored_from_its_state_continues_exactly(seed: int, cut: int) -> None:
    stream = list(stationary(seed, 100, nodes=3, moves=0.02))
    undisturbed = _run(new_pool(), stream)
    first, second = new_pool(), new_pool()
    _run(first, stream[:cut])
    second.restore(first.state())
    for got, expected in zip(_run(second, stream[cut:]), undisturbed[cut:], strict=True):
        assert _equal(got, expected)


@settings(max_examples=3, deadline=None)
@given(_SEEDS, st.integers(1, 99))
def test_nothing_of_the_future_is_used(seed: int, cut: int) -> None:
    stream = list(stationary(seed, 100, nodes=3, moves=0.02))
    noise = np.random.default_rng(seed + 1)
    other = [
        (step, replace(usage, usage=noise.uniform(0.0, 1e4, len(usage.usage))))
        for step, usage in stream[cut:]
    ]
    before = _run(new_pool(), stream)[:cut]
    after = _run(new_pool(), stream[:cut] + other)[:cut]
    assert all(_equal(one, two) for one, two in zip(before, after, strict=True))


def test_the_order_of_pods_changes_nothing() -> None:
    stream = list(stationary(5, 100, nodes=3, moves=0.02))
    mixed = []
    for step, usage in stream:
        order = np.random.default_rng(step).permutation(len(usage.pods))
        other = PodUsage(
            usage.pods[order],
            usage.nodes[order],
            usage.usage[order],
            usage.requests[order],
            usage.limits[order],
        )
        mixed.append((step, other))
    for one, two in zip(_run(new_pool(), stream), _run(new_pool(), mixed), strict=True):
        assert _equal(one, two)


def test_how_many_pods_are_predicted_at_once_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = list(stationary(7, 60, nodes=5, pods=3, moves=0.02))
    all_at_once = _run(new_pool(), stream)
    monkeypatch.setattr(calibrated_pool, "_PODS_AT_ONCE", 4)
    for one, two in zip(all_at_once, _run(new_pool(), stream), strict=True):
        assert _equal(one, two)


def _measured_rates(steps: int, seed: int) -> FloatArray:
    """Share of predictions that usage exceeded, for each declared risk, after ten days."""
    horizon = Horizon(steps=6, step_seconds=3600)
    pool = CalibratedPool(horizon, RISKS)
    stream = list(stationary(seed, steps, nodes=10, pods=3))
    results = _run(pool, stream)
    totals = np.stack([np.bincount(usage.nodes - 1000, usage.usage) for _, usage in stream])
    exceeded = [
        totals[step + 1 : step + 1 + horizon.steps].max(axis=0)[:, None] > results[step].peaks + 1.0
        for step in range(240, len(stream) - horizon.steps)
    ]
    rates: FloatArray = np.mean(exceeded, axis=(0, 1))
    return rates


def test_measured_rates_approach_the_declared_risks() -> None:
    rates = _measured_rates(24 * 40, seed=2)
    # At 1% some 12 exceedances are expected, too few for a narrow bound.
    assert (rates > 0.5 * np.array(RISKS)).all()
    assert (rates[1:] < 1.25 * np.array(RISKS[1:])).all()


def test_a_horizon_of_a_pool_weighs_as_much_with_many_nodes_as_with_few() -> None:
    few, many = new_pool(), new_pool()
    _run(few, list(stationary(6, 60, nodes=2)))
    _run(many, list(stationary(6, 60, nodes=9)))
    assert few.margins.sum() > 1.0
    assert many.margins.sum() == pytest.approx(few.margins.sum())


def test_a_pool_that_knows_nothing_gives_nothing_away() -> None:
    pool = CalibratedPool(HORIZON, RISKS, np.zeros(BINS))
    for step, usage in stationary(1, HORIZON.steps):
        pool.observe(step, usage)
        result = pool.predict()
        assert (result.peaks == result.requests[:, None]).all()


def test_usage_above_the_requests_is_no_exceedance_where_nothing_is_given_away() -> None:
    """Two pools whose nodes exceed their requests: one could give nothing away, the other had a
    prior that let it give something away, and owes risk."""
    nothing = np.zeros(BINS)
    levels = []
    for prior in (nothing, None):
        pool = CalibratedPool(HORIZON, RISKS, prior)
        for step, usage in stationary(1, HORIZON.steps):
            used = np.where(step < HORIZON.steps - 1, 0.3, 2.0) * usage.requests
            pool.observe(step, replace(usage, usage=used))
            if step < HORIZON.steps - 1:
                pool.predict()
        levels.append(pool.levels())
    assert (levels[0] >= RISKS).all()
    assert (levels[1] < RISKS).all()


def test_unknown_usage_counts_as_the_last_known() -> None:
    stream = list(stationary(4, 60, nodes=2))
    gap = [
        (step, replace(usage, usage=np.where(step == 40, np.nan, usage.usage)))
        for step, usage in stream
    ]
    held = list(stream)
    held[40] = (40, replace(stream[40][1], usage=stream[39][1].usage))
    for one, two in zip(_run(new_pool(), gap), _run(new_pool(), held), strict=True):
        assert _equal(one, two)


def _of_node(pool: CalibratedPool, step: int, used: float) -> None:
    one = np.zeros(1, np.int64)
    pool.observe(step, PodUsage(one, one, np.array([used]), np.full(1, 100.0), np.full(1, 400.0)))
    pool.predict()


def test_pods_use_in_a_gap_what_they_used_last() -> None:
    pool = CalibratedPool(Horizon(144, 300), RISKS, single_node=True)
    _of_node(pool, 0, 70.0)
    _of_node(pool, 60, 50.0)
    block = Horizon(144, 300).block_steps
    ring = pool.state()["pods"]["maxima"]
    restored = CalibratedPool(Horizon(144, 300), RISKS, single_node=True)
    restored.restore(pool.state())
    assert len(ring) == 4 * Horizon(144, 300).ring_blocks
    maxima = restored._state.pods["maxima"][0, : 60 // block + 1]
    assert maxima.tolist() == [70.0] * (60 // block) + [50.0]


@pytest.mark.parametrize("gap", [12, 13])
def test_an_outcome_counts_only_if_usage_was_known(gap: int) -> None:
    # A gap of an hour is known, a longer one is not.
    horizon = Horizon(72, 300)
    pool = CalibratedPool(horizon, RISKS, single_node=True)
    for step in range(40):
        _of_node(pool, step, 50.0)
    for step in range(39 + gap, 72 + 1):
        _of_node(pool, step, 50.0)
    known = pool.outcome_weights(np.zeros(1, np.int64))[0] > 0.0
    assert known == (gap == 12)


def test_nodes_and_pods_that_left_take_no_room() -> None:
    pool = new_pool()
    for step in range(24 * 20):
        node = np.array([step // 24])
        pool.observe(step, PodUsage(node, node, np.ones(1), np.ones(1), np.ones(1)))
        pool.predict()
    assert pool.size == (1, 15)


def test_steps_must_ascend_and_pods_be_unique() -> None:
    pool = new_pool()
    one = np.zeros(1, np.int64)
    usage = PodUsage(one, one, np.ones(1), np.ones(1), np.ones(1))
    pool.observe(5, usage)
    with pytest.raises(ValueError, match="not after"):
        pool.observe(5, usage)
    two = np.ones(2, np.int64)
    with pytest.raises(ValueError, match="twice"):
        pool.observe(6, PodUsage(two, two, np.ones(2), np.ones(2), np.ones(2)))


@pytest.mark.parametrize("risks", [(), (0.0,), (0.0009,), (0.1, 0.05), (0.5, 0.51)])
def test_risks_that_are_none_are_refused(risks: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="ascend"):
        CalibratedPool(HORIZON, risks)


def test_damaged_state_is_refused() -> None:
    pool = new_pool()
    for step, usage in stationary(1, 30, nodes=2):
        pool.observe(step, usage)
        pool.predict()
    state = pool.state()
    state["pods"]["maxima"] = state["pods"]["maxima"][:-4]
    with pytest.raises(CheckpointError):
        new_pool().restore(state)


@pytest.mark.parametrize(
    ("steps", "seconds", "block_steps"),
    [(180, 60, 6), (350, 60, 12), (168, 300, 6), (540, 20, 20), (288, 300, 12), (360, 30, 15)],
)
def test_a_day_is_a_whole_number_of_blocks(steps: int, seconds: int, block_steps: int) -> None:
    """Three hours of windows of a minute are what a backtest judges unless it is asked for else."""
    horizon = Horizon(steps, seconds)
    assert horizon.block_steps == block_steps
    assert horizon.day_blocks * horizon.block_steps * horizon.step_seconds == 86_400
    pool = CalibratedPool(horizon, RISKS, single_node=True)
    pool.observe(0, PodUsage(*np.array([[1], [1]]), *np.array([[1.0], [2.0], [4.0]])))
    assert (pool.predict().peaks <= 2.0).all()


@pytest.mark.parametrize(("steps", "seconds"), [(0, 300), (289, 300), (24, 7), (288, 0)])
def test_impossible_horizons_are_refused(steps: int, seconds: int) -> None:
    with pytest.raises(ValueError):
        Horizon(steps, seconds)
