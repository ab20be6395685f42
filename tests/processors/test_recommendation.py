"""A recommendation is a quantile of one histogram of all samples, wherever pods run or ran."""

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pipeline.errors import CheckpointError
from pipeline.processors import recommendation
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.model_config import ModelConfig
from pipeline.processors.model.training_batch import NodeWindow
from pipeline.processors.recommendation import Advice, Recommendation, WorkloadSums
from pipeline.processors.recommendation_records import recommendation_record, savings
from pipeline.processors.summed_models import FRACTIONS, bounds
from pipeline.topics.recommendations import (
    ContainerRecommendation,
    PodRecommendation,
    RecommendationRecord,
)
from pipeline.topics.workloads import NO_WORKLOAD, Workload
from tests.processors.model.test_workload_models import DAY, DB, HOUR, WEB, SlowWorkload
from tests.processors.windows import GIB, LENGTH_MS, START_MS, Pod, window

LAWS = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=40)
FLOORS = (0.025, 250 * 2**20)
NODES = ("a", "b", "c")

Sample = tuple[int, str, str, float, float]
"""End, node, pod, cores, bytes."""


def windows_of(samples: Sequence[Sample], workload: Workload = WEB) -> list[NodeWindow]:
    places = sorted({(node, end) for end, node, *_ in samples})
    windows = []
    for node, end in places:
        pods = sorted(
            {sample[2]: sample for sample in samples if sample[:2] == (end, node)}.items()
        )
        each = window(end, [Pod(uid, (sample[3], sample[4])) for uid, sample in pods], node=node)
        each.pod_workloads = [workload] * len(pods)
        windows.append(each)
    return windows


def states(windows: Sequence[NodeWindow]) -> dict[str, bytes]:
    bank = Bank(ModelConfig(expiration_seconds=1e9))
    bank.apply(windows)
    return {node: bank.encode_state(node) for node in bank.nodes}


def recommended(
    result: dict[str, bytes], order: Sequence[str] = ()
) -> dict[Workload, Recommendation]:
    sums = WorkloadSums()
    for node in order or result:
        sums.add(node, result[node])
    return {each.workload: each for each in sums.recommendations()}


SAMPLES = st.lists(
    st.tuples(
        st.integers(0, 5 * DAY), st.sampled_from(NODES), st.sampled_from("pqr"),
        st.floats(0.01, 64), st.floats(1e6, 64 * GIB),
    ),
    min_size=1, max_size=15, unique_by=lambda sample: sample[:3],
)  # fmt: skip


@given(SAMPLES)
@LAWS
def test_pods_on_many_nodes_are_one_histogram_of_all_samples(samples: list[Sample]) -> None:
    slow = SlowWorkload()
    for end, node, uid, cpu, memory in sorted(samples):
        slow.add(node + uid, START_MS + end * LENGTH_MS, (cpu, memory), 1000.0)
    result = states(windows_of(samples))
    for order in permutations(result):
        web = recommended(result, order)[WEB]
        assert (web.samples, web.pods_seen) == (len(samples), len({s[1:3] for s in samples}))
        for r, advice in enumerate((web.cpu, web.memory)):
            histogram = (slow.cpu, slow.memory)[r]
            # Rounding may decide for the next bucket where a share is reached exactly.
            targets = {
                max(1.15 * (histogram.quantile(exact(FRACTIONS[1], step)) or 0), FLOORS[r])
                for step in (-1, 0, 1)
            }
            assert any(advice.target == pytest.approx(target) for target in targets)


def exact(fraction: float, step: int) -> Fraction:
    return Fraction(fraction) + Fraction(step, 10**6)


