"""Views of nodes, from the real API server over the real broker."""

import time

import pytest

from pipeline.local.control_plane import ControlPlane
from pipeline.settings import Settings
from pipeline.topics.codec import decode_json
from pipeline.topics.node_views import NodeViewRecord
from pipeline.topics.registry import NODE_VIEWS, PODS
from tests.cluster.objects import apply, delete, latest, messages, node, pod, write_policy
from tests.cluster.usage import Exporters
from tests.cluster.watching import Role, in_step, worker
from tests.processes import until

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(1800)]


async def views(settings: Settings) -> dict[str, NodeViewRecord]:
    found = await latest(settings.kafka, NODE_VIEWS)
    return {name: decode_json(NodeViewRecord, value) for name, value in found.items()}


async def pods_of(settings: Settings, name: str) -> set[str]:
    found = await views(settings)
    return {of.name for of in found[name].pods} if name in found else set()


async def test_a_view_follows_what_changes_and_its_generation_grows(
    plane: ControlPlane, settings: Settings
) -> None:
    policy = {"enable": True, "nodePredictPolicy": {"coldStartPeriodSeconds": 0}}
    write_policy(plane, settings.kubernetes.config_name, colocation_config=policy)
    apply(plane, node("v1", cpu="32", memory="128Gi"), node("v2"))
    apply(plane, pod("s1", on="v1", cpu="1"))
    batch = {"koordinator.sh/priority-class": "koord-batch", "koordinator.sh/qosClass": "BE"}
    with Role("watcher", settings):
        with worker(settings):
            await until(lambda: in_step(plane, settings))
            await until(lambda: has(settings, "v1", {"s1"}), 60)
            # That a worker has read what lay there says not that it follows already.
            apply(plane, pod("s10", on="v1", labels=batch, cpu="1"))
            await until(lambda: has(settings, "v1", {"s1", "s10"}))
            apply(plane, pod("s11", on="v1", labels=batch, cpu="1"))
            await until(lambda: has(settings, "v1", {"s1", "s10", "s11"}))
            await within_a_second(settings, "s11")
            (of,) = (one for one in (await views(settings))["v1"].pods if one.name == "s11")
            assert (of.pod_class, of.qos, of.labels) == ("batch", "BE", batch)
            exporters = Exporters(plane, settings.kafka, windows=6)
            await exporters.send(6)
            await until(lambda: has_resources(settings, "v1"))
            first = await views(settings)
        # A worker that was killed, and what changed meanwhile.
        delete(plane, "pod", "s10", "s11")
        with worker(settings):
            await until(lambda: has(settings, "v1", {"s1"}), 90)
            second = await views(settings)
            assert second["v1"].generation >> 24 > first["v1"].generation >> 24
            assert second["v1"].resources is not None
            delete(plane, "node", "v2")
            await until(lambda: is_gone(settings, "v2"))
    seen: dict[bytes, int] = {}
    for message in await messages(settings.kafka, NODE_VIEWS):
        if message.value is not None:
            generation = decode_json(NodeViewRecord, message.value).generation
            assert generation > seen.get(message.key, 0)
            seen[message.key] = generation


async def has(settings: Settings, name: str, pods: set[str]) -> bool:
    return await pods_of(settings, name) == pods


async def has_resources(settings: Settings, name: str) -> bool:
    found = (await views(settings)).get(name)
    return found is not None and found.resources is not None


async def is_gone(settings: Settings, name: str) -> bool:
    return name not in await views(settings)


async def within_a_second(settings: Settings, name: str) -> None:
    """By the broker's clock: the first view with the pod, after its first record with a node."""
    pods = [m for m in await messages(settings.kafka, PODS) if m.value and name.encode() in m.value]
    told = [
        m.timestamp
        for m in await messages(settings.kafka, NODE_VIEWS)
        if m.value and f'"name":"{name}"'.encode() in m.value
    ]
    known = min(m.timestamp for m in pods if not m.key.startswith(b"/"))
    assert 0 <= min(told) - known <= 1000
    assert time.time() * 1000 > known
