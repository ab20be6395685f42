"""An evictor with a real API server evicts all pods of a plan, or none."""

import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from aiokafka import AIOKafkaProducer

from actuators.eviction.plan_limits import PLANS_OF_A_POD
from pipeline.local.control_plane import ControlPlane
from pipeline.processors.placement.victim_selection import SETTLE_SECONDS
from pipeline.settings import Settings
from pipeline.times import format_time
from pipeline.topics.actions import ActionRecord
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.eviction_plans import EvictionPlanRecord, LeavingPod, WaitingPod
from pipeline.topics.registry import ACTIONS, EVICTION_PLANS
from tests.broker import messages
from tests.cluster.objects import (
    RUNNING,
    Object,
    apply,
    delete,
    deployment,
    items,
    named,
    node,
    pod,
    write_policy,
)
from tests.cluster.roles import Role
from tests.processes import until

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(600)]

NODE = "evicted-from"
PODS = {"a", "b", "c", "prod", "waiting"}
STOP = ("configmap", "springtide-stop-evictions", "-n", "springtide-system")


class World:
    """Pods on one node, a pod that waits, and eviction plans."""

    def __init__(self, plane: ControlPlane, settings: Settings, producer: AIOKafkaProducer) -> None:
        self.plane = plane
        self.settings = settings
        self._producer = producer

    def pods(self) -> set[str]:
        return {*named(self.plane, "pods")}

    def uid(self, name: str) -> str:
        return str(named(self.plane, "pods")[name]["metadata"]["uid"])

    async def plan(self, *names: str, **changes: Any) -> EvictionPlanRecord:
        """Publish a plan that evicts these pods."""
        now, pods = time.time(), named(self.plane, "pods")
        uids = {name: str(item["metadata"]["uid"]) for name, item in pods.items()}
        waiting = WaitingPod(
            namespace="default", name="waiting", uid=uids["waiting"], priority=9500
        )
        record = EvictionPlanRecord(
            node=NODE, id=f"{now}", at=format_time(now), valid_until=format_time(now + 30),
            planner="test", why="waiting of prod fits nowhere", waiting=waiting,
            pods=tuple(LeavingPod(uid=uids[name], pod_class="mid") for name in names),
        )  # fmt: skip
        record = msgspec.structs.replace(record, **changes)
        await self.send(record)
        return record

    async def send(self, record: EvictionPlanRecord, key: str = NODE) -> None:
        await self.send_bytes(encode_json(record), key)

    async def send_bytes(self, value: bytes, key: str = NODE) -> None:
        topic = EVICTION_PLANS.full_name(self.settings.kafka.topic_prefix)
        await self._producer.send_and_wait(topic, value, key=key.encode())

    async def send_action(self, action: ActionRecord) -> None:
        topic = ACTIONS.full_name(self.settings.kafka.topic_prefix)
        await self._producer.send_and_wait(topic, encode_json(action), key=NODE.encode())

    async def actions(self) -> list[ActionRecord]:
        records = await messages(self.settings.kafka, ACTIONS)
        found = (decode_json(ActionRecord, record.value) for record in records)
        return [action for action in found if action.action == "evict"]

    async def outcomes(self) -> list[str]:
        return [action.outcome for action in await self.actions()]

    async def last_error(self) -> str:
        return (await self.actions())[-1].error

    def evictor(self, mode: str = "act", per_minute: str = "600") -> Role:
        flags = ("--mode", mode, "--evictions-per-minute", per_minute)
        return Role("evictor", self.settings, *flags)

    def apply_budget(self, name: str, label: str, **spec: Any) -> None:
        selector = {"matchLabels": {label: name}}
        apply(self.plane, {
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name},
            "spec": {**spec, "selector": selector},
        })  # fmt: skip

    def patch_status(self, kind: str, name: str, status: Object) -> None:
        patch = ("-p", msgspec.json.encode({"status": status}).decode())
        self.plane.kubectl("patch", kind, name, "--subresource=status", "--type=merge", *patch)