def test_rolled_over_and_scaled_to_zero_the_recommendation_continues() -> None:
    """Other pods of other nodes take over; then there is none, then a new one."""
    first = [(end, "a", f"v1-{end // 200}", 2.0, 2 * GIB) for end in range(DAY)]
    second = [(end, "b", "v2", 2.0, 2 * GIB) for end in range(DAY, DAY + HOUR)]
    quiet = [window(end, node=node) for end in range(2 * DAY, 4 * DAY, HOUR) for node in "ab"]
    bank = Bank(ModelConfig())

    def now() -> Recommendation:
        return recommended({node: bank.encode_state(node) for node in bank.nodes})[WEB]

    bank.apply(windows_of(first))
    before = now()
    bank.apply(windows_of(second))
    rolled = now()
    bank.apply(quiet)
    at_zero = now()
    bank.apply(windows_of([(4 * DAY, "a", "v3", 2.0, 2 * GIB)]))
    back = now()
    targets = {(each.cpu.target, each.memory.target) for each in (before, rolled, at_zero, back)}
    assert len(targets) == 1
    assert [each.pods for each in (before, rolled, at_zero, back)] == [1, 2, 0, 1]
    assert (rolled.samples, at_zero.samples, back.samples) == (
        DAY + HOUR, DAY + HOUR, DAY + HOUR + 1,
    )  # fmt: skip
    assert at_zero.last_ms == rolled.last_ms


# -- bounds


@pytest.mark.parametrize(
    ("days", "lower", "upper"),
    [
        # As the comments of the Vertical Pod Autoscaler's recommender have them.
        (5 / 1440, 0.6, 289.0), (30 / 1440, 0.9, 49.0), (60 / 1440, 0.95, 25.0),
        (0.5, 0.996, 3.0), (1.0, 0.998, 2.0), (7.0, 1.0, 1.143),
    ],
)  # fmt: skip
def test_bounds_are_as_wide_as_the_history_is_short(
    days: float, lower: float, upper: float
) -> None:
    result = bounds(np.array([[10.0], [20.0], [30.0]]), np.array([days]), 0.025)
    assert [float(bound[0]) for bound in result] == [
        pytest.approx(10 * 1.15 * lower, rel=0.012), 20 * 1.15,
        pytest.approx(30 * 1.15 * upper, rel=0.001),
    ]  # fmt: skip


def test_without_history_there_is_no_upper_bound_and_the_lower_one_is_the_floor() -> None:
    web = recommended(states(windows_of([(1, "a", "p", 4.0, 8 * GIB)])))[WEB]
    assert web.history_days == 0.0
    for floor, advice in zip(FLOORS, (web.cpu, web.memory), strict=True):
        assert advice.lower == floor
        assert math.isnan(advice.upper)


def test_history_counts_observed_time_only() -> None:
    """Two samples that are a day apart are two windows of history, two pods for a day a day."""
    sparse = [(end, "a", "p", 1.0, GIB) for end in (0, DAY)]
    assert recommended(states(windows_of(sparse)))[WEB].history_days == 2 / DAY
    dense = [(end, "a", uid, 1.0, GIB) for end in range(DAY + 1) for uid in "pq"]
    assert recommended(states(windows_of(dense)))[WEB].history_days == 1.0


# -- requests


def test_requests_of_pods_that_stay_are_added_over_nodes() -> None:
    """Neither ended pods nor those being deleted will request what is recommended."""
    pods = {
        "a": [Pod("p", (1.0, GIB), requests=(500.0, GIB)),
              Pod("leaving", (1.0, GIB), active=False),
              Pod("ended", (1.0, GIB), active=False, ended=True)],
        "b": [Pod("q", (1.0, GIB), requests=(700.0, 0.0)), Pod("other", (1.0, GIB))],
    }  # fmt: skip
    windows = [window(1, of_node, node=node) for node, of_node in pods.items()]
    windows[0].pod_workloads = [WEB] * 3
    windows[1].pod_workloads = [WEB, DB]
    for order in ("ab", "ba"):
        web = recommended(states(windows), [*order])[WEB]
        assert (web.replicas, web.requested_millicores, web.requested_bytes) == (2, 1200.0, GIB)
        assert web.pods == 4


