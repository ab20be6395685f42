"""LoadAware's arguments and annotations, and its sums and comparisons against plain loops."""

import math
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InvalidPolicyError
from pipeline.processors.loadaware import filter_score, node_thresholds
from pipeline.processors.loadaware.in_flight import AssignedPods, sum_in_flight
from pipeline.processors.loadaware.loadaware_args import LoadAwareArgs, span_seconds
from pipeline.processors.loadaware.node_thresholds import Limits
from pipeline.processors.loadaware.pod_estimate import (
    SCALING_FACTORS,
    deadline,
    estimate,
    pod_factors,
    pod_seconds,
)
from pipeline.processors.loadaware.usage_readings import is_fresh
from pipeline.processors.scorers import load_aware


@pytest.mark.parametrize(
    ("tree", "names"),
    [
        ({"usageTresholds": {"cpu": 1}}, "usageTresholds"),
        ({"usageThresholds": {"cpu": "65"}}, "usageThresholds"),
        ({"usageThresholds": {"cpu": 101}}, "usageThresholds: 101 for cpu"),
        ({"prodUsageThresholds": {"memory": -1}}, "prodUsageThresholds: -1 for memory"),
        ({"resourceWeights": {"gpu": 1}}, "estimatedScalingFactors: has none for gpu"),
        ({"usageThresholds": {"CPU": 65}},
         "usageThresholds: 'CPU' is no resource of a node: is it cpu?"),
        ({"usageThresholds": {"/": 65}}, "'/' is no resource of a node: all but"),
        ({"supportedResources": ["mem"]}, "'mem' is no resource of a node: is it memory?"),
        ({"aggregated": {"usageThresholds": {"memory ": 1}}},
         "aggregated.usageThresholds: 'memory '"),
        ({"dominantResourceWeight": 101}, "dominantResourceWeight"),
        ({"estimatedSecondsAfterInitialized": -1}, "estimatedSecondsAfterInitialized"),
        ({"aggregated": {"usageAggregatedDuration": "-5m"}}, "aggregated.usageAggregatedDuration"),
        ({"aggregated": {"scoreAggregationType": "p42"}}, "aggregated.scoreAggregationType"),
        ({"aggregated": {"usageType": "p95"}}, "usageType"),
        ({"nodeMetricExpirationSeconds": 2**80}, "nodeMetricExpirationSeconds"),
    ],
)  # fmt: skip
def test_invalid_arguments_are_refused_by_their_key(tree: Any, names: str) -> None:
    with pytest.raises(InvalidPolicyError, match=names.split(":")[0].split(".")[-1]) as raised:
        load_aware.SCORER.read(tree)
    assert names.rpartition(": ")[2] in raised.value.message


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("", 0), ("0", 0), ("0s", 0), ("5m", 300), ("1h30m", 5400), ("x", None), ("-0s", None),
     ("1.5s", None), ("100000h", None)],
)  # fmt: skip
def test_spans_are_whole_seconds(text: str, seconds: int | None) -> None:
    assert span_seconds(text) == seconds


ARGS = load_aware.SCORER.read({"prodUsageThresholds": {"cpu": 55}})


@pytest.mark.parametrize(
    ("annotation", "is_prod", "limits"),
    [
        (None, False, Limits({"cpu": 65, "memory": 95})),
        (None, True, Limits({"cpu": 55}, node_thresholds.PROD)),
        ('{"usageThresholds":{"cpu":30}}', False, Limits({"cpu": 30})),
        ('{"prodUsageThresholds":{"cpu":10}}', True, Limits({"cpu": 10}, node_thresholds.PROD)),
        ('{"prodUsageThresholds":{"cpu":0}}', True, Limits({"cpu": 65, "memory": 95})),
        (
            '{"aggregatedUsage":{"usageThresholds":{"cpu":9},"usageAggregationType":"p99"}}',
            False,
            Limits({"cpu": 9}, node_thresholds.AGGREGATED, "p99", 0),
        ),
        # Without a type there is nothing to compare.
        ('{"aggregatedUsage":{"usageThresholds":{"cpu":9}}}', False,
         Limits({"cpu": 65, "memory": 95})),
    ],
)  # fmt: skip
def test_a_nodes_own_thresholds_come_first(
    annotation: str | None, is_prod: bool, limits: Limits
) -> None:
    assert node_thresholds.select_limits(ARGS, annotation, is_prod=is_prod) == limits
    assert node_thresholds.problem(annotation) is None


