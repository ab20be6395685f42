"""An evictor against a real API server: all of a plan's pods leave, or none, and when not."""

import json
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from aiokafka import AIOKafkaProducer

from pipeline.kafka.client import client_options
from pipeline.local.control_plane import ControlPlane
from pipeline.processors.placement.victim_selection import SETTLE_SECONDS
from pipeline.settings import Settings
from pipeline.times import format_time
from pipeline.topics.actions import ActionRecord
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.eviction_plans import EvictionPlanRecord, LeavingPod, WaitingPod
from pipeline.topics.registry import ACTIONS, EVICTION_PLANS
from tests.cluster.objects import apply, delete, items, messages, node, pod
from tests.cluster.watching import Role
from tests.processes import until

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(600)]

NODE = "evicted-from"
STOP = ("configmap", "springtide-stop-evictions", "-n", "springtide-system")


class World:
    """Pods on one node that need not exist, one that waits, and plans."""

    def __init__(self, plane: ControlPlane, settings: Settings, producer: AIOKafkaProducer) -> None:
        self.plane = plane
        self.settings = settings
        self._producer = producer

    def uid(self, name: str) -> str:
        named = {
            one["metadata"]["name"]: one["metadata"]["uid"] for one in items(self.plane, "pods")
        }
        return str(named[name])

    def there(self) -> set[str]:
        return {one["metadata"]["name"] for one in items(self.plane, "pods")}

    async def plan(self, *names: str, **more: Any) -> EvictionPlanRecord:
        """A plan that these pods leave."""
        now = time.time()
        waiting = WaitingPod(namespace="default", name="w", uid=self.uid("w"), priority=9500)
        record = EvictionPlanRecord(
            node=NODE, id=f"{now}", at=format_time(now), valid_until=format_time(now + 30),
            planner="test", why="w of prod fits nowhere", waiting=waiting,
            pods=tuple(LeavingPod(uid=self.uid(name), pod_class="mid") for name in names),
        )  # fmt: skip
        record = msgspec.structs.replace(record, **more)
        await self.send(record)
        return record

    async def send(self, record: EvictionPlanRecord, key: str = NODE) -> None:
        await self.send_bytes(encode_json(record), key)

    async def send_bytes(self, value: bytes, key: str = NODE) -> None:
        topic = EVICTION_PLANS.full_name(self.settings.kafka.topic_prefix)
        await self._producer.send_and_wait(topic, value, key=key.encode())

    async def outcomes(self) -> list[str]:
        """What was done and what was not, in order."""
        found = await messages(self.settings.kafka, ACTIONS)
        return [decode_json(ActionRecord, one.value).outcome for one in found]

    async def said(self) -> str:
        found = await messages(self.settings.kafka, ACTIONS)
        return decode_json(ActionRecord, found[-1].value).error

    def evictor(self, *flags: str) -> Role:
        return Role("evictor", self.settings, "--metrics-port", "0",
                    "--evictions-per-minute", "600", *flags)  # fmt: skip


@pytest.fixture
async def world(plane: ControlPlane, settings: Settings) -> AsyncIterator[World]:
    by_class = {"koordinator.sh/priority-class": "koord-mid"}
    prod = {"koordinator.sh/priority-class": "koord-prod"}
    apply(
        plane,
        # Pods of a node that nobody knows are soon collected; this one takes none.
        node(NODE) | {"spec": {"unschedulable": True}},
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 9500,
         "metadata": {"name": "evicting"}},
        *(pod(name, on=NODE, labels=by_class | {"app": name}) for name in ("a", "b", "c")),
        pod("dear", on=NODE, labels=prod),
        pod("w", labels=prod, priority_class="evicting"),
    )  # fmt: skip
    producer = AIOKafkaProducer(**client_options(settings.kafka))
    await producer.start()
    yield World(plane, settings, producer)
    await producer.stop()
    plane.kubectl("delete", "pods", "--all", "--grace-period=0", "--force")
    plane.kubectl("delete", "poddisruptionbudgets", "--all")
    plane.kubectl("delete", *STOP, "--ignore-not-found")
    delete(plane, "priorityclass", "evicting")
    delete(plane, "node", NODE)


async def test_a_plan_is_carried_out_once_by_one_that_comes_late(world: World) -> None:
    plan = await world.plan("a", "b")
    with world.evictor("--mode", "act") as evictor:
        await until(lambda: world.there() == {"c", "dear", "w"}, 60)
        await until(world.outcomes)
        assert await world.outcomes() == ["intended", "done"] * 2
        await world.send(plan)
        await until(lambda: '"outcome": "repeated"' in evictor.text())
        assert evictor.stop() == 0
    assert await world.outcomes() == ["intended", "done"] * 2
    told = [one for one in items(world.plane, "events") if one["reason"] == "PushedOut"]
    assert {one["involvedObject"]["name"] for one in told} == {"a", "b"}


@pytest.mark.parametrize("mode", ["observe", "recommend"])
async def test_other_modes_evict_nobody(world: World, mode: str) -> None:
    with world.evictor("--mode", mode):
        await world.plan("a", "b")
        await until(world.outcomes, 60)
    assert set(await world.outcomes()) == {"observed" if mode == "observe" else "recommended"}
    assert world.there() == {"a", "b", "c", "dear", "w"}
    told = [one for one in items(world.plane, "events") if one["reason"] == "WouldPushOut"]
    assert bool(told) == (mode == "recommend")


