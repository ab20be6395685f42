"""Three sigma: known distributions give known proposals, and unknown usage gives none."""

from statistics import NormalDist
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pipeline.processors.arrays import FloatArray
from pipeline.processors.hot_nodes.threshold_advice import (
    Advice,
    NodeHistories,
    Present,
    advise,
    share_above,
    total_spread,
)

DAY = 86_400.0
NOTHING = np.full(4, np.nan)
USAGE = arrays(
    np.float64, st.tuples(st.integers(1, 8), st.integers(1, 30)),
    elements=st.floats(0.0, 100.0, allow_subnormal=False),
)  # fmt: skip
"""Usage (nodes, windows) in percent."""


def histories(mean: Any, stdev: Any, **changes: Any) -> NodeHistories:
    """Nodes with two days of this history of every rule."""
    mean, stdev = (
        np.repeat(np.asarray(each, np.float64)[:, None], 4, axis=1) for each in (mean, stdev)
    )
    nodes = NodeHistories(
        mean, stdev, seconds=np.full_like(mean, 2 * DAY), usage=mean.copy(),
        is_fresh=np.full(len(mean), True),
    )  # fmt: skip
    return nodes._replace(**changes)


def present(
    cpu: float = np.nan, prod: float = np.nan, low: float = np.nan, *, deviates: bool = False
) -> Present:
    """Thresholds of CPU."""
    high, lows = NOTHING.copy(), NOTHING.copy()
    high[[0, 2]], lows[0] = (cpu, prod), low
    return Present(high, lows, deviates)


def of_cpu(nodes: NodeHistories, thresholds: Present | None = None) -> Advice:
    return advise(nodes, thresholds or present(cpu=65.0))[0]


def moments_of(usage: FloatArray) -> NodeHistories:
    """What the models know of usage (nodes, windows)."""
    return histories(usage.mean(axis=1), usage.std(axis=1))


# -- known distributions


def test_known_normal_usage_gives_the_known_proposal_and_is_rarely_above_it() -> None:
    random = np.random.default_rng(17)
    # Between nodes N(50, 4), over time N(node, 5): together N(50, sqrt(41)), and 3 sigma is 69.2.
    means = NormalDist(50.0, 4.0)
    ranks = (np.arange(500) + 0.5) / 500
    nodes = np.array([means.inv_cdf(rank) for rank in ranks.tolist()])
    usage = nodes[:, None] + random.normal(0.0, 5.0, (500, 2000))
    advice = of_cpu(moments_of(usage))
    assert advice.mean_percent == pytest.approx(50.0, abs=0.05)
    assert advice.sigma_percent == pytest.approx(41.0**0.5, abs=0.05)
    assert advice.three_sigma_percent == pytest.approx(69.2, abs=0.15)
    assert (advice.proposed_low_percent, advice.proposed_high_percent) == (44, 70)
    assert advice.over_time_share == pytest.approx(25 / 41, abs=0.01)
    exceeded = (usage > 50.0 + 3.0 * 41.0**0.5).mean()
    assert exceeded == pytest.approx(1.0 - NormalDist().cdf(3.0), rel=0.15)
    above = 100.0 * (usage > 65.0).mean()
    assert advice.time_above_percent == pytest.approx(above, rel=0.1)


def test_nodes_that_differ_and_nodes_that_vary_give_one_threshold_and_different_cures() -> None:
    differ = of_cpu(histories([41.0, 61.0] * 5, [0.0] * 10))
    vary = of_cpu(histories([51.0] * 10, [10.0] * 10))
    for advice, share in ((differ, 0.0), (vary, 1.0)):
        assert (advice.mean_percent, advice.sigma_percent) == (51.0, 10.0)
        assert (advice.proposed_low_percent, advice.proposed_high_percent) == (41, 81)
        assert advice.over_time_share == share
    assert "split the pool" in differ.reason
    assert "TimeSharedThresholds may allow more in the valley" in vary.reason


