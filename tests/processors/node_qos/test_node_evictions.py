"""Wishes of a node, second by second."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.node_qos.eviction_victims import EvictionFeature, is_evictable
from pipeline.processors.node_qos.node_evictions import (
    CPU_COOL_DOWN_SECONDS,
    MEMORY_COOL_DOWN_SECONDS,
    MOST_WISHES,
    PATIENCE_SECONDS,
    REST_SECONDS,
    NodeEvictions,
)
from pipeline.processors.node_qos.node_state import NodeState, PodState
from pipeline.processors.slo.nodeslo import NodeSLOSpec
from pipeline.topics.resource_amounts import Resources
from tests.processors.node_qos.eviction_pods import GIB, NOW, any_pods, best_effort, node

ALL = tuple(EvictionFeature)
MEMORY = {"memory_evict_threshold_percent": 80, "memory_evict_lower_percent": 70}
CPU = {"cpu_evict_threshold_percent": 80, "cpu_evict_lower_percent": 70}
OFFERS = {
    "cpu_allocatable_evict_threshold_percent": 110, "cpu_allocatable_evict_lower_percent": 100,
    "memory_allocatable_evict_threshold_percent": 110,
    "memory_allocatable_evict_lower_percent": 100,
}  # fmt: skip
SATISFACTION = {
    "cpu_evict_be_satisfaction_lower_percent": 30, "cpu_evict_be_satisfaction_upper_percent": 40,
}  # fmt: skip


class Node:
    """Evictions of a node whose time passes."""

    def __init__(self, *features: EvictionFeature, **fields: Any) -> None:
        self.evictions = NodeEvictions(features or ALL)
        self.fields, self.at = fields, NOW

    def asks(self, *pods: PodState, after: float = 1.0, **fields: Any) -> list[str]:
        """The names of the pods that should leave, once a second until `after` seconds passed."""
        wishes = []
        while after > 0:
            self.at += min(after, 1.0)
            after -= 1.0
            state = node(*pods, at=self.at, **(self.fields | fields))
            wishes = self.evictions.wishes(state)
        return [wish.name for wish in wishes]


def hogs(*gibibytes: float) -> list[PodState]:
    return [
        best_effort(f"p{index}", 5000 + index, memory_bytes=amount * GIB, cpu_cores=1.0)
        for index, amount in enumerate(gibibytes)
    ]


def under_memory_pressure(used: float = 60.0) -> Node:
    return Node(EvictionFeature.BE_MEMORY, thresholds=MEMORY, memory_bytes=used * GIB)


def test_a_wish_has_its_reason_and_its_evidence() -> None:
    evictions = NodeEvictions([EvictionFeature.BE_MEMORY])
    state = node(*hogs(20, 9), thresholds=MEMORY, memory_bytes=60.0 * GIB)
    (wish,) = evictions.wishes(state)
    assert wish.why == ("memory usage is 64424509440 of 68719476736 (93.8%), the threshold is 80%")
    assert wish[:6] == ("uid-p0", "shop", "p0", "batch", EvictionFeature.BE_MEMORY, NOW)
    assert wish[6:8] == (1000, 20 * GIB)


def test_a_wish_is_repeated_until_its_pod_has_left() -> None:
    pressed, pods = under_memory_pressure(), hogs(20, 9)
    for _ in range(30):
        assert pressed.asks(*pods) == ["p0"]
    assert pressed.asks(*pods[1:], memory_bytes=40.0 * GIB) == []


def test_pods_go_on_leaving_below_the_threshold_down_to_the_lower_mark() -> None:
    pressed, pods = under_memory_pressure(), hogs(8, 6, 4)
    assert pressed.asks(*pods) == ["p0", "p1", "p2"]
    # 52 GiB are more than 80%, 50 GiB less, 44 GiB less than 70%.
    assert pressed.asks(*pods[1:], memory_bytes=50.0 * GIB) == ["p1"]
    assert pressed.asks(*pods[2:], memory_bytes=44.0 * GIB) == []
    # At rest nothing leaves between the marks.
    assert pressed.asks(*pods[2:], memory_bytes=50.0 * GIB) == []


def test_no_other_pod_is_chosen_in_a_cool_down() -> None:
    pressed, pods = under_memory_pressure(), hogs(20, 9, 9)
    assert pressed.asks(*pods) == ["p0"]
    more = {"memory_bytes": 64.0 * GIB}
    bigger = [best_effort("p0", 5000, memory_bytes=16.0 * GIB), *pods[1:]]
    assert pressed.asks(*bigger, after=MEMORY_COOL_DOWN_SECONDS - 1, **more) == ["p0"]
    assert pressed.asks(*bigger, **more) == ["p0", "p1"]


def test_cpu_cools_down_after_the_start_and_after_each_choice() -> None:
    busy = Node(EvictionFeature.CPU, thresholds=CPU, cpu_cores=14.0)
    pods = [best_effort(f"p{index}", 5000 + index, cpu_cores=3.0) for index in range(3)]
    assert busy.asks(*pods, after=CPU_COOL_DOWN_SECONDS) == []
    assert busy.asks(*pods) == ["p0"]
    assert busy.asks(*pods, after=CPU_COOL_DOWN_SECONDS - 1, cpu_cores=15.9) == ["p0"]
    assert busy.asks(*pods, cpu_cores=15.9) == ["p0", "p1"]


def test_a_short_peak_of_cpu_evicts_nothing() -> None:
    thresholds = CPU | {"cpu_evict_time_window_seconds": 30}
    busy = Node(EvictionFeature.CPU, thresholds=thresholds, cpu_cores=8.0)
    pods = [best_effort("p", cpu_cores=3.0)]
    assert busy.asks(*pods, after=60) == []
    assert busy.asks(*pods, after=10, cpu_cores=16.0) == []
    assert busy.asks(*pods, after=30, cpu_cores=16.0) == ["p"]
    # The mean is still high, the present usage is not.
    other = Node(EvictionFeature.CPU, thresholds=thresholds, cpu_cores=16.0)
    assert other.asks(*pods, after=CPU_COOL_DOWN_SECONDS) == []
    assert other.asks(*pods, cpu_cores=8.0) == []


def test_patience_ends_and_another_pod_is_asked_until_the_rest_is_over() -> None:
    pressed, pods = under_memory_pressure(), hogs(20, 19)
    assert pressed.asks(*pods) == ["p0"]
    assert pressed.asks(*pods, after=PATIENCE_SECONDS) == ["p0"]
    assert pressed.asks(*pods) == ["p1"]
    assert pressed.asks(*pods, after=PATIENCE_SECONDS + 1) == []
    assert pressed.asks(*pods, after=REST_SECONDS - PATIENCE_SECONDS - 1) == ["p0"]


@pytest.mark.parametrize(
    "unknown",
    [
        {"memory_bytes": None}, {"capacity": Resources()}, {"slo": None}, {"slo": NodeSLOSpec()},
        {"thresholds": MEMORY | {"enable": False}}, {"thresholds": {}},
        {"thresholds": MEMORY | {"memory_evict_lower_percent": 80}},
    ],
)  # fmt: skip
def test_nothing_is_asked_without_policy_or_usage(unknown: dict[str, Any]) -> None:
    pressed, pods = under_memory_pressure(), hogs(20, 9)
    assert pressed.asks(*pods) == ["p0"]
    assert pressed.asks(*pods, **unknown) == []
    assert pressed.asks(*hogs(30, 9), **unknown) == []


def test_a_missing_sample_ends_no_wish() -> None:
    pressed, pods = under_memory_pressure(), hogs(20, 9)
    assert pressed.asks(*pods) == ["p0"]
    assert pressed.asks(*pods, memory_bytes=None) == []
    (wish,) = pressed.evictions.wishes(node(*pods, at=pressed.at + 1, **pressed.fields))
    assert (wish.name, wish.since) == ("p0", NOW + 1)


def test_a_pod_of_unknown_usage_is_not_asked_to_leave() -> None:
    pods = [best_effort("unknown", 5000), *hogs(20)]
    assert under_memory_pressure().asks(*pods) == ["p0"]


@pytest.mark.parametrize("step", [-86_400.0, 86_400.0])
def test_a_clock_that_was_set_neither_ends_nor_prolongs_anything(step: float) -> None:
    pressed, pods = under_memory_pressure(), hogs(20, 9, 9)
    assert pressed.asks(*pods) == ["p0"]
    pressed.at += step
    more = {"memory_bytes": 64.0 * GIB}
    bigger = [best_effort("p0", 5000, memory_bytes=16.0 * GIB), *pods[1:]]
    assert pressed.asks(*bigger, **more) == ["p0"]
    assert pressed.asks(*bigger, after=MEMORY_COOL_DOWN_SECONDS, **more) == ["p0", "p1"]


def test_satisfaction_by_the_real_limit_and_by_the_offer() -> None:
    def batch(name: str, millicores: int, cores: float) -> PodState:
        return best_effort(name, batch=Resources(cpu_millicores=millicores), cpu_cores=cores)

    pods = [batch("a", 6000, 1.0), batch("b", 6000, 0.9)]
    fields = {
        "thresholds": SATISFACTION, "best_effort_limit_millicores": 2000,
        "offered_batch": Resources(cpu_millicores=12_000),
    }  # fmt: skip
    starved = Node(EvictionFeature.BE_CPU, **fields)
    assert starved.asks(*pods, after=CPU_COOL_DOWN_SECONDS + 1) == ["a"]
    # The pod that is left has a third of what it requests.
    assert starved.asks(pods[1], after=60) == []
    by_offer = {"thresholds": SATISFACTION | {"cpu_evict_policy": "evictByAllocatable"}}
    assert starved.asks(*pods, after=60, **by_offer) == []
    less = {"offered_batch": Resources(cpu_millicores=2000)}
    assert starved.asks(*pods, after=60, **by_offer, **less) == ["a"]
    unknown = {"offered_batch": Resources()}
    assert starved.asks(*pods, after=60, **by_offer, **unknown) == []
    idle = [batch("a", 6000, 0.1), batch("b", 6000, 0.1)]
    assert Node(EvictionFeature.BE_CPU, **fields).asks(*idle, after=60) == []


def test_offers_that_shrink_below_the_requests() -> None:
    def tier(name: str, priority: int, **amounts: Resources) -> PodState:
        return best_effort(name, priority, **amounts)

    pods = [
        tier("high", 5500, batch=Resources(cpu_millicores=4000, memory_bytes=4 * GIB)),
        tier("low", 5000, batch=Resources(cpu_millicores=3000, memory_bytes=4 * GIB)),
        tier("mid", 7500, mid=Resources(cpu_millicores=2000, memory_bytes=4 * GIB)),
    ]  # fmt: skip
    fields = {
        "thresholds": OFFERS,
        "offered_mid": Resources(cpu_millicores=2000, memory_bytes=4 * GIB),
    }

    def offered(millicores: int | None, gibibytes: int | None) -> Resources:
        memory = None if gibibytes is None else gibibytes * GIB
        return Resources(cpu_millicores=millicores, memory_bytes=memory)

    for batch, leaving in (
        (offered(7000, 8), []), (offered(6400, 8), []), (offered(6000, 8), ["low"]),
        (offered(7000, 4), ["low"]), (offered(6000, 4), ["low"]),
        (offered(2000, 8), ["low", "high"]), (offered(0, 0), ["low", "high"]),
        (offered(None, None), []),
    ):  # fmt: skip
        shrunk = Node(EvictionFeature.CPU_ALLOCATABLE, EvictionFeature.MEMORY_ALLOCATABLE, **fields)
        assert shrunk.asks(*pods, after=CPU_COOL_DOWN_SECONDS + 1, offered_batch=batch) == leaving
    gone = Node(**fields | {"offered_mid": Resources(cpu_millicores=0)})
    assert gone.asks(*pods, after=CPU_COOL_DOWN_SECONDS + 1) == ["mid"]


def test_features_that_are_off_ask_for_nothing() -> None:
    everything = MEMORY | CPU
    fields = {"thresholds": everything, "memory_bytes": 60.0 * GIB, "cpu_cores": 16.0}
    cpu_only = Node(EvictionFeature.CPU, **fields)
    assert cpu_only.asks(*hogs(20), after=5) == []
    assert cpu_only.asks(*hogs(20), after=60) == ["p0"]


def test_wishes_are_bounded() -> None:
    pods = [best_effort(f"p{index:03}", memory_bytes=0.1 * GIB) for index in range(300)]
    assert len(under_memory_pressure(64).asks(*pods)) == MOST_WISHES


_POLICIES = st.fixed_dictionaries(
    {},
    optional={
        "cpu_evict_threshold_percent": st.integers(0, 100),
        "cpu_evict_lower_percent": st.integers(0, 100),
        "memory_evict_threshold_percent": st.integers(0, 100),
        "memory_evict_lower_percent": st.integers(0, 100),
        "cpu_allocatable_evict_threshold_percent": st.integers(0, 200),
        "cpu_allocatable_evict_lower_percent": st.integers(0, 200),
        "memory_allocatable_evict_threshold_percent": st.integers(0, 200),
        "memory_allocatable_evict_lower_percent": st.integers(0, 200),
        "cpu_evict_be_satisfaction_lower_percent": st.integers(0, 100),
        "cpu_evict_be_satisfaction_upper_percent": st.integers(0, 100),
        "cpu_evict_time_window_seconds": st.integers(1, 10**9),
        "cpu_evict_policy": st.sampled_from(["evictByRealLimit", "evictByAllocatable"]),
        "evict_enabled_priority_threshold": st.sampled_from([0, 5999, 9999, 2**31 - 1]),
        "allocatable_evict_priority_threshold": st.sampled_from([0, 5999, 7999, 9999]),
    },
)
_OFFERED = st.builds(
    Resources,
    cpu_millicores=st.none() | st.integers(0, 10_000),
    memory_bytes=st.none() | st.integers(0, 64 * GIB),
)


@st.composite
def _states(draw: st.DrawFn) -> list[NodeState]:
    states, at = [], NOW
    for _ in range(draw(st.integers(1, 3))):
        at += draw(st.sampled_from([0.0, 1.0, 1.0, 30.0, 700.0, -3600.0]))
        states.append(
            node(
                *draw(any_pods(3)),
                at=at,
                thresholds=draw(_POLICIES),
                cpu_cores=draw(st.none() | st.floats(0, 32)),
                memory_bytes=draw(st.none() | st.floats(0, 128 * GIB)),
                best_effort_limit_millicores=draw(st.none() | st.integers(0, 16_000)),
                offered_batch=draw(_OFFERED),
                offered_mid=draw(_OFFERED),
            )
        )
    return states


@given(_states())
def test_no_policy_and_no_pod_makes_a_node_ask_for_prod(states: list[NodeState]) -> None:
    evictions = NodeEvictions(ALL)
    for state in states:
        pods = {pod.uid: pod for pod in state.pods}
        wishes = evictions.wishes(state)
        assert len({wish.uid for wish in wishes}) == len(wishes)
        for wish in wishes:
            assert is_evictable(pods[wish.uid])
            assert wish.pod_class in ("mid", "batch", "free")
            assert wish.since <= state.at
