"""Which pod is killed when memory is about to run out."""

from typing import Any

import pytest
from hypothesis import given

from pipeline.processors.node_qos.memory_emergency import (
    FLOOR_PERCENT,
    SUSTAINED_SECONDS,
    MemoryEmergency,
)
from pipeline.processors.node_qos.node_evictions import MEMORY_COOL_DOWN_SECONDS
from pipeline.processors.node_qos.node_state import PodState, PressureLevels
from pipeline.processors.slo.nodeslo import NodeSLOSpec
from pipeline.topics.resource_amounts import Resources
from tests.processors.node_qos.eviction_pods import GIB, NOW, any_pods, best_effort, node, pod

EMPTY = {"memory_available_bytes": 0.5 * GIB, "memory_pressure": PressureLevels(60.0, 30.0)}


class Node:
    """A node whose time passes; it has nearly no memory unless fields say otherwise."""

    def __init__(self) -> None:
        self.emergency, self.at = MemoryEmergency(), NOW

    def kills(self, *pods: PodState, seconds: float = 1.0, **fields: Any) -> list[str]:
        """The names of the pods that are killed in so many rounds of a second."""
        names = []
        for _ in range(int(seconds)):
            self.at += 1.0
            kill = self.emergency.victim(node(*pods, at=self.at, **(EMPTY | fields)))
            names += [kill.pod.name] if kill else []
        return names


def ready() -> Node:
    """A node that was watched for a while, without an emergency."""
    fresh = Node()
    assert fresh.kills(seconds=10, memory_available_bytes=8.0 * GIB) == []
    return fresh


def hog(name: str, priority: int = 5500, gibibytes: float = 8.0, **fields: Any) -> PodState:
    return best_effort(name, priority, memory_bytes=gibibytes * GIB, **fields)


def test_the_largest_pod_of_the_lowest_priority_is_killed() -> None:
    pods = [hog("high", 5900, 30.0), hog("small", 5000, 1.0), hog("large", 5000, 9.0)]
    assert ready().kills(*pods, seconds=SUSTAINED_SECONDS + 1) == ["large"]


def test_a_kill_has_its_reason() -> None:
    emergency, pods = ready(), [hog("a")]
    emergency.kills(*pods, seconds=SUSTAINED_SECONDS)
    kill = emergency.emergency.victim(node(*pods, at=emergency.at + 1, **EMPTY))
    assert kill is not None
    assert kill.why == (
        "536870912 of 68719476736 bytes of memory are available, below 2%, and all tasks wait for "
        "memory for 30.0% of the time; it uses 8589934592 bytes"
    )


def test_one_pod_is_killed_at_a_time() -> None:
    pods = [hog("a", 5000), hog("b", 5001), hog("c", 5002)]
    emergency = ready()
    assert emergency.kills(*pods, seconds=SUSTAINED_SECONDS + MEMORY_COOL_DOWN_SECONDS) == ["a"]
    assert emergency.kills(*pods[1:], seconds=MEMORY_COOL_DOWN_SECONDS) == ["b"]


@pytest.mark.parametrize(
    "fields",
    [
        {"memory_available_bytes": FLOOR_PERCENT / 100 * 64 * GIB},
        {"memory_available_bytes": None}, {"memory_available_bytes": float("nan")},
        {"memory_available_bytes": -1.0}, {"memory_pressure": None}, {"slo": None},
        {"memory_pressure": PressureLevels(99.0, None)}, {"slo": NodeSLOSpec()},
        {"memory_pressure": PressureLevels(99.0, 9.9)}, {"thresholds": {"enable": False}},
        {"memory_pressure": PressureLevels(99.0, float("nan"))}, {"capacity": Resources()},
    ],
)  # fmt: skip
def test_in_doubt_nothing_is_killed(fields: dict[str, Any]) -> None:
    assert ready().kills(hog("a"), seconds=20, **fields) == []


def test_a_single_reading_kills_nothing() -> None:
    emergency = ready()
    for _ in range(5):
        assert emergency.kills(hog("a"), seconds=SUSTAINED_SECONDS) == []
        assert emergency.kills(hog("a"), memory_available_bytes=9.0 * GIB) == []


def test_nothing_is_killed_just_after_the_start_or_after_a_gap() -> None:
    started = Node()
    assert started.kills(hog("a"), seconds=MEMORY_COOL_DOWN_SECONDS) == []
    assert started.kills(hog("a")) == ["a"]
    for step in (-3600.0, 3600.0):
        gap = ready()
        assert gap.kills(hog("a"), seconds=SUSTAINED_SECONDS) == []
        gap.at += step
        assert gap.kills(hog("a"), seconds=SUSTAINED_SECONDS) == []


@pytest.mark.parametrize(
    "spared",
    [
        pod("mid", "LS", 7500, memory_bytes=9e9), pod("prod", "LS", 9500, memory_bytes=9e9),
        pod("none", "", None, pod_class="none", memory_bytes=9e9), hog("unlisted", listed=False),
        pod("unknown-usage", "BE", 5000), pod("lsr", "LSR", 5500, memory_bytes=9e9),
        hog("critical", 2_000_000_000), hog("empty", gibibytes=0),
    ],
    ids=lambda pod: pod.name,
)  # fmt: skip
def test_other_pods_are_spared(spared: PodState) -> None:
    assert ready().kills(spared, seconds=20) == []
    assert ready().kills(spared, hog("a"), seconds=SUSTAINED_SECONDS + 1) == ["a"]


@given(any_pods(8))
def test_prod_and_mid_are_never_killed(pods: tuple[PodState, ...]) -> None:
    emergency = ready()
    for _ in range(12):
        emergency.at += 1.0
        kill = emergency.emergency.victim(node(*pods, at=emergency.at, **EMPTY))
        if kill is not None:
            assert kill.pod.pod_class in ("batch", "free")
            assert kill.pod.listed
            assert (kill.pod.priority or 0) < 9000
            assert kill.pod.qos_label not in ("LSE", "LSR", "SYSTEM")