@given(USAGE)
def test_variance_of_a_pool_is_that_of_all_its_windows(usage: FloatArray) -> None:
    spread = total_spread(usage.mean(axis=1), usage.std(axis=1))
    assert spread.mean == pytest.approx(usage.mean(), abs=1e-9)
    assert spread.over_time + spread.between_nodes == pytest.approx(usage.var(), abs=1e-6)


@given(USAGE)
def test_no_usage_of_any_distribution_is_above_three_sigma_in_more_than_a_tenth_of_time(
    usage: FloatArray,
) -> None:
    spread = total_spread(usage.mean(axis=1), usage.std(axis=1))
    assert (usage > spread.mean + 3.0 * spread.sigma + 1e-6).mean() <= 0.1


@given(st.floats(0.0, 100.0), st.floats(0.1, 30.0), st.floats(0.0, 100.0))
def test_share_above_is_the_tail_of_a_normal(mean: float, stdev: float, threshold: float) -> None:
    tail = NormalDist().cdf((mean - threshold) / stdev)
    share = share_above(np.array([mean]), np.array([stdev]), threshold)
    assert share == pytest.approx(tail, abs=1e-12)


def test_share_above_of_nodes_that_differ_is_that_of_their_mixture_not_of_one_normal() -> None:
    mean, stdev = np.array([20.0, 80.0]), np.array([1.0, 0.0])
    assert share_above(mean, stdev, 65.0) == 0.5
    assert share_above(mean, stdev, 80.0) == 0.0


# -- what does not count


def test_stale_short_and_unknown_nodes_count_as_nodes_and_in_nothing_else() -> None:
    whole = histories([50.0] * 6, [5.0] * 6)
    alone = of_cpu(whole)
    absurd = [np.nan, -1.0, 106.0, 50.0, 50.0]
    nodes = histories(
        [50.0] * 6 + [90.0, 90.0] + absurd, [5.0] * 13,
        is_fresh=np.array([True] * 6 + [False] + [True] * 6),
    )  # fmt: skip
    nodes.seconds[7] = DAY - 1.0
    nodes.stdev[11:] = np.array([[106.0], [np.nan]])
    advice = of_cpu(nodes)
    assert (advice.nodes, advice.known_nodes) == (13, 6)
    assert advice.excluded_nodes == {"stale": 1, "short": 1, "unknown": 5}
    # Six of thirteen are less than half.
    assert advice.proposed_high_percent is None
    assert advice.reason.endswith("history of 6 of 13 nodes is known, 7 are needed")
    same = ("mean_percent", "sigma_percent", "three_sigma_percent", "time_above_percent")
    assert all(getattr(advice, name) == getattr(alone, name) for name in same)
    assert alone.proposed_high_percent == 65


@pytest.mark.parametrize("history", [np.nan, 0.0, DAY - 1.0])
def test_without_a_day_of_history_nothing_is_said(history: float) -> None:
    advice = of_cpu(histories([50.0] * 9, [5.0] * 9, seconds=np.full((9, 4), history)))
    assert advice.known_nodes == 0
    assert (advice.mean_percent, advice.proposed_high_percent) == (None, None)
    assert advice.excluded_nodes == {"stale": 0, "short": 9, "unknown": 0}
    assert advice.reason.startswith("no proposal: a day of history of 0 of 9 nodes is known")


def test_four_nodes_are_too_few_and_five_are_enough() -> None:
    four, five = (of_cpu(histories([50.0] * n, [6.0] * n)) for n in (4, 5))
    assert (four.sigma_percent, four.proposed_high_percent) == (6.0, None)
    assert five.proposed_high_percent == 68


@pytest.mark.parametrize(
    ("mean", "stdev", "reason"),
    [
        (70.0, 0.05, "usage does not vary"),
        (70.0, 9.0, "mean + 3 sigma is 97.0%, which leaves no room"),
        (20.0, 5.0, "mean + 3 sigma is 35.0%, where nodes have room for more pods"),
        (0.0, 0.0, "usage does not vary"),
    ],
)
def test_no_absurd_threshold_is_proposed(mean: float, stdev: float, reason: str) -> None:
    advice = of_cpu(histories([mean] * 9, [stdev] * 9))
    assert (advice.proposed_high_percent, advice.proposed_low_percent) == (None, None)
    assert advice.reason.startswith(f"no proposal: {reason}")


