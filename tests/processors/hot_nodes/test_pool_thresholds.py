"""Detection with thresholds that are distances from the mean of the node's pool."""

from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.processors.hot_nodes.pool_thresholds import deviation_percents, known_means
from pipeline.processors.hot_nodes.thresholds import thresholds
from pipeline.topics.alerts import calm_percent, critical_percent
from pipeline.topics.hot_node_policy import HotNodePolicy
from pipeline.topics.windows import Window, decode_window, encode_window
from tests.processors.hot_nodes.node_windows import Stream, hot_window, transitions_of
from tests.processors.hot_nodes.reference import Rule

DISTANT = HotNodePolicy(
    high_percent={"cpu": 20.0}, use_deviation_thresholds=True, span_seconds=30, open_windows=2,
    close_windows=2, hysteresis_percent=5.0,
)  # fmt: skip
FIXED = HotNodePolicy(high_percent={"cpu": 70.0}, span_seconds=30, open_windows=2, close_windows=2)
OPENED, CLOSED = ("node_cpu", "opened"), ("node_cpu", "closed")


def policy(mean: float | None, **fields: Any) -> HotNodePolicy:
    """The policy in a window that was joined with this mean of CPU."""
    means = {} if mean is None else {"node_cpu": mean}
    return msgspec.structs.replace(DISTANT, mean_percent=means, **fields)


def run(*windows: tuple[float | None, float | None], first: int = 1) -> list[Window]:
    """Windows with these (usage, mean of the pool) of CPU in percent."""
    return [
        hot_window(end, cpu, policy=policy(mean)) for end, (cpu, mean) in enumerate(windows, first)
    ]


# -- means and thresholds


PERCENT = st.floats(0, 1000) | st.just(np.nan)


@given(st.lists(st.tuples(PERCENT, PERCENT), max_size=20))
def test_mean_is_that_of_the_known_nodes(rows: list[tuple[float, float]]) -> None:
    means, counts = known_means(np.array(rows).reshape(-1, 2))
    for column in range(2):
        known = [Fraction(row[column]) for row in rows if not np.isnan(row[column])]
        assert counts[column] == len(known)
        if known:
            assert means[column] == pytest.approx(float(sum(known) / len(known)), rel=1e-12)
        else:
            assert np.isnan(means[column])


DISTANCE = st.none() | st.sampled_from([0.0, 5.0, 20.0, 150.0])


@given(st.none() | st.sampled_from([0.0, 3.0, 50.0, 97.0, 140.0]), DISTANCE, DISTANCE)
def test_thresholds_are_clipped_distances_from_the_mean(
    mean: float | None, low: float | None, high: float | None
) -> None:
    given_values = (np.array([np.nan if each is None else each]) for each in (mean, low, high))
    lower, upper = (float(each[0]) for each in deviation_percents(*given_values))
    if high is None or 0.0 in (low, high):
        assert (lower, upper) == (100.0, 100.0)
    elif mean is None:
        assert np.isnan([lower, upper]).all()
    else:
        assert upper == min(max(mean + high, 0), 100)
        assert np.isnan(lower) if low is None else lower == min(max(mean - low, 0), 100)


# -- alerts


def test_a_node_is_hot_above_the_mean_plus_the_distance() -> None:
    assert transitions_of(run((50.0, 30.0), (50.0, 30.0))) == []
    stream = Stream()
    for window in run((50.1, 30.0), (50.1, 30.0)):
        stream.apply(window)
    (record,) = stream.records["node-1"]
    assert (record.transition, record.evidence.threshold_percent) == ("opened", 50.0)
    assert (record.evidence.pool_mean_percent, record.evidence.critical_percent) == (30.0, 75.0)


def test_a_threshold_is_at_most_the_whole_of_allocatable() -> None:
    assert transitions_of(run(*[(100.0, 95.0)] * 9)) == []
    assert transitions_of(run(*[(100.1, 95.0)] * 9)) == [OPENED]


