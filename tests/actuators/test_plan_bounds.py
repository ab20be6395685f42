"""Bounds of plans: a record of any writer costs the evictor little."""

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from actuators.eviction.eviction_actuator import Evictor
from pipeline.clock import ManualClock
from pipeline.kafka.follow import ConsumerRecord
from pipeline.kube.api_client import Api
from pipeline.kube.lease import Lease
from pipeline.metrics import REGISTRY
from pipeline.settings import Settings
from pipeline.times import format_time
from pipeline.topics.actions import ActionRecord
from pipeline.topics.codec import encode_json
from pipeline.topics.eviction_plans import (
    LONGEST_NAME,
    MOST_BYTES,
    MOST_PODS,
    EvictionPlanRecord,
    LeavingPod,
)
from tests.actuators.test_relief import World


def plan(count: int = 1, **changes: Any) -> EvictionPlanRecord:
    at = format_time(ManualClock().now())
    values: dict[str, Any] = {
        "node": "n", "id": "p", "at": at, "valid_until": at, "planner": "planner", "why": "hot",
        "pods": tuple(LeavingPod(uid=f"{number}", pod_class="batch") for number in range(count)),
    }  # fmt: skip
    return EvictionPlanRecord(**(values | changes))


async def taken(record: EvictionPlanRecord) -> tuple[int, list[ActionRecord]]:
    """How many plans an evictor queues of a record, and the actions about it."""
    evictor = Evictor(cast(Api, None), Settings(), ManualClock(), cast(Lease, None))
    value = encode_json(record)
    await evictor._take(cast(ConsumerRecord, SimpleNamespace(
        topic="springtide.eviction-plans", partition=0, offset=0, key=b"n", value=value,
        timestamp=round(ManualClock().now() * 1000), headers=(),
    )))  # fmt: skip
    queued = evictor._actions._waiting
    return evictor._plans.qsize(), [queued.get_nowait() for _ in range(queued.qsize())]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (plan(MOST_PODS + 1), "1001 pods are more than the 1000 of a plan"),
        (plan(why="y" * MOST_BYTES), "is larger than 1048576"),
        (plan(id="i" * 10_000), "id has 10000 characters, more than 512"),
        (plan(strategy="s" * 513), "strategy has 513 characters"),
        (plan(planner="s" * 513), "planner has 513 characters"),
    ],
    ids=["pods", "bytes", "id", "strategy", "planner"],
)
async def test_a_plan_beyond_all_bounds_is_refused_with_one_small_action(
    record: EvictionPlanRecord, reason: str
) -> None:
    count, (action,) = await taken(record)
    assert (count, action.outcome, action.node, action.before) == (0, "refused", "n", {})
    assert action.error.startswith("TooLarge: ")
    assert reason in action.error
    assert record.id.startswith(action.plan)
    assert len(encode_json(action)) < 5 * LONGEST_NAME


async def test_a_plan_as_large_as_allowed_is_taken() -> None:
    assert await taken(plan(MOST_PODS, id="i" * LONGEST_NAME)) == (1, [])


async def test_actions_do_not_repeat_a_long_reason() -> None:
    world = World()
    pods = tuple(LeavingPod(uid=f"{number}", pod_class="batch") for number in range(100))
    alive, *_ = world.cluster.add_deployment("web", 3, ["n"])
    await world.run(msgspec.structs.replace(world.plan(alive), why="y" * 100_000, pods=pods))
    assert len(world.log) == 100
    assert all(len(encode_json(action)) < 2000 for action in world.log)
    await world.run(msgspec.structs.replace(world.plan(alive), why="y" * 100_000))
    assert world.evicted == [alive.uid]
    assert all(len(encode_json(action)) < 2000 for action in world.log)


async def test_free_text_is_no_label_of_a_metric() -> None:
    world = World()
    for name, strategy in (("a", "free text"), ("b", "LowNodeLoad"), ("c", "")):
        pod, *_ = world.cluster.add_deployment(name, 3, [f"bounds-{name}"])
        await world.run(world.plan(pod, strategy=strategy))
    samples = [sample for metric in REGISTRY.collect() for sample in metric.samples]
    labels = {
        sample.labels["node"]: sample.labels["strategy"]
        for sample in samples
        if sample.labels.get("node", "").startswith("bounds-")
    }
    assert labels == {"bounds-a": "other", "bounds-b": "LowNodeLoad", "bounds-c": ""}
    assert world.log[0].strategy == "free text"