@given(st.floats(0.0, 100.0), st.floats(0.0, 40.0), st.floats(0.0, 40.0), st.booleans())
def test_proposals_are_valid_thresholds(
    mean: float, time: float, nodes: float, deviates: bool
) -> None:
    pool = histories([mean - nodes, mean + nodes] * 4, [time] * 8)
    advice = of_cpu(pool, present(cpu=30.0, deviates=deviates))
    high, low = advice.proposed_high_percent, advice.proposed_low_percent
    assert (high is None) == (low is None)
    if high is not None and low is not None:
        assert 1 <= low <= high
        assert (5 if deviates else 50) <= high <= 95


# -- thresholds in force


@pytest.mark.parametrize(
    ("cpu", "reason"),
    [
        (np.nan, "mean + 3 sigma; there is no threshold yet"),
        (60.0, "higher: usual usage is above the present threshold 2.28% of the time; it varies"),
        (64.0, "the present threshold is right"),
        (67.0, "the present threshold is right"),
        (80.0, "lower: finds unusual nodes sooner"),
    ],
)
def test_reason_compares_with_the_present_threshold(cpu: float, reason: str) -> None:
    advice = of_cpu(histories([50.0] * 9, [5.0] * 9), present(cpu=cpu))
    assert advice.proposed_high_percent == 65
    assert advice.reason.startswith(reason)


def test_nodes_above_are_known_nodes_above_the_present_threshold_now() -> None:
    nodes = histories([50.0] * 6, [5.0] * 6)
    nodes.usage[:, 0] = [66.0, 65.0, np.nan, 90.0, 10.0, 99.0]
    nodes.is_fresh[5] = False
    assert of_cpu(nodes).nodes_above == 2
    nodes.usage[:] = np.nan
    assert of_cpu(nodes).nodes_above is None


def test_thresholds_that_are_distances_get_distances() -> None:
    nodes = histories([20.0] * 6, [4.0] * 6)
    nodes.usage[0, 0] = 40.0  # the mean is then 23.3
    advice = of_cpu(nodes, present(cpu=10.0, deviates=True))
    assert (advice.proposed_low_percent, advice.proposed_high_percent) == (4, 12)
    assert advice.nodes_above == 1
    assert advice.time_above_percent == pytest.approx(100 * NormalDist().cdf(-2.5), abs=0.01)
    calm = of_cpu(histories([20.0] * 6, [0.5] * 6), present(cpu=10.0, deviates=True))
    assert (calm.proposed_low_percent, calm.proposed_high_percent) == (1, 5)


def test_only_compared_resources_have_advice() -> None:
    nodes = histories([50.0] * 6, [5.0] * 6)
    assert [each.rule for each in advise(nodes, present())] == ["node_cpu", "node_memory"]
    assert [each.rule for each in advise(nodes, present(cpu=60.0))] == ["node_cpu"]
    rules = [each.rule for each in advise(nodes, present(cpu=60.0, prod=50.0))]
    assert rules == ["node_cpu", "prod_cpu"]


@pytest.mark.parametrize(("node_stdev", "most"), [(4.0, 62), (0.0, 60)])
def test_threshold_of_prod_is_at_most_that_of_the_node(node_stdev: float, most: int) -> None:
    nodes = histories([50.0] * 6, [4.0] * 6)
    nodes.stdev[:, 0], nodes.stdev[:, 2] = node_stdev, 8.0
    node, prod = advise(nodes, present(cpu=60.0, prod=55.0))
    assert (node.proposed_high_percent, prod.proposed_high_percent) == (
        62 if node_stdev else None, most,
    )  # fmt: skip
    assert prod.reason == "at most the threshold of the node"
    assert msgspec.json.decode(msgspec.json.encode(prod), type=Advice) == prod