@pytest.mark.parametrize(
    ("annotation", "says"),
    [
        *(
            (text, node_thresholds.ANNOTATION)
            for text in (
                "{", "[]", '{"usageThresholds":{"cpu":-1}}', '{"usageThresholds":{"cpu":"90"}}',
                '{"usageThresholds":{"cpu":60.5}}', "\\ud800",
                '{"aggregatedUsage":{"usageAggregationType":"max"}}',
                '{"aggregatedUsage":{"usageAggregatedDuration":"soon"}}',
            )
        ),
        ('{"usageThreshold":{"cpu":9}}', "ignored key 'usageThreshold': is usageThresholds meant?"),
        ('{"aggregatedUsage":{"usageType":"p99"}}', "ignored key 'usageType'"),
        ('{"cpu":9,"USAGETHRESHOLDS":{}}', "ignored key 'cpu'"),
    ],
)  # fmt: skip
def test_invalid_values_and_keys_of_an_annotation_are_ignored_and_reported(
    annotation: str, says: str
) -> None:
    limits = node_thresholds.select_limits(ARGS, annotation, is_prod=False)
    assert limits.thresholds == {"cpu": 65, "memory": 95}
    assert says in (node_thresholds.problem(annotation) or "")


@pytest.mark.parametrize(
    ("annotation", "factors"),
    [
        ('{"cpu":50}', {"cpu": 50, "memory": 70}),
        ('{"cpu":0}', {"cpu": 1, "memory": 70}),
        ('{"cpu":-500}', {"cpu": 1, "memory": 70}),
        ('{"cpu":500}', {"cpu": 100, "memory": 70}),
        ('{"gpu":50}', {"cpu": 85, "memory": 70}),
        ("", {"cpu": 85, "memory": 70}),
        ("[]", {"cpu": 85, "memory": 70}),
    ],
)
def test_a_pod_cannot_hide_by_its_factors(annotation: str, factors: dict[str, int]) -> None:
    assert pod_factors({SCALING_FACTORS: annotation}, {"cpu": 85, "memory": 70}) == factors


@pytest.mark.parametrize(
    ("text", "seconds"), [("30", 30), ("0", 0), (" 5", 7), ("1.5", 7), ("-3", 7), ("9" * 30, 7)]
)
def test_invalid_seconds_of_a_pod_leave_the_configured_ones(text: str, seconds: int) -> None:
    assert pod_seconds({"a": text}, "a", 7) == seconds


def test_free_pods_and_mid_pods_without_requests_are_estimated_as_0() -> None:
    factors = {"cpu": 85, "memory": 70}
    asked = {"cpu": 4000, "memory": 1 << 30}
    for pod_class in ("free", "mid"):
        assert estimate(pod_class, asked, asked, factors) == {"cpu": 0, "memory": 0}
    assert estimate("none", {}, {}, factors) == {"cpu": 250, "memory": 200 << 20}


class Pod(NamedTuple):
    node: int
    is_prod: bool
    estimate: tuple[int, int]
    usage: tuple[int, int] | None
    reported_prod: bool
    scheduled: float
    deadline: float | None


AMOUNTS = st.tuples(*[st.integers(0, 2**50)] * 2)
PODS = st.lists(
    st.builds(
        Pod, st.integers(0, 2), st.booleans(), AMOUNTS, st.none() | AMOUNTS, st.booleans(),
        st.floats(0, 2000), st.none() | st.floats(0, 2000),
    ),
    max_size=12,
)  # fmt: skip
TIMES = st.lists(st.none() | st.floats(0, 2000), min_size=3, max_size=3)


def sums_by_loop(
    pods: list[Pod], node: int, updated: float | None, report: float
) -> list[list[int]]:
    """The sums of one node, pod by pod as in upstream."""
    node_delta, prod_usage, prod_delta, estimated, unreported = ([0, 0] for _ in range(5))
    at = -math.inf if updated is None else updated
    for pod in pods:
        if pod.node != node:
            continue
        used = pod.usage or (0, 0)
        is_in_flight = (
            pod.usage is None
            or at - report < pod.scheduled
            or (pod.deadline is not None and pod.deadline > at)
        )
        for r in (0, 1):
            estimated[r] += pod.estimate[r]
            unreported[r] += pod.estimate[r] if pod.usage is None else 0
            missing = max(0, pod.estimate[r] - used[r])
            if is_in_flight:
                node_delta[r] += missing
            if pod.is_prod and pod.usage is not None and pod.reported_prod:
                prod_usage[r] += used[r]
            if pod.is_prod and pod.usage is not None and not pod.reported_prod:
                prod_delta[r] += pod.estimate[r]
            elif pod.is_prod and is_in_flight:
                prod_delta[r] += missing
    return [node_delta, prod_usage, prod_delta, estimated, unreported]


@given(PODS, TIMES, st.floats(1, 300))
def test_sums_equal_those_of_a_loop_over_pods(
    pods: list[Pod], times: list[float | None], report: float
) -> None:
    def amounts(of: list[tuple[int, int]]) -> Any:
        return np.array(of, np.int64).reshape(len(pods), 2)

    result = sum_in_flight(
        AssignedPods(
            node=np.array([pod.node for pod in pods], np.int64),
            is_prod=np.array([pod.is_prod for pod in pods], bool),
            estimate=amounts([pod.estimate for pod in pods]),
            usage=amounts([pod.usage or (0, 0) for pod in pods]),
            is_reported=np.array([pod.usage is not None for pod in pods], bool),
            is_reported_prod=np.array([pod.reported_prod for pod in pods], bool),
            scheduled_seconds=np.array([pod.scheduled for pod in pods], float),
            deadline_seconds=np.array(
                [math.nan if pod.deadline is None else pod.deadline for pod in pods], float
            ),
        ),
        np.array([math.nan if at is None else at for at in times], float),
        np.full(3, report),
        np.zeros((3, 2), np.int64),
    )
    for node in range(3):
        expected = sums_by_loop(pods, node, times[node], report)
        assert [amounts[node].tolist() for amounts in result] == expected


