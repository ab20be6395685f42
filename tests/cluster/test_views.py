"""Views of nodes, from the real API server and broker."""

from collections.abc import Callable

import pytest

from pipeline.local.control_plane import ControlPlane
from pipeline.settings import Settings
from pipeline.topics.codec import decode_json
from pipeline.topics.node_views import NodeViewRecord
from pipeline.topics.registry import NODE_VIEWS, PODS, SAMPLES
from tests.broker import latest, messages
from tests.cluster.exporters import Exporters
from tests.cluster.objects import apply, delete, node, pod, write_policy
from tests.cluster.roles import Role, in_step, worker
from tests.processes import until

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(1800)]

SOON_SECONDS = 3.0
"""Views follow within a second; a slow machine may need three times as long."""


async def test_a_view_follows_changes_and_its_generation_grows(
    plane: ControlPlane, settings: Settings
) -> None:
    policy = {"enable": True, "nodePredictPolicy": {"coldStartPeriodSeconds": 0}}
    write_policy(plane, settings.kubernetes.config_name, colocation_config=policy)
    apply(plane, node("v1", cpu="32", memory="128Gi"), node("v2"))
    apply(plane, pod("s1", on="v1", cpu="1"))
    batch = {"koordinator.sh/priority-class": "koord-batch", "koordinator.sh/qosClass": "BE"}

    async def views() -> dict[str, NodeViewRecord]:
        values = await latest(settings.kafka, NODE_VIEWS)
        return {name: decode_json(NodeViewRecord, value) for name, value in values.items()}

    async def have(
        condition: Callable[[dict[str, NodeViewRecord]], bool], seconds: float = 120
    ) -> None:
        async def is_so() -> bool:
            return condition(await views())

        await until(is_so, seconds)

    async def have_pods(*names: str, seconds: float = 120) -> None:
        await have(lambda v: "v1" in v and {p.name for p in v["v1"].pods} == {*names}, seconds)

    with Role("watcher", settings):
        with worker(settings):
            await until(lambda: in_step(plane, settings))
            await have_pods("s1")
            # A worker that has read the topics may not follow them yet.
            apply(plane, pod("s10", on="v1", labels=batch, cpu="1"))
            await have_pods("s1", "s10")
            apply(plane, pod("s11", on="v1", labels=batch, cpu="1"))
            await have_pods("s1", "s10", "s11")
            await assert_view_follows_soon(settings, "s11")
            (of_pod,) = (item for item in (await views())["v1"].pods if item.name == "s11")
            assert (of_pod.pod_class, of_pod.qos, of_pod.labels) == ("batch", "BE", batch)
            await Exporters(plane, settings.kafka, windows=6).send(6)
            await have(lambda views: views["v1"].resources is not None)
            first = await views()
        # Pods are deleted while no worker runs.
        delete(plane, "pod", "s10", "s11")
        with worker(settings):
            await have_pods("s1")
            await have(lambda views: views["v1"].resources is not None)
            second = await views()
            assert second["v1"].generation >> 24 > first["v1"].generation >> 24
            delete(plane, "node", "v2")
            await have(lambda views: "v2" not in views)
    newest: dict[bytes, int] = {}
    for message in await messages(settings.kafka, NODE_VIEWS):
        if message.value is not None:
            generation = decode_json(NodeViewRecord, message.value).generation
            assert generation > newest.get(message.key, 0)
            newest[message.key] = generation


async def assert_view_follows_soon(settings: Settings, name: str) -> None:
    """By the broker's clock: the first view with the pod after its first record with a node. No
    sample of the node was needed for it: the test has sent none so far."""
    records = await messages(settings.kafka, PODS)
    scheduled = min(
        record.timestamp
        for record in records
        if record.value and name.encode() in record.value and not record.key.startswith(b"/")
    )
    viewed = min(
        record.timestamp
        for record in await messages(settings.kafka, NODE_VIEWS)
        if record.value and f'"name":"{name}"'.encode() in record.value
    )
    seconds = (viewed - scheduled) / 1000
    assert 0 <= seconds <= SOON_SECONDS, f"the view came {seconds:.2f} s after the record"
    assert not await messages(settings.kafka, SAMPLES)