@pytest.fixture
async def world(
    plane: ControlPlane, settings: Settings, producer: AIOKafkaProducer
) -> AsyncIterator[World]:
    mid, prod = ({"koordinator.sh/priority-class": f"koord-{name}"} for name in ("mid", "prod"))
    apply(
        plane,
        # Pods of an unknown node would be garbage-collected; this node takes no other pods.
        node(NODE) | {"spec": {"unschedulable": True}},
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 9500,
         "metadata": {"name": "evicting"}},
        *(pod(name, on=NODE, labels=mid | {"app": name}) for name in ("a", "b", "c")),
        pod("prod", on=NODE, labels=prod),
        pod("waiting", labels=prod, priority_class="evicting"),
    )  # fmt: skip
    yield World(plane, settings, producer)
    plane.kubectl("delete", *STOP, "--ignore-not-found")


async def test_a_late_evictor_executes_a_plan_once(world: World) -> None:
    plan = await world.plan("a", "b")
    with world.evictor() as evictor:
        await until(lambda: world.pods() == {"c", "prod", "waiting"}, 60)
        await until(world.outcomes)
        assert await world.outcomes() == ["intended", "done"] * 2
        await world.send(plan)
        await evictor.logs('"outcome": "repeated"')
        assert evictor.stop() == 0
    assert await world.outcomes() == ["intended", "done"] * 2
    events = [event for event in items(world.plane, "events") if event["reason"] == "PushedOut"]
    assert {event["involvedObject"]["name"] for event in events} == {"a", "b"}


async def test_the_limits_of_an_evictor_hold_after_a_failover(world: World) -> None:
    with world.evictor() as first:
        await first.logs("ready")
        expires = time.time() + 15
        await world.plan("a", valid_until=format_time(expires))
        await until(lambda: world.pods() == {"b", "c", "prod", "waiting"}, 60)
        assert first.stop() == 0
    # The next one reads this plan, too: only its action may tell that it was executed.
    await until(lambda: time.time() > expires)
    with world.evictor() as second:
        await second.logs("limits are rebuilt")
        await world.plan("b")
        await second.logs('"outcome": "early"')
    assert world.pods() == {"b", "c", "prod", "waiting"}


@pytest.mark.parametrize("mode", ["observe", "recommend"])
async def test_other_modes_evict_no_pod(world: World, mode: str) -> None:
    with world.evictor(mode):
        await world.plan("a", "b")
        await until(world.outcomes, 60)
    assert {*await world.outcomes()} == {"observed" if mode == "observe" else "recommended"}
    assert world.pods() == PODS
    reasons = [event["reason"] for event in items(world.plane, "events")]
    assert ("WouldPushOut" in reasons) == (mode == "recommend")


async def test_a_budget_of_one_pod_prevents_the_whole_plan(world: World) -> None:
    world.apply_budget("b", "app", maxUnavailable=0)
    world.plane.kubectl("patch", "pod", "b", *RUNNING)
    with world.evictor():
        await world.plan("a", "b")
        await until(world.outcomes, 60)
    assert await world.outcomes() == ["refused"]
    assert "disruption budget" in await world.last_error()
    assert world.pods() == PODS


async def test_a_budget_that_allows_one_of_two_prevents_the_whole_plan(world: World) -> None:
    world.plane.kubectl("label", "pod", "a", "b", "group=pair")
    for name in ("a", "b"):
        ready = {"type": "Ready", "status": "True"}
        world.patch_status("pod", name, {"phase": "Running", "conditions": [ready]})
    world.apply_budget("pair", "group", minAvailable=1)
    world.patch_status("poddisruptionbudget", "pair", {
        "disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2,
        "observedGeneration": 1,
    })  # fmt: skip
    with world.evictor():
        await world.plan("a", "b")
        await until(world.outcomes, 60)
        assert "allows 1 evictions now, not 2" in await world.last_error()
        await world.plan("a")
        await until(lambda: "a" not in world.pods(), 60)
    assert world.pods() == PODS - {"a"}


async def test_the_kill_switch_stops_evictions_at_once(world: World) -> None:
    world.plane.kubectl("create", *STOP)
    with world.evictor():
        await world.plan("a")
        await until(world.outcomes, 60)
        assert await world.outcomes() == ["refused"]
        assert "evictions are stopped" in await world.last_error()
        world.plane.kubectl("delete", *STOP)
        await world.plan("a")
        await until(lambda: "a" not in world.pods(), 60)


