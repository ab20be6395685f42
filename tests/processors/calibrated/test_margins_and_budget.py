import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.processors.arrays import FloatArray
from pipeline.processors.calibrated import fleet_prior, pooled_margins, risk_budget, risk_level

_RATIOS = st.lists(st.floats(0.1, 10.0), min_size=1, max_size=40)
_LEVELS = st.floats(0.001, 0.5)
_NO_PRIOR = np.zeros(pooled_margins.BINS)


def _histogram(ratios: list[float]) -> FloatArray:
    bins = pooled_margins.bins_of(np.array(ratios))
    return np.bincount(bins, minlength=pooled_margins.BINS).astype(float)


def _margin(pool_ratios: list[float], own_ratios: list[float], level: float) -> float:
    pool, own = _histogram(pool_ratios), _histogram(own_ratios)[None, :]
    joint = pooled_margins.combined(pool, own, _NO_PRIOR)
    above = pooled_margins.survival(joint)
    return float(pooled_margins.margins(above, np.array([[level]]))[0, 0])


def _reference(pool_ratios: list[float], own_ratios: list[float], level: float) -> float:
    """Sorted outcomes with weights: the least one above which at most `level` of the weight is."""
    share = pooled_margins.POOL_WEIGHT / len(pool_ratios)
    outcomes = sorted([(r, share) for r in pool_ratios] + [(r, 1.0) for r in own_ratios])
    total = pooled_margins.POOL_WEIGHT + len(own_ratios)
    for ratio, _ in outcomes:
        above = sum(weight for other, weight in outcomes if other > ratio) / total
        if above <= level + 1e-9:
            return ratio
    raise AssertionError("the highest outcome has nothing above it")


@given(_RATIOS, _RATIOS, _LEVELS)
def test_margins_are_quantiles_of_sorted_outcomes_up_to_one_bin(
    pool_ratios: list[float], own_ratios: list[float], level: float
) -> None:
    got = _margin(pool_ratios, own_ratios, level)
    lower, upper = (_reference(pool_ratios, own_ratios, level + d) for d in (1e-6, -1e-6))
    width = math.exp(pooled_margins.WIDTH * 1.001)
    assert lower / width <= got <= upper * width


@given(_RATIOS, _RATIOS)
def test_the_prior_weighs_as_much_as_a_horizon_of_the_pool(
    ratios: list[float], prior_ratios: list[float]
) -> None:
    pool, prior = _histogram(ratios), _histogram(prior_ratios)
    pool, prior = pool / pool.sum(), prior / prior.sum()
    nothing = np.zeros((1, pooled_margins.BINS))
    got = pooled_margins.combined(pool, nothing, prior)
    assert got[0] == pytest.approx(0.5 * (pool + prior))


@given(_RATIOS, st.lists(_LEVELS, min_size=2, max_size=2, unique=True))
def test_a_lower_level_never_has_a_lower_margin(ratios: list[float], levels: list[float]) -> None:
    low, high = sorted(levels)
    assert _margin(ratios, [], low) >= _margin(ratios, [], high)


def test_without_outcomes_no_margin_is_enough() -> None:
    nothing = np.zeros((2, pooled_margins.BINS))
    joint = pooled_margins.combined(_NO_PRIOR, nothing, _NO_PRIOR)
    factors = pooled_margins.margins(pooled_margins.survival(joint), np.full((2, 1), 0.5))
    assert np.isinf(factors).all()


@settings(max_examples=50)
@given(st.integers(0, 2**32 - 1), st.integers(1, 20), st.floats(0.001, 0.2))
def test_the_budget_is_kept_and_buys_as_much_as_any_equal_level(
    seed: int, nodes: int, mean: float
) -> None:
    rng = np.random.default_rng(seed)
    levels = np.tile(mean * risk_budget.FACTORS, (nodes, 1))
    shares = np.sort(rng.uniform(0.0, 1.5, levels.shape), axis=1)[:, ::-1]
    peaks, risks = risk_budget.spend(shares, levels, mean)
    assert risks.mean() <= mean * (1 + 1e-9)
    assert ((peaks >= 0.0) & (peaks <= 1.0)).all()
    assert (risks[peaks == 1.0] == 0.0).all()
    # Levels up to the mean are one way to keep the budget.
    equal = np.minimum(shares[:, risk_budget.FACTORS <= 1.0].min(axis=1), 1.0)
    # A discrete choice may waste less than what one node can take.
    assert peaks.sum() <= equal.sum() + 1.0


def test_an_exceedance_lowers_the_level_and_none_raises_it() -> None:
    risks = np.array([0.02, 0.1])
    nothing = np.zeros(2)
    assert (risk_level.level(risks, nothing, nothing, 100.0) == risks).all()
    assert (risk_level.level(risks, -risks, nothing, 100.0) < risks).all()
    assert (risk_level.level(risks, nothing, risks, 100.0) > risks).all()
    lowest = risk_level.level(risks, np.full(2, -1e9), nothing, 100.0)
    assert lowest == pytest.approx(risks / 4)


@given(st.floats(-1e6, 1e6))
def test_debts_and_unspent_risk_are_bounded(debt: float) -> None:
    risks, repayment = np.array([0.02]), 864.0
    cut = risk_level.bounded(np.array([debt]), risks, repayment)
    moved = risk_level.level(risks, cut, np.zeros(1), repayment)
    assert 0.75 * risks - 1e-12 <= moved <= 1.375 * risks + 1e-12
    assert abs(float(cut[0])) <= abs(debt)


def test_fleets_without_outcomes_have_no_prior() -> None:
    assert fleet_prior.quantiles_of([_NO_PRIOR]) is None


def test_the_prior_that_ships_is_a_distribution() -> None:
    prior = fleet_prior.histogram()
    assert prior.shape == (pooled_margins.BINS,)
    assert prior.sum() == pytest.approx(1.0)
    assert (prior >= 0.0).all()


@settings(max_examples=20)
@given(st.lists(st.floats(0.2, 5.0), min_size=100, max_size=100))
def test_quantiles_of_a_prior_survive_writing_and_reading(ratios: list[float]) -> None:
    fleet = _histogram(ratios)
    quantiles = fleet_prior.quantiles_of([fleet, _NO_PRIOR])
    assert quantiles is not None
    above = pooled_margins.survival(fleet_prior.histogram_of(quantiles)[None, :])
    exact = pooled_margins.survival(fleet[None, :] / fleet.sum())
    # Half of the weight has a longer tail, so the prior is never more optimistic at its quantiles.
    for level in (0.1, 0.05, 0.02):
        got = pooled_margins.margins(above, np.array([[level]]))
        least = pooled_margins.margins(exact, np.array([[level]]))
        assert (got >= least * math.exp(-2 * pooled_margins.WIDTH)).all()
