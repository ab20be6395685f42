"""Objects of a cluster as manifests, what lies on topics, and waiting for it."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from pipeline.local.control_plane import ControlPlane
from pipeline.settings import KafkaSettings
from pipeline.topics.client import COMMITTED, client_options
from pipeline.topics.registry import Topic

Object = dict[str, Any]


def node(name: str, *, labels: dict[str, str] | None = None, **amounts: str) -> Object:
    found = {"cpu": "8", "memory": "32Gi", "pods": "110"} | amounts
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels or {}},
        "status": {"capacity": found, "allocatable": found},
    }


def pod(
    name: str,
    *,
    on: str | None = None,
    labels: dict[str, str] | None = None,
    priority_class: str | None = None,
    **asked: str,
) -> Object:
    resources = {"requests": asked, "limits": asked}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": labels or {}},
        "spec": {
            "containers": [{"name": "main", "image": "none", "resources": resources}],
            "terminationGracePeriodSeconds": 0,
            **({"nodeName": on} if on else {}),
            **({"priorityClassName": priority_class} if priority_class else {}),
        },
    }


def apply(plane: ControlPlane, *objects: Object) -> None:
    listing = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
    plane.kubectl("apply", "-f", "-", given=json.dumps(listing))


def delete(plane: ControlPlane, kind: str, *names: str) -> None:
    flags = ["--ignore-not-found"] + (["--force"] if kind == "pod" else [])
    plane.kubectl("delete", kind, *names, *flags)


def items(plane: ControlPlane, *what: str) -> list[Object]:
    found: list[Object] = json.loads(plane.kubectl("get", *what, "-o", "json"))["items"]
    return found


def write_policy(plane: ControlPlane, name: str, **sections: Any) -> None:
    """The ConfigMap with the policy; a section that is a text is written as it is."""
    data = {
        key.replace("_", "-"): of if isinstance(of, str) else json.dumps(of)
        for key, of in sections.items()
    }
    apply(
        plane,
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": "koordinator-system"},
            "data": data,
        },
    )


async def messages(kafka: KafkaSettings, topic: Topic) -> list[Any]:
    """Every record of `topic` as it lies there."""
    consumer = AIOKafkaConsumer(**client_options(kafka), **COMMITTED, group_id=None)
    await consumer.start()
    try:
        name = topic.full_name(kafka.topic_prefix)
        parts = [TopicPartition(name, p) for p in range(kafka.partitions)]
        consumer.assign(parts)
        await consumer.seek_to_beginning(*parts)
        ends = await consumer.end_offsets(parts)
        found: list[Any] = []
        while any([await consumer.position(p) < end for p, end in ends.items()]):
            for batch in (await consumer.getmany(timeout_ms=200)).values():
                found += batch
        return found
    finally:
        await consumer.stop()


async def latest(kafka: KafkaSettings, topic: Topic) -> dict[str, bytes]:
    """What a reader of a compacted topic knows in the end, by key."""
    values: dict[str, bytes] = {}
    for message in await messages(kafka, topic):
        if message.value is None:
            values.pop(message.key.decode(), None)
        else:
            values[message.key.decode()] = message.value
    return values


async def until(
    condition: Callable[[], Awaitable[Any]] | Callable[[], Any], seconds: float = 30
) -> None:
    """Return when the condition is true; what it last was else stands in the error."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {found!r}")
        await asyncio.sleep(0.1)


def manifests(of: Iterable[Object]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(of)})