async def test_late_early_and_invalid_plans_evict_no_pod(world: World) -> None:
    with world.evictor() as evictor:
        await evictor.logs("ready")
        now = time.time()
        for start, end in ((-60, -30), (-9000, 9000), (9000, 9030)):
            times = {"at": format_time(now + start), "valid_until": format_time(now + end)}
            await world.plan("a", **times)
        await evictor.logs('"outcome": "late"', 3)
        # Pods that do not exist, another pod of the name, and a Prod pod among those that leave.
        absent = WaitingPod(namespace="default", name="x", uid="x", priority=9500)
        await world.plan("a", waiting=absent)
        await world.plan("a", "prod")
        await world.plan("a", waiting=msgspec.structs.replace(absent, name="waiting"))
        await evictor.logs('"outcome": "refused"', 3)
        plan = await world.plan("prod")
        await world.send(msgspec.structs.replace(plan, at="soon"))
        await world.send(plan, key="another")
        await world.send_bytes(b"{")
        await world.send(msgspec.structs.replace(plan, node=""), key="")
        await evictor.logs("record refused", 2)  # invalid and undecodable
        # A name that would change the path of the request belongs to no pod.
        await world.plan("a", waiting=msgspec.structs.replace(absent, name="../pods/waiting"))
        await evictor.logs('"outcome": "refused"', 5)
        await world.plan("a")
        await until(lambda: "a" not in world.pods(), 60)
    assert world.pods() == PODS - {"a"}


async def test_room_is_made_for_a_pod_a_few_times_only(world: World) -> None:
    # A former leader made room three times.
    for number in range(PLANS_OF_A_POD):
        await world.send_action(
            ActionRecord(
                node=NODE, at=format_time(time.time() - 1000), actuator="evictor", action="evict",
                outcome="done", why="", plan=f"{number}", waiting=world.uid("waiting"),
            )
        )  # fmt: skip
    with world.evictor() as evictor:
        await world.plan("c")
        await evictor.logs("too_many")
    assert world.pods() == PODS


async def test_actions_of_a_clock_that_was_behind_count_from_their_record_on(world: World) -> None:
    await world.send_action(
        ActionRecord(
            node=NODE, at=format_time(time.time() - 2 * SETTLE_SECONDS), actuator="evictor",
            action="evict", outcome="done", why="", plan="former", waiting=world.uid("waiting"),
        )
    )  # fmt: skip
    with world.evictor() as evictor:
        await world.plan("c")
        await evictor.logs('"outcome": "early"')
    assert world.pods() == PODS


async def test_two_extenders_do_not_make_room_twice(world: World) -> None:
    with world.evictor() as evictor:
        await world.plan("a")
        await world.plan("b")
        await evictor.logs('"outcome": "early"')
    assert world.pods() == PODS - {"a"}
    # The next leader reads the plans that were executed or refused.
    assert (await world.plan("b")).waiting is not None
    with world.evictor() as evictor:
        await evictor.logs('"outcome": "repeated"', 2)
        await evictor.logs('"outcome": "early"')
    assert world.pods() == PODS - {"a"}


async def test_evictions_end_when_the_waiting_pod_is_deleted(world: World) -> None:
    """Evictions are two seconds apart."""
    with world.evictor(per_minute="30") as evictor:
        await evictor.logs("ready")
        await world.plan("a", "b", "c")
        await until(lambda: world.pods() != PODS, 60)
        delete(world.plane, "pod", "waiting")
        await evictor.logs('"outcome": "refused"')
    assert world.pods() == {"b", "c", "prod"}
    assert await world.outcomes() == ["intended", "done", "refused"]


async def relief_plan(world: World, *pods: Object, **changes: Any) -> EvictionPlanRecord:
    """Publish a plan that relieves the node; `changes` replace fields of its pods."""
    now = time.time()
    leaving = (LeavingPod(uid=str(item["metadata"]["uid"]), pod_class="mid") for item in pods)
    record = EvictionPlanRecord(
        node=NODE, id=f"{now}", at=format_time(now), valid_until=format_time(now + 15),
        planner="test", strategy="LowNodeLoad", why="cpu 91% of 75%",
        pods=tuple(msgspec.structs.replace(pod, **changes) for pod in leaving),
    )  # fmt: skip
    await world.send(record)
    return record


