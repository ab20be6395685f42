"""Intervals of rates: what they cover, and how sure little history can be."""

import numpy as np
import pytest

from pipeline.processors.backtest.rate_confidence import (
    least_upper_bound,
    most_sureness,
    needed_trials,
    rate_confidence,
    time_blocks,
)


def test_blocks_of_steps_and_a_short_last_one() -> None:
    at = np.arange(100, 100 + 30, 3)
    assert time_blocks(at, 12).tolist() == [0] * 4 + [1] * 6  # 4 of 12 steps are no block
    assert time_blocks(at, 10).tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert time_blocks(at, 13).tolist() == [0] * 5 + [1] * 5
    assert time_blocks(at, 1000).tolist() == [0] * 10


def test_interval_covers_the_rate_of_dependent_points() -> None:
    """Violations come in whole days, on some nodes more than on others; all nodes share bad days.
    Points taken as independent would give an interval that is far too narrow."""
    random = np.random.default_rng(1)
    covered, naive = 0, 0
    for _ in range(100):
        node_rates = np.clip(random.gamma(2.0, 0.02, 12), 0, 1)
        day_factors = random.gamma(4.0, 0.25, 20)
        chances = np.clip(node_rates[:, None] * day_factors, 0, 1)
        violated = np.repeat(random.random((12, 20)) < chances, 24, axis=1)
        blocks = np.repeat(np.arange(20), 24)
        result = rate_confidence(violated, np.ones_like(violated), blocks, 0.05)
        covered += result.low <= 0.04 <= result.high
        rate = violated.mean()
        naive += abs(rate - 0.04) <= 1.645 * np.sqrt(rate * (1 - rate) / violated.size)
    assert covered >= 85
    assert naive <= 60


def test_same_points_give_the_same_interval() -> None:
    random = np.random.default_rng(2)
    violated = random.random((5, 60)) < 0.1
    arguments = (violated, np.ones_like(violated), np.repeat(np.arange(6), 10), 0.1)
    assert rate_confidence(*arguments) == rate_confidence(*arguments)


def test_history_without_violations_is_as_sure_as_its_trials() -> None:
    scored = np.ones((10, 70), np.bool_)
    blocks = np.repeat(np.arange(7), 10)
    result = rate_confidence(~scored, scored, blocks, 0.02)
    assert (result.low, result.trials) == (0.0, 70.0)
    assert result.high == pytest.approx(least_upper_bound(70)) == pytest.approx(0.0419, abs=1e-4)
    assert result.sureness == pytest.approx(1 - 0.98**70)
    # Three spreads of the same pods are no three fleets.
    spread = rate_confidence(~scored, scored, blocks, 0.02, copies=3.0)
    assert spread.trials == 70 / 3
    assert spread.sureness == pytest.approx(1 - 0.98 ** (70 / 3))
    assert most_sureness(needed_trials(0.9, 0.02), 0.02) >= 0.9
    assert most_sureness(needed_trials(0.9, 0.02) - 1, 0.02) < 0.9


def test_node_without_points_does_not_count() -> None:
    violated = np.zeros((3, 40), np.bool_)
    violated[0] = True
    scored = np.ones_like(violated)
    scored[2] = False
    blocks = np.repeat(np.arange(4), 10)
    one, other = (
        rate_confidence(violated[rows], scored[rows], blocks, 0.5) for rows in ([0, 1, 2], [0, 1])
    )
    assert one == other
    assert one.low <= 0.5 <= one.high