def test_one_unknown_request_makes_the_sum_unknown() -> None:
    pods = [Pod("p", (1.0, GIB)), Pod("q", (1.0, GIB), requests=(math.nan, GIB))]
    (each,) = [window(1, pods)]
    each.pod_workloads = [WEB, WEB]
    web = recommended(states([each]))[WEB]
    assert web.replicas == 2
    assert math.isnan(web.requested_millicores)
    assert web.requested_bytes == 2 * GIB
    record = recommendation_record(web)
    assert record.requested == {"memory": str(2 << 30)}
    assert [*savings(record)] == ["memory"]


def test_requests_of_a_record_are_exact() -> None:
    web = recommended(states(windows_of([(1, "a", "p", 1.0, GIB)])))[WEB]
    for amount in (0.0, 1.0, 2007.0, 2043.0, 4021.0):
        record = recommendation_record(web._replace(requested_millicores=amount))
        assert record.requested["cpu"] == f"{amount:.0f}m"


@pytest.mark.parametrize(
    ("changes", "saved"),
    [
        ({}, {"cpu": "1000m", "memory": "-300000000"}),
        ({"replicas": 0, "requested": {"cpu": "0m", "memory": "0"}}, {"cpu": "0m", "memory": "0"}),
        ({"replicas": None}, {}),
        ({"requested": {"cpu": "2"}}, {"cpu": "1000m"}),
        ({"requested": {"cpu": "much", "memory": "0"}}, {"memory": "-600000000"}),
    ],
)  # fmt: skip
def test_savings_are_requests_less_targets_of_all_replicas(
    changes: dict[str, Any], saved: dict[str, str]
) -> None:
    target = {"cpu": "500m", "memory": "300000000"}
    container = ContainerRecommendation(
        target=target, lower_bound={}, upper_bound={}, uncapped_target=target
    )
    record = RecommendationRecord(
        namespace="shop", kind="Deployment", name="web", as_of="2023-11-14T22:13:30Z", pods=3,
        pods_seen=3, samples=1, history_days=1.0, replicas=2,
        requested={"cpu": "2000m", "memory": "300000000"},
        recommendation=PodRecommendation(container_recommendations=(container,)),
    )  # fmt: skip
    # Also the order, in which JSON has them.
    assert [*savings(replace(record, **changes)).items()] == [*saved.items()]


# -- what is unknown


def test_without_samples_nothing_is_recommended() -> None:
    assert recommended(states(windows_of([(1, "a", "p", math.nan, math.nan)]))) == {}
    assert recommended(states([window(1, [Pod("p", (1.0, GIB))])])) == {}
    assert recommended(states(windows_of([(1, "a", "p", 1.0, GIB)], NO_WORKLOAD))) == {}
    assert recommended({}) == {}


def test_resource_without_samples_is_unknown() -> None:
    blind = [(end, "a", "p", 1.0, math.nan) for end in range(3)]
    web = recommended(states(windows_of(blind)))[WEB]
    assert all(map(math.isnan, web.memory))
    assert web.cpu.target > 1.0


def test_idle_pods_get_the_floor() -> None:
    web = recommended(states(windows_of([(end, "a", "p", 0.0, 0.0) for end in range(9 * HOUR)])))
    assert [web[WEB].cpu.target, web[WEB].memory.target] == [*FLOORS]


@pytest.mark.parametrize("data", [b"", b"nothing"])
def test_a_state_that_is_damaged_or_of_another_node_adds_nothing(data: bytes) -> None:
    (state,) = states(windows_of([(1, "a", "p", 1.0, GIB)])).values()
    sums = WorkloadSums()
    for node, bad in (("a", data), ("a", state[:-1]), ("b", state)):
        with pytest.raises(CheckpointError):
            sums.add(node, bad)
    assert not [*sums.recommendations()]