async def test_a_budget_for_one_keeps_all(world: World) -> None:
    budget = {
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "keeps-b"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "b"}}},
    }  # fmt: skip
    apply(world.plane, budget)
    running = ("--subresource=status", "--type=merge", "-p", '{"status":{"phase":"Running"}}')
    world.plane.kubectl("patch", "pod", "b", *running)
    with world.evictor("--mode", "act"):
        await world.plan("a", "b")
        await until(world.outcomes, 60)
    assert await world.outcomes() == ["refused"]
    assert "disruption budget" in await world.said()
    assert world.there() == {"a", "b", "c", "dear", "w"}


async def test_the_kill_switch_stops_it_at_once(world: World) -> None:
    world.plane.kubectl("create", *STOP)
    with world.evictor("--mode", "act"):
        await world.plan("a")
        await until(world.outcomes, 60)
        assert await world.outcomes() == ["refused"]
        assert "evictions are stopped" in await world.said()
        world.plane.kubectl("delete", *STOP)
        await world.plan("a")
        await until(lambda: "a" not in world.there(), 60)


async def test_what_does_not_hold_is_not_done(world: World) -> None:
    """A plan that is late, of the future, for nobody, of Prod; and what is no plan."""
    with world.evictor("--mode", "act") as evictor:
        await until(lambda: "ready" in evictor.text(), 60)
        now = time.time()
        await world.plan("a", at=format_time(now - 60), valid_until=format_time(now - 30))
        await world.plan("a", at=format_time(now - 9000), valid_until=format_time(now + 9000))
        await world.plan("a", at=format_time(now + 9000), valid_until=format_time(now + 9030))
        await until(lambda: evictor.text().count('"outcome": "late"') == 3)
        gone = WaitingPod(namespace="default", name="x", uid="x", priority=9500)
        await world.plan("a", waiting=gone)
        await world.plan("a", "dear")
        other = WaitingPod(namespace="default", name="w", uid="x", priority=9500)
        await world.plan("a", waiting=other)
        await until(lambda: evictor.text().count('"outcome": "refused"') == 3)
        plan = await world.plan("dear")
        await world.send(msgspec.structs.replace(plan, at="soon"))
        await world.send(plan, key="another")
        await world.send_bytes(b"{")
        await world.send(msgspec.structs.replace(plan, node=""), key="")
        await until(lambda: evictor.text().count("invalid plan") == 4)
        # A name that would lead elsewhere is nobody's.
        sly = WaitingPod(namespace="default", name="../pods/w", uid="sly", priority=9500)
        await world.plan("a", waiting=sly)
        await until(lambda: evictor.text().count('"outcome": "refused"') == 5)
        await world.plan("a")
        await until(lambda: "a" not in world.there(), 60)
    assert world.there() == {"b", "c", "dear", "w"}


async def test_a_pod_is_made_room_for_a_few_times_only(world: World) -> None:
    # Each when the one before had its time.
    now = time.time()
    with world.evictor("--mode", "act") as evictor:
        for back, name in enumerate("cba"):
            at = format_time(now - (2 - back) * (SETTLE_SECONDS + 1))
            await world.plan(name, at=at)
        await until(lambda: world.there() == {"dear", "w"}, 60)
        await world.plan("dear")
        await until(lambda: "too_many" in evictor.text())


async def test_two_extenders_do_not_make_room_twice(world: World) -> None:
    with world.evictor("--mode", "act") as evictor:
        await world.plan("a")
        await world.plan("b")
        await until(lambda: '"outcome": "early"' in evictor.text(), 60)
    assert world.there() == {"b", "c", "dear", "w"}
    # The next to lead knows it of a plan whose pods are gone.
    plan = await world.plan("b")
    assert plan.waiting is not None
    with world.evictor("--mode", "act") as evictor:
        await until(lambda: evictor.text().count('"outcome": "early"') == 2, 60)
    assert world.there() == {"b", "c", "dear", "w"}


async def test_a_budget_for_one_of_two_keeps_both(world: World) -> None:
    """Each alone might leave."""
    labels = ("label", "pod", "a", "b", "of=pair")
    world.plane.kubectl(*labels)
    running = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    for name in ("a", "b"):
        world.plane.kubectl("patch", "pod", name, "--subresource=status", "--type=merge", "-p",
                            json.dumps(running))  # fmt: skip
    budget = {
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "pair"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"of": "pair"}}},
    }  # fmt: skip
    apply(world.plane, budget)
    status = {"status": {"disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1,
                         "expectedPods": 2, "observedGeneration": 1}}  # fmt: skip
    patch = ("--subresource=status", "--type=merge", "-p", json.dumps(status))
    world.plane.kubectl("patch", "poddisruptionbudget", "pair", *patch)
    with world.evictor("--mode", "act"):
        await world.plan("a", "b")
        await until(world.outcomes, 60)
        assert "allows 1 evictions now, not 2" in await world.said()
        await world.plan("a")
        await until(lambda: "a" not in world.there(), 60)
    assert world.there() == {"b", "c", "dear", "w"}


async def test_who_has_found_a_place_meanwhile_costs_nobody_more(world: World) -> None:
    """Evictions are two seconds apart."""
    with Role("evictor", world.settings, "--metrics-port", "0", "--mode", "act",
              "--evictions-per-minute", "30") as evictor:  # fmt: skip
        await until(lambda: "ready" in evictor.text(), 60)
        await world.plan("a", "b", "c")
        await until(lambda: world.there() != {"a", "b", "c", "dear", "w"}, 60)
        delete(world.plane, "pod", "w")
        await until(lambda: '"outcome": "refused"' in evictor.text(), 60)
    assert world.there() == {"b", "c", "dear"}
    assert await world.outcomes() == ["intended", "done", "refused"]