def test_an_alert_closes_below_the_threshold_of_each_window() -> None:
    """At 60%: the pool gets as busy as the node, the node is hot no longer."""
    windows = run(*[(60.0, 30.0)] * 2, *[(60.0, 46.0)] * 2)
    assert transitions_of(windows) == [OPENED, CLOSED]


def test_a_distance_of_zero_is_not_compared() -> None:
    for distances in (
        {"high_percent": {"cpu": 0.0}}, {"low_percent": {"cpu": 0.0}},
    ):  # fmt: skip
        own = policy(30.0, **distances)
        assert transitions_of([hot_window(end, 120.0, policy=own) for end in range(1, 9)]) == []


def test_nothing_opens_or_closes_without_a_mean() -> None:
    assert transitions_of(run(*[(99.0, None)] * 20)) == []
    windows = run(*[(99.0, 30.0)] * 2, *[(1.0, None)] * 40, *[(1.0, 30.0)] * 2)
    stream = Stream()
    for window in windows[:-1]:
        stream.apply(window)
    assert stream.transitions() == [OPENED]
    assert [alert.threshold_percent for alert in stream.open["node-1"]] == [50.0]
    stream.apply(windows[-1])
    assert stream.transitions() == [OPENED, CLOSED]


def test_a_missing_mean_holds_a_run_for_five_minutes() -> None:
    assert transitions_of(run((99.0, 30.0), *[(99.0, None)] * 10, (99.0, 30.0))) == [OPENED]
    assert transitions_of(run((99.0, 30.0), *[(99.0, None)] * 11, (99.0, 30.0))) == []


def test_alert_of_a_fixed_threshold_closes_when_distances_are_switched_on() -> None:
    stream = Stream()
    for end in (1, 2):
        stream.apply(hot_window(end, 90.0, policy=FIXED))
    for window in run((90.0, None), (90.0, 30.0), (90.0, 30.0), first=3):
        stream.apply(window)
    assert stream.transitions() == [OPENED, CLOSED, OPENED]
    assert stream.records["node-1"][1].reason == "policy"
    # Back to fixed thresholds: the alert goes on, and cools.
    for end, cpu in ((6, 90.0), (7, 1.0), (8, 1.0)):
        stream.apply(hot_window(end, cpu, policy=FIXED))
    assert stream.transitions() == [OPENED, CLOSED, OPENED, CLOSED]
    assert stream.records["node-1"][3].reason == "cooled"


def test_a_run_of_a_fixed_threshold_does_not_count_for_distances() -> None:
    windows = [hot_window(1, 90.0, policy=FIXED), *run((90.0, 30.0), (90.0, 30.0), first=2)]
    assert transitions_of(windows) == []
    assert transitions_of([*windows, *run((90.0, 30.0), first=4)]) == [OPENED]


def test_prod_has_its_own_mean() -> None:
    own = HotNodePolicy(
        prod_high_percent={"cpu": 10.0}, use_deviation_thresholds=True, span_seconds=30,
        open_windows=1, mean_percent={"node_cpu": 0.0, "prod_cpu": 40.0},
    )  # fmt: skip
    assert transitions_of([hot_window(1, 99.0, prod=5.0, policy=own)]) == []
    assert transitions_of([hot_window(1, 99.0, prod=5.1, policy=own)]) == [("prod_cpu", "opened")]


def test_a_node_that_changes_its_pool_is_compared_with_the_mean_of_the_other_one() -> None:
    there = [hot_window(end, 60.0, policy=policy(50.0, pool="busy")) for end in (3, 4)]
    stream = Stream()
    for window in [*run((60.0, 30.0), (60.0, 30.0)), *there]:
        stream.apply(window)
    assert [(r.transition, r.pool) for r in stream.records["node-1"]] == [
        ("opened", "__default_node_pool__"), ("closed", "busy"),
    ]  # fmt: skip