def test_a_deadline_after_initialization_comes_first() -> None:
    assert [
        deadline(100.0, initialized, scheduled_seconds, initialized_seconds)
        for initialized, scheduled_seconds, initialized_seconds in (
            (None, 60, 30), (150.0, 60, 30), (150.0, None, None), (150.0, 60, 0),
        )
    ] == [160.0, 180.0, None, 160.0]  # fmt: skip


COUNT = 4
WHOLE = st.integers(0, 2**40)
ROWS = st.lists(
    st.tuples(
        st.tuples(WHOLE, WHOLE), st.tuples(WHOLE, WHOLE), st.tuples(*[st.booleans()] * 2),
        st.booleans(), st.booleans(),
        st.none() | st.floats(0, 2000), st.tuples(*[st.integers(0, 100)] * 2),
    ),
    min_size=COUNT, max_size=COUNT,
)  # fmt: skip


@given(ROWS, st.tuples(WHOLE, WHOLE), st.booleans(), st.tuples(*[st.integers(0, 9)] * 3))
def test_filter_and_score_equal_those_of_a_loop_over_nodes(
    rows: list[Any], asked: tuple[int, int], passes_expired: bool, weights: tuple[int, int, int]
) -> None:
    columns = zip(*rows, strict=True)
    capacity, compared, estimated, reported, has_usage, updated, thresholds = columns
    nodes = filter_score.NodeUsage(
        np.array(capacity), np.array(compared), np.array(estimated), np.array(reported),
        np.array(has_usage),
    )  # fmt: skip
    ages = 1000.0 - np.array([math.nan if at is None else at for at in updated], float)
    expired = ~is_fresh(ages, 180.0)
    result = filter_score.judge(
        nodes, np.array(asked), np.array(thresholds), expired, passes_expired=passes_expired
    )
    scores = filter_score.score(nodes, np.array(asked), expired, np.array(weights[:2]), weights[2])
    shares = [
        [max(have - used - added, 0) * 100 // have if have else 0
         for have, used, added in zip(capacity[i], compared[i], asked, strict=True)]
        for i in range(COUNT)
    ]  # fmt: skip
    counted = [i for i in range(COUNT) if reported[i] and has_usage[i] and not expired[i]]
    for i in range(COUNT):
        is_old = updated[i] is None or abs(1000.0 - updated[i]) >= 180.0
        assert expired[i] == is_old
        used = [compared[i][r] + asked[r] for r in (0, 1)]
        code = filter_score.PASSES
        if any(thresholds[i]) and reported[i]:
            if is_old:
                code = filter_score.PASSES if passes_expired else filter_score.EXPIRED
            else:
                for r in (0, 1):
                    if not thresholds[i][r] or not capacity[i][r]:
                        continue
                    percent = used[r] / capacity[i][r] * 100
                    if math.floor(percent + 0.5) > thresholds[i][r]:
                        code = filter_score.USAGE
                        break
        assert result.code[i] == code
        if code == filter_score.USAGE:
            assert (result.resource[i], result.percent[i]) == (r, percent)
        left = [*shares[i]]
        for r in (0, 1):
            known = [shares[j][r] for j in counted if not estimated[j][r] and capacity[j][r]]
            if estimated[i][r]:
                left[r] = min([left[r], *known])
        total = sum(weights)
        if not total or not reported[i] or not has_usage[i] or is_old:
            assert scores[i] == 0
        else:
            mean = left[0] * weights[0] + left[1] * weights[1] + weights[2] * min(left)
            assert scores[i] == mean // total


def test_an_exact_span_without_data_is_unknown_and_0_is_the_longest() -> None:
    usage = np.array([[1.0, 2.0], [3.0, 4.0]])
    nothing = np.full((2, 2), np.nan)
    spans = {300: np.array([[5.0, 6.0], [7.0, 8.0]]), 600: np.array([[9.0, 9.0], [np.nan] * 2])}
    assert np.isnan(filter_score.aggregated_usage(spans, 900, usage)).all()
    assert filter_score.aggregated_usage(spans, 0, usage).tolist() == [[9.0, 9.0], [7.0, 8.0]]
    assert filter_score.aggregated_usage({300: nothing}, 0, usage).tolist() == usage.tolist()
    partial = {300: np.array([[5.0, 6.0]] * 2), 600: np.array([[np.nan, 9.0], [8.0, np.nan]])}
    assert filter_score.aggregated_usage(partial, 0, usage).tolist() == [[5.0, 9.0], [8.0, 6.0]]
    assert LoadAwareArgs().resources == ("cpu", "memory")