# -- sums


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_samples_of_long_ago_weigh_next_to_nothing(order: str) -> None:
    """More than a hundred half-lives: the common reference moves on, or is ahead already."""
    old = windows_of([(end, "a", "p", 50.0, 50 * GIB) for end in range(20)])
    new = windows_of([(150 * DAY + end, "b", "q", 1.0, GIB) for end in range(3)])
    web = recommended(states([*old, *new]), [*order])[WEB]
    assert web.cpu.target < 1.1 * 1.15
    alone = recommended(states(old))[WEB]
    assert alone.cpu == Advice(alone.cpu.lower, alone.cpu.target, alone.cpu.upper)
    assert alone.cpu.target >= 50 * 1.15


def test_only_wanted_workloads_are_added() -> None:
    one, other = (windows_of([(1, "a", "p", 1.0, GIB)], each) for each in (WEB, DB))
    sums = WorkloadSums()
    for state in (states(one)["a"], states(other)["a"]):
        sums.add("a", state, DB.__eq__)
    assert [each.workload for each in sums.recommendations()] == [DB]


def test_a_namespace_with_too_many_names_leaves_room_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recommendation, "MAX_PER_NAMESPACE", 5)
    hostile = [(1, "a", f"p{i:03}", 1.0, GIB) for i in range(100)]
    (windows,) = windows_of(hostile)
    windows.pod_workloads = [Workload("hostile", "Job", f"job-{i:03}") for i in range(100)]
    sums = WorkloadSums()
    for node, state in states([windows, *windows_of([(1, "b", "p", 1.0, GIB)])]).items():
        sums.add(node, state)
    found = [each.workload for each in sums.recommendations()]
    assert (len(found), WEB in found, sums.left_out) == (6, True, 95)


@pytest.mark.parametrize("order", [1, -1])
def test_room_is_for_workloads_with_pods_and_then_for_the_newest(
    monkeypatch: pytest.MonkeyPatch, order: int
) -> None:
    """Whatever the order of nodes: jobs with ever new names must not push a Deployment out."""
    monkeypatch.setattr(recommendation, "MAX_PER_NAMESPACE", 3)
    bank = Bank(ModelConfig(expiration_seconds=1e9))
    for number in range(10):
        old = window(number, [Pod(f"p{number}", (1.0, GIB))], node=f"n{number}")
        old.pod_workloads = [Workload("shop", "Job", f"job-{number}")]
        # An hour later the job's pod is gone.
        bank.apply([old])
        bank.apply([window(number + 120, [], node=f"n{number}")])
    running = window(0, [Pod("w", (1.0, GIB))], node="z")
    running.pod_workloads = [WEB]
    bank.apply([running])
    sums = WorkloadSums()
    for node in sorted(bank.nodes, reverse=order < 0):
        sums.add(node, bank.encode_state(node))
    found = {each.workload.name for each in sums.recommendations()}
    assert found == {WEB.name, "job-9", "job-8"}


def test_models_without_a_sample_take_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node of little coverage has workloads, and no reference time yet."""
    monkeypatch.setattr(recommendation, "MAX_PER_NAMESPACE", 1)
    bank = Bank(ModelConfig(expiration_seconds=1e9))
    short = window(0, [Pod("p", (1.0, GIB))], node="a")
    short.coverage = 0.3
    short.pod_workloads = [Workload("shop", "Job", "unknown")]
    running = window(0, [Pod("w", (1.0, GIB))], node="b")
    running.pod_workloads = [WEB]
    bank.apply([short, running])
    sums = WorkloadSums()
    for node in ("a", "b"):
        sums.add(node, bank.encode_state(node))
    assert [each.workload for each in sums.recommendations()] == [WEB]
    assert sums.left_out == 0


def test_absurd_amounts_are_unknown_or_in_the_last_bucket() -> None:
    samples = [(end, "a", "p", 1e5, 7 * 2.0**60) for end in range(3)]
    web = recommended(states(windows_of(samples)))[WEB]
    assert math.isfinite(web.cpu.target)
    assert math.isnan(web.memory.target)
