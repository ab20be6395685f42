"""An alert opens with exactly the N-th hot window, closes with the M-th calm one; no flapping."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.topics.hot_node_policy import HotNodePolicy
from tests.processors.hot_nodes.reference import Rule
from tests.processors.hot_nodes.single_rule import Debounced, changes, policy_of

HOT, BETWEEN, CALM, CRITICAL = 71.0, 68.0, 65.0, 86.0


@pytest.mark.parametrize("windows", [1, 2, 3, 5, 10, 1000])
def test_alert_opens_with_exactly_the_nth_hot_window(windows: int) -> None:
    policy = policy_of(opens=windows)
    assert changes([HOT] * (windows - 1), policy) == []
    assert changes([HOT] * (windows + 3), policy) == [(windows, "opened")]


@pytest.mark.parametrize("windows", [1, 2, 3, 10])
def test_alert_closes_with_exactly_the_mth_calm_window(windows: int) -> None:
    policy = policy_of(opens=1, closes=windows)
    closed = changes([HOT, *[CALM] * (windows + 3)], policy)
    assert closed == [(1, "opened"), (1 + windows, "closed")]


def test_threshold_itself_is_not_hot_and_the_calm_mark_is_calm() -> None:
    assert changes([70.0] * 20) == []
    assert changes([np.nextafter(70.0, 71.0)] * 5) == [(5, "opened")]
    opened = [HOT] * 5
    assert changes([*opened, *[65.0] * 3]) == [(5, "opened"), (8, "closed")]
    assert changes([*opened, *[np.nextafter(65.0, 66.0)] * 30]) == [(5, "opened")]


@pytest.mark.parametrize("between", [BETWEEN, CALM])
def test_windows_that_are_not_hot_end_a_run_of_hot_ones(between: float) -> None:
    assert changes([HOT] * 4 + [between] + [HOT] * 4) == []
    assert changes([HOT] * 4 + [between] + [HOT] * 5) == [(10, "opened")]


@pytest.mark.parametrize("between", [BETWEEN, HOT])
def test_windows_that_are_not_calm_end_a_run_of_calm_ones(between: float) -> None:
    usage = [HOT] * 5 + [CALM] * 2 + [between] + [CALM] * 3
    assert changes(usage) == [(5, "opened"), (11, "closed")]


def test_unknown_usage_is_neither_hot_nor_calm_and_holds_runs() -> None:
    assert changes([HOT] * 4 + [None] * 9 + [HOT]) == [(14, "opened")]
    assert changes([HOT] * 5 + [CALM] * 2 + [None] * 9 + [CALM]) == [(5, "opened"), (17, "closed")]
    assert changes([HOT] * 5 + [None] * 500) == [(5, "opened")]


def test_a_run_ends_when_usage_was_unknown_for_more_than_five_minutes() -> None:
    assert changes([HOT] * 4 + [None] * 10 + [HOT]) == [(15, "opened")]
    assert changes([HOT] * 4 + [None] * 11 + [HOT] * 4) == []
    assert changes([HOT] * 4 + [None] * 11 + [HOT] * 5) == [(20, "opened")]


def test_severity_escalates_and_eases_with_its_own_hysteresis() -> None:
    """Critical is above 85, the middle between 70 and 100; it eases at 80 or less."""
    usage = [HOT] * 5 + [CRITICAL] * 5 + [81.0] * 10 + [80.0] * 3 + [CALM] * 3
    assert changes(usage) == [(5, "opened"), (10, "escalated"), (23, "eased"), (26, "closed")]
    assert changes([CRITICAL] * 5 + [85.0] * 9 + [CALM] * 3) == [(5, "opened"), (17, "closed")]


def test_thresholds_of_0_and_above_100_open_and_close() -> None:
    assert changes([1.0] * 5 + [0.0] * 3, policy_of(0.0)) == [(5, "opened"), (8, "closed")]
    over = changes([121.0] * 5 + [115.0] * 3, policy_of(120.0))
    assert over == [(5, "opened"), (8, "closed")]
    low = changes([5.0] * 5 + [2.0] * 3, policy_of(4.0, hysteresis=50.0))
    assert low == [(5, "opened"), (8, "closed")]


def test_one_spike_shorter_than_the_run_opens_nothing() -> None:
    usage = [40.0] * 10_000
    for start in range(0, 10_000, 50):
        usage[start : start + 4] = [100.0] * 4
    assert changes(usage) == []


@pytest.mark.parametrize("seed", range(2))
def test_noise_of_two_points_around_the_threshold_opens_at_most_one_alert(seed: int) -> None:
    chance = random.Random(seed)
    usage = [70.0 + chance.uniform(-2.0, 2.0) for _ in range(10_000)]
    found = changes(usage)
    assert [change for _, change in found] == ["opened"]


@pytest.mark.parametrize("seed", range(2))
def test_noise_around_the_critical_mark_escalates_at_most_once(seed: int) -> None:
    chance = random.Random(seed)
    usage = [85.0 + chance.uniform(-2.0, 2.0) for _ in range(10_000)]
    assert [change for _, change in changes(usage)][1:] in ([], ["escalated"])


USAGE = st.none() | st.sampled_from(
    [0.0, 64.9, 65.0, 66.0, 70.0, 70.1, 80.0, 81.0, 85.0, 85.1, 200.0]
)
POLICIES = st.builds(
    policy_of,
    st.sampled_from([0.0, 50.0, 70.0, 100.0, 120.0]),
    opens=st.integers(1, 4),
    closes=st.integers(1, 4),
    hysteresis=st.sampled_from([0.0, 5.0, 60.0]),
)


def _rule(policy: HotNodePolicy) -> Rule:
    return Rule(
        policy.high_percent["cpu"], policy.open_windows, policy.close_windows,
        policy.hysteresis_percent,
    )  # fmt: skip


@given(POLICIES, st.lists(st.tuples(st.sampled_from([1, 1, 1, 1, 2, 11, 12]), USAGE), max_size=60))
def test_debounce_equals_the_reference(
    policy: HotNodePolicy, windows: list[tuple[int, float | None]]
) -> None:
    node, rule, number = Debounced([policy]), _rule(policy), 0
    for gap, percent in windows:
        number += gap
        expected = rule.look(30 * (number - 1), 30 * number, percent)
        assert node.look(number, percent) == [expected]


@given(st.data(), st.lists(POLICIES, min_size=2, max_size=5))
def test_a_node_does_not_depend_on_other_nodes(
    data: st.DataObject, policies: list[HotNodePolicy]
) -> None:
    together = Debounced(policies)
    alone = [Debounced([policy]) for policy in policies]
    for number in range(1, 20):
        percents = [data.draw(USAGE) for _ in policies]
        apart = [node.look(number, p)[0] for node, p in zip(alone, percents, strict=True)]
        assert together.look(number, *percents) == apart


def test_policy_that_asks_for_fewer_windows_takes_effect_at_once() -> None:
    node = Debounced([policy_of(opens=10)])
    assert [node.look(number, HOT) for number in range(1, 8)] == [[""]] * 7
    node.policies = [policy_of(opens=3)]
    assert node.look(8, HOT) == ["opened"]


def test_rule_that_is_no_longer_watched_forgets_its_runs() -> None:
    node = Debounced([policy_of()])
    for number in range(1, 5):
        node.look(number, HOT)
    node.policies = [HotNodePolicy(high_percent={"memory": 70.0})]
    assert node.look(5, HOT) == [""]
    node.policies = [policy_of()]
    assert [node.look(number, HOT)[0] for number in range(6, 11)] == [""] * 4 + ["opened"]


def test_distance_from_a_mean_that_is_not_known_opens_nothing_and_closes_what_is_open() -> None:
    deviating = HotNodePolicy(high_percent={"cpu": 10.0}, use_deviation_thresholds=True)
    node = Debounced([deviating])
    assert [node.look(number, 100.0) for number in range(1, 20)] == [[""]] * 19
    node = Debounced([policy_of(opens=1)])
    assert node.look(1, 100.0) == ["opened"]
    node.policies = [deviating]
    assert [node.look(number, 100.0) for number in range(2, 20)] == [["closed"], *[[""]] * 17]