def test_compared_usage_of_nodes_with_distances_and_of_prod_is_reported() -> None:
    of_prod = msgspec.structs.replace(FIXED, prod_high_percent={"cpu": 50.0})
    own = policy(30.0, high_percent={"cpu": 20.0, "memory": 20.0}, prod_high_percent={"cpu": 5.0})
    stream = Stream().apply(
        hot_window(1, 41.0, None, node="a", policy=own, prod=1.5),
        hot_window(1, 41.0, 50.0, node="b", policy=FIXED),
        hot_window(1, 41.0, 50.0, node="c", policy=None),
        hot_window(1, 41.0, None, node="d", policy=of_prod, prod=1.5),
    )
    assert stream.compared == {
        "a": {"node_cpu": 41.0, "prod_cpu": 15.0}, "b": {}, "c": {}, "d": {"prod_cpu": 15.0}
    }  # fmt: skip


MEAN = st.none() | st.sampled_from([0.0, 30.0, 45.0, 95.0, 300.0])
# Halves of a core are exact, so that usage can be exactly at a threshold.
CPU = st.none() | st.sampled_from([10.0, 44.0, 45.0, 50.0, 55.0, 65.0, 70.0, 75.0, 100.0])
STEPS = st.lists(st.tuples(st.sampled_from([1, 1, 1, 1, 0, 2, 12]), CPU, MEAN), max_size=40)


@settings(max_examples=40, deadline=None)
@given(STEPS, st.sampled_from([20.0, 25.0]))
def test_detection_with_distances_equals_the_reference(
    steps: list[tuple[int, float | None, float | None]], distance: float
) -> None:
    """The reference is that of fixed thresholds, whose threshold is set before each window; a
    window without a mean is one of unknown usage."""
    rule, expected, windows, end, last = Rule(0.0, 2, 2, 5.0), [], [], 0, -1
    for step, cpu, mean in steps:
        end += step
        window = hot_window(end, cpu, policy=policy(mean, high_percent={"cpu": distance}))
        # As recovery reads it.
        windows.append(decode_window(encode_window(window)))
        if end <= last:  # a duplicate, whatever its mean
            continue
        last = end
        if mean is not None:
            rule.set_high(min(mean + distance, 100.0))
        if change := rule.look(30 * (end - 1), 30 * end, cpu if mean is not None else None):
            expected.append(("node_cpu", change))
    assert transitions_of(windows) == expected


@settings(max_examples=20, deadline=None)
@given(st.data(), st.tuples(STEPS, STEPS))
def test_alerts_with_means_depend_on_the_windows_of_their_node_alone(
    data: st.DataObject, steps: tuple[list[tuple[int, float | None, float | None]], ...]
) -> None:
    """Also after switches between fixed thresholds and distances, and restarts."""
    queues = {}
    for name, own in zip(("node-1", "node-2"), steps, strict=True):
        end, windows = 0, []
        for step, cpu, mean in own:
            end += step
            is_fixed = data.draw(st.booleans())
            chosen = FIXED if is_fixed else policy(mean)
            windows.append(hot_window(end, cpu, policy=chosen, node=name))
        queues[name] = windows
    alone = {}
    for name, windows in queues.items():
        stream = Stream()
        for window in windows:
            stream.apply(window)
        alone[name] = ([*stream.transitions(name)], stream.open.get(name))
    stream = Stream()
    while any(queues.values()):
        ready = [name for name in queues if queues[name]]
        chosen_names = data.draw(st.lists(st.sampled_from(ready), unique=True, min_size=1))
        stream.apply(*(queues[name].pop(0) for name in chosen_names))
        if data.draw(st.booleans()):
            stream = stream.restarted()
    for name, (transitions, open_alerts) in alone.items():
        assert stream.transitions(name) == transitions
        assert stream.open.get(name) == open_alerts


@pytest.mark.parametrize("high", [0.5, 65.0, 87.25, 100.0, 120.0])
def test_records_derive_the_marks_as_detection_does(high: float) -> None:
    limits = thresholds([HotNodePolicy(high_percent={"cpu": high}, hysteresis_percent=5.0)])
    assert limits.marks[0, 0].tolist() == [high, critical_percent(high)]
    calm = [calm_percent(mark, 5.0) for mark in (high, critical_percent(high))]
    assert limits.calm[0, 0].tolist() == calm
