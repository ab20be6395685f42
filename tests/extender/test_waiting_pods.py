"""Pods that every node refused are woken when a node may take one, and at no other time."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from pipeline.clock import ManualClock
from pipeline.extender import limits
from pipeline.extender.decisions import Decisions, Rules
from pipeline.extender.waiting_pods import WaitingPods
from pipeline.extender.wake_ups import publish_wake_ups
from pipeline.processors.placement.enabled_plugins import read_config
from pipeline.table import FeedState, Table
from pipeline.table.node_columns import OfferedResources, TableNode
from pipeline.tasks import cancel_tasks
from pipeline.times import format_time
from pipeline.topics.pods import PodRecord
from pipeline.topics.resource_amounts import Resources
from pipeline.topics.wake_ups import WakeUpRecord
from tests.table.records import NOW, ROOM, any_pod, node_state, running

KOORDINATOR: dict[str, Any] = {
    "plugins": {"multiPoint": {"enabled": [{"name": "LoadAwareScheduling"}]}}
}
RULES = Rules(read_config(KOORDINATOR))
RESERVED = '{"resources": {"cpu": "3"}}'


def pod(uid: str = "new", cpu: int = 500, **more: Any) -> PodRecord:
    return any_pod(uid, requests=Resources(cpu_millicores=cpu, memory_bytes=1 << 30), **more)


class World:
    """Nodes `a` and `b`, both over the cpu threshold, and a scheduler that asks about pods."""

    def __init__(self, rules: Rules = RULES) -> None:
        self.table, self.now = Table(counting=rules.counting), NOW
        self.decisions = Decisions(self.table, rules)
        self.waiting = WaitingPods(self.table, self.decisions)
        self.offset = 0
        for name in ("a", "b"):
            self.table.put_node(TableNode(node=name, allocatable=ROOM))
            self.report(name, cpu=3.9)

    def report(self, name: str, **usage: Any) -> None:
        self.offset += 1
        state = node_state(name, age=NOW - self.now, offset=self.offset, **usage)
        self.table.put_state(state)

    def ask(self, *pods: PodRecord, names: tuple[str, ...] = ("a", "b")) -> None:
        for each in pods or (pod(),):
            self.table.put_pod(each)
            result = self.decisions.filter(each, names, self.now)
            if result.passed:
                self.waiting.forget(each.uid)
            else:
                self.waiting.put(each, result.nodes, result.demand)

    def woken(self, seconds: float = 0.0) -> list[str]:
        """The nodes of wake-ups, once so much time has passed."""
        self.now += seconds
        wake_ups = [self.waiting.judge(self.now) for _ in range(20)]
        return [each.node for each in wake_ups if each is not None]


def test_a_pod_is_woken_once_when_a_node_has_cooled() -> None:
    world = World()
    world.ask()
    assert world.woken(5.0) == []
    world.report("b", cpu=3.9)
    assert world.woken(5.0) == []
    world.report("b", cpu=1.0)
    assert world.woken(1.0) == ["b"]
    assert world.woken(1.0) == []


def test_no_pod_waits_for_nodes_that_cool_without_a_refusal() -> None:
    world = World()
    world.report("a", cpu=1.0)
    world.ask()
    world.report("b", cpu=1.0)
    assert world.woken(60.0) == []
    assert len(world.waiting) == 0


def test_a_pod_waits_only_for_nodes_that_it_was_asked_about() -> None:
    world = World()
    world.ask(names=("a",))
    world.report("b", cpu=1.0)
    assert world.woken(5.0) == []
    world.report("a", cpu=1.0)
    assert world.woken(5.0) == ["a"]


def test_pods_of_a_kind_wait_for_the_nodes_that_each_was_asked_about() -> None:
    """Their volumes may be in different zones."""
    for cooled in ("a", "b"):
        world = World()
        world.ask(pod("web-0"), names=("a",))
        world.ask(pod("web-1"), names=("b",))
        world.report(cooled, cpu=1.0)
        assert world.woken(1.0) == [cooled]


def test_united_nodes_are_judged_once_each() -> None:
    world = World()
    names = tuple(f"n{i:04}" for i in range(2 * limits.JUDGED_NODES))
    for name in names:
        world.report(name, cpu=3.9)
    for first in (0, 1000, 500, 2000, 0):
        world.ask(names=names[first : first + limits.JUDGED_NODES])
    world.report(names[-1], cpu=1.0)
    results = [world.waiting.judge(world.now) for _ in range(2)]
    assert {each.node for each in results if each is not None} == {names[-1]}


def test_a_woken_node_that_the_scheduler_does_not_offer_wakes_once() -> None:
    """kube-scheduler itself refuses `a` by now, for instance for a new taint."""
    world = World()
    world.ask(names=("a", "b"))
    woken = []
    for _ in range(20):
        world.report("a", cpu=1.0)
        woken += world.woken(1.0)
        world.ask(names=("b",))
    assert woken == ["a"]
    world.report("a", cpu=3.9)
    world.ask(names=("a", "b"))
    world.report("a", cpu=1.0)
    assert world.woken(1.0) == ["a"]


def test_pods_that_differ_by_annotations_no_filter_reads_are_of_one_kind() -> None:
    world = World()
    world.ask(pod("web"), names=("b",))
    for index in range(limits.WAITING_GROUPS + 1):
        key = "batch.kubernetes.io/job-completion-index"
        world.ask(pod(f"job-{index}", 600, annotations={key: f"{index}"}), names=("a",))
    world.report("b", cpu=1.0)
    assert world.woken(1.0) == ["b"]


def test_a_pod_with_a_hint_is_of_another_kind() -> None:
    plugins = [{"name": "LoadAwareScheduling"}, {"name": "SchedulingHint"}]
    world = World(Rules(read_config({"plugins": {"multiPoint": {"enabled": plugins}}})))
    hint = {"scheduling.koordinator.sh/scheduling-hint": '{"nodeNames": ["b"]}'}
    world.ask(pod("hinted", annotations=hint), pod("free"))
    world.report("a", cpu=1.0)
    assert world.woken(1.0) == ["a"]


def test_kinds_of_lower_priority_are_forgotten_first() -> None:
    world = World()
    world.ask(pod("prod", priority=9000), names=("b",))
    for kind in range(limits.WAITING_GROUPS + 5):
        world.ask(pod(f"batch-{kind}", 600 + kind, priority=5000), names=("a",))
    assert len(world.waiting) == limits.WAITING_GROUPS
    world.report("b", cpu=1.0)
    assert world.woken(1.0) == ["b"]
    # A kind of lower priority than all others is not remembered.
    world.report("b", cpu=3.9)
    world.ask(pod("free", priority=3000), names=("b",))
    world.ask(pod("prod", priority=9000), names=("a",))
    assert len(world.waiting) == limits.WAITING_GROUPS


def test_every_reason_that_disappears_wakes() -> None:
    """Its own estimate, pods in flight, silence, a reservation, and the lower bound of Mid."""
    estimate = World()
    for name in ("a", "b"):
        estimate.report(name, cpu=2.4)
    estimate.ask()
    estimate.report("a", cpu=1.5)
    assert estimate.woken(1.0) == ["a"]

    in_flight = World()
    for name in ("a", "b"):
        in_flight.report(name, cpu=1.0)
        in_flight.decisions.place(pod(f"placed-{name}", 3000), name, NOW)
    in_flight.ask()
    assert in_flight.woken(4.0) == []
    assert in_flight.woken(1.0) in (["a"], ["b"])

    silent = World()
    silent.report("a", cpu=1.0)
    silent.now += 300.0
    silent.report("b", cpu=3.9)
    silent.ask()
    assert silent.woken(1.0) == []
    silent.report("a", cpu=1.0)
    assert silent.woken(1.0) == ["a"]

    reserved = World()
    for name in ("a", "b"):
        annotations = {"node.koordinator.sh/reservation": RESERVED}
        reserved.report(name, cpu=1.0)
        reserved.table.put_node(TableNode(node=name, allocatable=ROOM, annotations=annotations))
        reserved.table.put_pod(running(pod(f"on-{name}", 900), name))
    reserved.ask()
    assert reserved.woken(1.0) == []
    reserved.table.drop_pod("b", "on-b")
    assert reserved.woken(1.0) == ["b"]

    mid = World()
    for name in ("a", "b"):
        mid.report(name, cpu=1.0)
        offer(mid, name, age=400.0, cpu=100)
    mid.ask(pod(cpu=0, pod_class="mid", scalars={"kubernetes.io/mid-cpu": 500}))
    assert mid.woken(1.0) == []
    offer(mid, "a", age=0.0, cpu=2000)
    assert mid.woken(1.0) == ["a"]


def offer(world: World, name: str, age: float, cpu: int) -> None:
    world.offset += 1
    amount = Resources(cpu_millicores=cpu, memory_bytes=8 << 30)
    world.table.put_resources(
        OfferedResources(
            node=name, as_of=format_time(world.now - age), generation=1, offset=world.offset,
            epoch=1, mid=amount, mid_lower_bound=amount, batch=amount,
        )
    )  # fmt: skip


@pytest.mark.parametrize("how", ["bound", "deleted", "silent", "passed"])
def test_pods_that_do_not_wait_any_more_cause_no_wake_up(how: str) -> None:
    world = World()
    world.ask()
    world.woken(1.0)
    match how:
        case "bound":
            world.table.put_pod(running(pod(), "a"))
        case "deleted":
            world.table.drop_pod("", "new")
        case "silent":
            world.now += limits.FORGET_WAITING_SECONDS
        case "passed":
            world.report("a", cpu=1.0)
            world.ask()
    world.report("a", cpu=1.0)
    world.report("b", cpu=1.0)
    assert world.woken(1.0) == []
    assert len(world.waiting) == 0


def test_one_wake_up_is_enough_for_pods_of_all_kinds_that_were_refused_before() -> None:
    world = World()
    world.ask(*(pod(f"p{i}", 100 + i) for i in range(20)))
    world.report("a", cpu=1.0)
    assert world.woken(1.0) == ["a"]
    # Refused after the wake-up, because the others took the room.
    world.report("a", cpu=3.9)
    world.ask(pod("late", 50))
    world.report("b", cpu=1.0)
    assert world.woken(1.0) == ["b"]


def test_an_unanswered_wake_up_is_repeated_at_growing_intervals() -> None:
    """The actuator may be away, or the scheduler itself refuses the node."""
    world = World()
    world.ask()
    world.report("a", cpu=1.0)
    times = []
    for second in range(600):
        world.report("a", cpu=1.0)
        times += [second] * len(world.woken(1.0))
    assert times == [0, 30, 90, 210]


def test_a_pod_that_is_refused_again_is_woken_again() -> None:
    world = World()
    for _ in range(3):
        world.report("a", cpu=3.9)
        world.ask()
        assert world.woken(1.0) == []
        world.report("a", cpu=1.0)
        assert world.woken(1.0) == ["a"]


def test_nodes_are_judged_a_part_at_a_time() -> None:
    world = World()
    names = tuple(f"n{i:04}" for i in range(3 * limits.JUDGED_NODES))
    for name in names:
        world.report(name, cpu=3.9)
    world.ask(names=names)
    world.report(names[-1], cpu=1.0)
    results = [world.waiting.judge(world.now) for _ in range(3)]
    assert [each and each.node for each in results] == [None, None, names[-1]]


def test_nodes_that_were_deleted_wake_nobody() -> None:
    world = World()
    world.ask()
    world.table.drop_node("a")
    world.table.drop_state("a")
    world.table.put_node(TableNode(node="c", allocatable=ROOM))
    world.report("c", cpu=1.0)
    assert world.woken(1.0) == []
    world.report("b", cpu=1.0)
    assert world.woken(1.0) == ["b"]


def test_remembered_pods_are_bounded() -> None:
    world = World()
    for kind in range(limits.WAITING_GROUPS + 5):
        world.ask(pod(f"kind-{kind}", 1000 + kind))
    world.ask(*(pod(f"p{i}") for i in range(limits.WAITING_PODS + 5)))
    assert len(world.waiting) == limits.WAITING_GROUPS - 1 + limits.WAITING_PODS
    for name in ("a", "b"):
        world.report(name, cpu=1.0)
    assert len(world.woken(1.0)) == 1


async def test_pending_pods_are_woken_once_after_a_start() -> None:
    """What was refused before is unknown."""
    world, state, clock = World(), FeedState(caught_up=False), ManualClock(NOW)
    wake_ups: list[WakeUpRecord] = []
    world.table.put_pod(pod())
    # A node that was deleted has a row before those of the others.
    world.table.drop_node("a")
    task = asyncio.create_task(
        publish_wake_ups(world.waiting, world.table, state, clock, wake_ups.append)
    )
    await clock.advance(10.0)
    assert wake_ups == []
    state.caught_up = True
    await clock.advance(60.0)
    assert [each.node for each in wake_ups] == ["b"]
    world.ask()
    world.report("b", cpu=1.0)
    await clock.advance(1.0)
    assert [each.node for each in wake_ups] == ["b", "b"]
    await cancel_tasks(task)


async def test_no_request_waits_for_more_than_one_judgement() -> None:
    """Judgements in a row delayed every request that came in meanwhile by some of them."""
    world, state, clock = World(), FeedState(caught_up=True), ManualClock(NOW)
    world.ask()
    judged_at: list[float] = []

    def judge(now: float) -> None:
        judged_at.append(now)

    world.waiting.judge = judge  # type: ignore[method-assign]
    task = asyncio.create_task(
        publish_wake_ups(world.waiting, world.table, state, clock, lambda _: None)
    )
    await clock.advance(1.0)
    await cancel_tasks(task)
    assert len(judged_at) > 30
    assert min(later - earlier for earlier, later in pairwise(judged_at)) > 0.02
