"""Order and choice of victims; Prod is never among them."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.node_qos.eviction_victims import (
    EVICTION_POLICY,
    EVICTION_PRIORITY,
    LABEL_SUB_PRIORITY,
    EvictionFeature,
    EvictionTask,
    Measure,
    amount,
    choose_victims,
    is_evictable,
    victim_order,
)
from pipeline.processors.node_qos.node_state import PodState
from pipeline.topics.resource_amounts import Resources
from tests.processors.node_qos.eviction_pods import ENABLED, any_pods, best_effort, pod

TASKS = st.builds(
    EvictionTask,
    feature=st.sampled_from(EvictionFeature),
    measure=st.sampled_from(Measure),
    release=st.integers(-1, 1 << 37),
    why=st.just("because"),
    priority_threshold=st.none() | st.sampled_from([0, 5500, 7999, 2**31 - 1]),
    may_choose=st.booleans(),
)


def task(feature: EvictionFeature, measure: Measure, release: int, **fields: Any) -> EvictionTask:
    return EvictionTask(feature, measure, release, "because", **fields)


def cpu(release: int, **fields: Any) -> EvictionTask:
    policy = {"priority_threshold": 5999} | fields
    return task(EvictionFeature.CPU, Measure.CPU_USED, release, **policy)


def be_memory(release: int) -> EvictionTask:
    return task(EvictionFeature.BE_MEMORY, Measure.MEMORY_USED, release)


def names(pods: list[PodState]) -> list[str]:
    return [pod.name for pod in pods]


def chosen(tasks: list[EvictionTask], *pods: PodState, asked: tuple[str, ...] = ()) -> list[str]:
    return names([victim.pod for victim in choose_victims(tasks, pods, asked, 100)])


def counts_as_prod(pod: PodState) -> bool:
    return (
        pod.pod_class not in ("mid", "batch", "free")
        or (pod.priority is not None and pod.priority >= 9000)
        or pod.qos_label in ("LSE", "LSR", "SYSTEM")
        or not pod.listed
    )


@given(st.lists(TASKS, max_size=6), any_pods(), st.integers(0, 8))
def test_prod_is_never_chosen(
    tasks: list[EvictionTask], pods: tuple[PodState, ...], most: int
) -> None:
    asked = [pod.uid for pod in pods]
    for victim in choose_victims(tasks, pods, asked, most):
        assert not counts_as_prod(victim.pod)
        assert is_evictable(victim.pod)
        assert not victim.pod.deleting


@given(TASKS, any_pods(6))
def test_the_order_does_not_depend_on_that_of_the_pods(
    task: EvictionTask, pods: tuple[PodState, ...]
) -> None:
    orders = {
        tuple(names(victim_order(task, order)))
        for order in itertools.islice(itertools.permutations(pods), 24)
    }
    assert len(orders) == 1


@given(st.lists(TASKS, max_size=4), any_pods(), st.sets(st.sampled_from(["uid-p0", "uid-p3"])))
def test_victims_are_needed_and_enough_if_enough_may_leave(
    tasks: list[EvictionTask], pods: tuple[PodState, ...], asked: set[str]
) -> None:
    victims = choose_victims(tasks, pods, asked, 100)
    assert len({victim.pod.uid for victim in victims}) == len(victims)
    leaving = [pod for pod in pods if pod.deleting]

    def released(task: EvictionTask, gone: list[PodState]) -> int:
        return sum(amount(pod, task.measure) or 0 for pod in [*leaving, *gone])

    for place, victim in enumerate(victims):
        # Before it was chosen, its task needed more.
        earlier = [each.pod for each in victims[:place]]
        assert released(victim.task, earlier) < victim.task.release
        assert (amount(victim.pod, victim.task.measure) or 0) > 0
        assert victim.task.may_choose or victim.pod.uid in asked
    gone = [victim.pod for victim in victims]
    for task in tasks:
        if released(task, gone) < task.release:
            staying = [pod for pod in victim_order(task, pods) if pod not in [*gone, *leaving]]
            assert all(
                not amount(pod, task.measure) or not (task.may_choose or pod.uid in asked)
                for pod in staying
            )


def test_best_effort_pods_leave_by_priority_then_by_use() -> None:
    pods = [
        best_effort("big", 100, memory_bytes=20.0), best_effort("small", 100, memory_bytes=5.0),
        best_effort("high", 120, memory_bytes=99.0), best_effort("unknown-a", 100),
        best_effort("unknown-b", 100), best_effort("no-priority", None, memory_bytes=1.0),
        pod("ls", "LS", 100, memory_bytes=50.0), pod("unlabelled", "", 5500, memory_bytes=50.0),
    ]  # fmt: skip
    order = ["no-priority", "big", "small", "unknown-b", "unknown-a", "high"]
    assert names(victim_order(be_memory(1), pods)) == order
    # A pod of unknown usage releases nothing that anyone knows of.
    assert chosen([be_memory(25)], *pods) == ["no-priority", "big", "small"]
    assert chosen([be_memory(27)], *pods) == ["no-priority", "big", "small", "high"]


def test_cpu_of_best_effort_pods_counts_by_request() -> None:
    def busy(name: str, cores: float | None, millicores: int | None) -> PodState:
        return best_effort(name, cpu_cores=cores, batch=Resources(cpu_millicores=millicores))

    pods = [busy("half", 1.0, 2000), busy("full", 1.0, 1000), busy("unknown", None, 1000),
            busy("without", 3.0, None)]  # fmt: skip
    wanted = task(EvictionFeature.BE_CPU, Measure.BATCH_CPU, 3500)
    assert names(victim_order(wanted, pods)) == ["full", "half", "without", "unknown"]
    # The request is released, also of a pod whose usage is unknown.
    assert chosen([wanted], *pods) == ["full", "half", "unknown"]


def test_eviction_priority_beats_priority_beats_the_label_beats_use() -> None:
    def candidate(name: str, priority: int, cores: float, **texts: str) -> PodState:
        annotations = {EVICTION_PRIORITY: texts["first"]} if "first" in texts else {}
        labels = ENABLED | ({LABEL_SUB_PRIORITY: texts["sub"]} if "sub" in texts else {})
        return best_effort(name, priority, cpu_cores=cores, labels=labels, annotations=annotations)

    pods = [
        candidate("late", 5000, 9.0, first="+1"), candidate("first", 5900, 0.1, first="-5"),
        candidate("low", 5000, 0.1, sub="4999"), candidate("used", 5000, 2.0),
        candidate("idle", 5000, 1.0, sub="none"), candidate("bad", 5000, 1.5, first="3e9"),
        candidate("high", 5001, 9.0),
    ]  # fmt: skip
    order = ["first", "low", "used", "bad", "idle", "high", "late"]
    assert names(victim_order(cpu(1), pods)) == order


@pytest.mark.parametrize(
    ("fields", "may_leave"),
    [
        ({}, True), ({"phase": "Pending"}, True), ({"phase": "Succeeded"}, False),
        ({"priority": 5999}, True), ({"priority": 6000}, False), ({"labels": {}}, False),
        ({"labels": {**ENABLED, "koordinator.sh/eviction-enabled": "True"}}, False),
        ({"cpu_cores": None}, False), ({"annotations": {EVICTION_POLICY: '["CPUEvict"]'}}, True),
        ({"annotations": {EVICTION_POLICY: '["MemoryEvict"]'}}, False),
        ({"annotations": {EVICTION_POLICY: "[]"}}, False),
        ({"annotations": {EVICTION_POLICY: "CPUEvict"}}, False),
        ({"annotations": {EVICTION_POLICY: '"CPUEvict"'}}, False),
        ({"annotations": {EVICTION_POLICY: "[" * 100_000}}, False), ({"listed": False}, False),
    ],
)  # fmt: skip
def test_who_may_leave_by_usage(fields: dict[str, Any], may_leave: bool) -> None:
    candidate = best_effort("a", **({"cpu_cores": 1.0} | fields))
    assert chosen([cpu(1)], candidate) == (["a"] if may_leave else [])
    assert chosen([cpu(1, priority_threshold=None)], candidate) == []


def test_pods_that_leave_already_count() -> None:
    pods = [
        best_effort("leaving", cpu_cores=2.0, deleting=True), best_effort("a", cpu_cores=3.0),
        best_effort("asked", cpu_cores=1.0), best_effort("b", cpu_cores=2.5),
    ]  # fmt: skip
    assert chosen([cpu(2000)], *pods) == []
    assert chosen([cpu(3000)], *pods) == ["a"]
    # A pod that was asked is not replaced by a pod that uses more now.
    assert chosen([cpu(3000)], *pods, asked=("uid-asked",)) == ["asked"]
    assert chosen([cpu(6001)], *pods, asked=("uid-asked",)) == ["asked", "a", "b"]
    assert chosen([cpu(6001, may_choose=False)], *pods, asked=("uid-asked",)) == ["asked"]


def test_a_pod_that_serves_two_tasks_leaves_once_and_counts_for_both() -> None:
    pods = [
        best_effort("both", 5000, cpu_cores=2.0, memory_bytes=8.0),
        best_effort("more", 5500, cpu_cores=0.5, memory_bytes=4.0),
    ]  # fmt: skip
    assert chosen([cpu(1500), be_memory(8)], *pods) == ["both"]
    assert chosen([cpu(1500), be_memory(9)], *pods) == ["both", "more"]


def test_no_more_pods_than_the_most() -> None:
    pods = [best_effort(str(index), cpu_cores=1.0) for index in range(9)]
    assert len(choose_victims([cpu(9000)], pods, (), 4)) == 4