@pytest.fixture
async def deployed(world: World) -> list[Object]:
    """The running pods of a Deployment of three, on the node that is relieved."""
    spec = deployment("relieved", 3)
    spec["spec"]["template"]["spec"]["nodeName"] = NODE
    apply(world.plane, spec)

    def pods() -> list[Object]:
        return items(world.plane, "pods", "-l", "app=relieved")

    await until(lambda: len(pods()) == 3, 60)
    ready = {"type": "Ready", "status": "True"}
    for item in pods():
        name = item["metadata"]["name"]
        world.patch_status("pod", name, {"phase": "Running", "conditions": [ready]})
    return pods()


async def test_a_plan_that_relieves_a_node_evicts_within_limits(
    world: World, deployed: list[Object]
) -> None:
    names = [item["metadata"]["name"] for item in deployed]
    with world.evictor():
        await relief_plan(world, *deployed)
        await until(lambda: len({*names} & world.pods()) == 2, 60)
        await until(lambda: _has(world, "Descheduled"), 60)
        outcomes = await until_count(world, 4)
    # One of three may move until its replacement is Ready; here nothing makes it Ready.
    assert sorted(outcomes) == ["done", "intended", "refused", "refused"]
    errors = [action.error for action in await world.actions() if action.outcome == "refused"]
    assert all("Deployment/default/relieved" in error for error in errors)
    assert len({*names} & world.pods()) == 2


async def test_a_budget_that_allows_none_stops_a_plan_that_relieves_a_node(
    world: World, deployed: list[Object]
) -> None:
    before = world.pods()
    world.apply_budget("relieved", "app", maxUnavailable=0)
    await until(lambda: _observed(world, "relieved"), 60)
    with world.evictor():
        await relief_plan(world, deployed[0])
        await until_count(world, 1)
    assert await world.outcomes() == ["refused"]
    expected = "Forbidden: the disruption budget default/relieved allows 0 evictions now, not 1"
    assert await world.last_error() == expected
    assert world.pods() == before


async def test_with_node_fit_a_pod_leaves_only_if_another_node_could_run_it(
    world: World, deployed: list[Object]
) -> None:
    before, kubernetes = world.pods(), world.settings.kubernetes
    name = f"{kubernetes.config_name}-descheduler"
    kubernetes = msgspec.structs.replace(kubernetes, descheduler_config_name=name)
    world.settings = msgspec.structs.replace(world.settings, kubernetes=kubernetes)
    # No pod fits anywhere, and only these nodes count.
    args = {"nodeFit": True, "nodeSelector": "pool=gold"}
    write_policy(world.plane, name, koord_descheduler_config={
        "apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerConfiguration",
        "profiles": [{"pluginConfig": [{"name": "MigrationController", "args": args}]}],
    })  # fmt: skip
    gold = node("gold", labels={"pool": "gold"})
    apply(world.plane, gold | {"spec": {"unschedulable": True}})
    with world.evictor() as evictor:
        await evictor.logs("ready")
        await relief_plan(world, deployed[0])
        await until_count(world, 1)
        assert await world.last_error() == "NodeFit: no other node could run the pod"
        assert world.pods() == before
        world.plane.kubectl("uncordon", "gold")
        await relief_plan(world, deployed[0])
        await until(lambda: deployed[0]["metadata"]["name"] not in world.pods(), 60)


async def test_a_successor_of_a_planned_pod_is_not_evicted(world: World) -> None:
    before = named(world.plane, "pods")
    with world.evictor() as evictor:
        await evictor.logs("ready")
        await relief_plan(world, before["a"], uid="11111111-2222-3333-4444-555555555555")
        outcomes = await until_count(world, 1)
    assert outcomes == ["refused"]
    assert (await world.last_error()).startswith("Gone")
    assert world.uid("a") == before["a"]["metadata"]["uid"]


async def until_count(world: World, count: int) -> list[str]:
    """The outcomes of so many actions."""

    async def are_written() -> bool:
        return len(await world.outcomes()) >= count

    await until(are_written, 60)
    return await world.outcomes()


def _has(world: World, reason: str) -> bool:
    return reason in [event["reason"] for event in items(world.plane, "events")]


def _observed(world: World, name: str) -> bool:
    budget = named(world.plane, "poddisruptionbudgets")[name]
    return bool(budget.get("status", {}).get("observedGeneration"))
