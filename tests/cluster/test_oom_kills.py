"""An OOM kill in the status of a real pod raises the recommendation of its workload."""

import json
from functools import partial
from typing import Any

import pytest

from pipeline.agents.ownership import Ownership
from pipeline.agents.recommendation_agent import Places, publish_from_checkpoints
from pipeline.kafka.client import client_options
from pipeline.kafka.partition_log import open_reader
from pipeline.kafka.producer import log_producer
from pipeline.local.control_plane import ControlPlane
from pipeline.settings import Settings
from pipeline.times import format_time, parse_time
from pipeline.topics.codec import decode_json
from pipeline.topics.node_views import NodeViewRecord
from pipeline.topics.registry import NODE_VIEWS
from tests.broker import latest
from tests.cluster.exporters import Exporters
from tests.cluster.extender_cluster import add_nodes
from tests.cluster.objects import Object, apply, deployment, items, node
from tests.cluster.roles import Role, worker, worker_in_step
from tests.integration.test_model_commands import typed
from tests.processes import until

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(600)]

MIB = 2**20
USED, REQUESTED, WINDOWS = 300 * MIB, 500 * MIB, 10
CONTAINER_ID = "f0" * 32


def status_after(killed_at: str) -> str:
    """The patch by which a kubelet reports that the container was killed and runs again."""
    container = {
        "name": "main", "image": "none", "imageID": "none", "ready": True, "restartCount": 1,
        "containerID": f"containerd://{CONTAINER_ID}",
        "state": {"running": {"startedAt": killed_at}},
        "lastState": {
            "terminated": {"reason": "OOMKilled", "exitCode": 137, "finishedAt": killed_at}
        },
    }  # fmt: skip
    return json.dumps({"status": {"containerStatuses": [container]}})


async def recommended(settings: Settings) -> dict[str, Any]:
    """Publish recommendations from the checkpoints of the worker, and show that of `web`."""
    kafka = settings.kafka
    places = Places(
        kafka.topic_prefix, kafka.partitions, partial(open_reader, client_options(kafka))
    )
    async with log_producer(client_options(kafka)) as output:
        await publish_from_checkpoints(places, output, Ownership(0, 0), {})
    result = await typed(kafka, "recommend", "Deployment/default/web", "-o", "json")
    if result.exit_code == 4:
        return {}
    assert result.exit_code == 0, result.output
    (item,) = json.loads(result.stdout)["items"]
    assert isinstance(item, dict)
    return item


def memory(item: dict[str, Any]) -> int:
    (container,) = item["recommendation"]["containerRecommendations"]
    return int(container["target"]["memory"])


async def test_recommendation_rises_after_a_container_was_oom_killed(
    plane: ControlPlane, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPRINGTIDE_WORKER_CHECKPOINT_INTERVAL_SECONDS", "1")
    await add_nodes(plane, node("o1"))
    apply(plane, deployment("web", 1, cpu="500m", memory=f"{REQUESTED // MIB}Mi"))

    def pods() -> list[Object]:
        found = items(plane, "pods", "-l", "app=web")
        return [each for each in found if each["status"]["phase"] == "Running"]

    async def has_read_the_status() -> bool:
        views = await latest(settings.kafka, NODE_VIEWS)
        pods = [pod for value in views.values() for pod in decode_json(NodeViewRecord, value).pods]
        return [pod.container_ids for pod in pods] == [{"main": CONTAINER_ID}]

    async def has_checkpoint_after(samples: int) -> bool:
        return (await recommended(settings)).get("samples") == samples

    with Role("watcher", settings), worker(settings):
        await until(lambda: len(pods()) == 1, 120)
        await until(lambda: worker_in_step(settings), 120)
        exporters = Exporters(
            plane, settings.kafka, windows=WINDOWS, usage=lambda *_: (0.25, float(USED))
        )
        await exporters.send(WINDOWS - 2)
        await until(lambda: has_checkpoint_after(WINDOWS - 2), 120)
        before = await recommended(settings)
        assert before["oom_kills"] is None
        assert memory(before) == pytest.approx(1.15 * USED, rel=0.06)

        killed_at = format_time(parse_time(exporters.last_end()) + 10)
        (pod,) = pods()
        patch = ("--subresource=status", "--type=merge", "-p", status_after(killed_at))
        plane.kubectl("patch", "pod", pod["metadata"]["name"], *patch)
        await until(has_read_the_status, 120)
        await exporters.send(2)
        await until(lambda: has_checkpoint_after(WINDOWS), 120)
        after = await recommended(settings)
    # Both windows have the kill, and it counts once: 500 MiB of request and 100 MiB more.
    peak = REQUESTED + 100 * MIB
    assert after["oom_kills"] == {"last_at": killed_at, "peak": str(peak), "kills": 1}
    assert memory(after) == pytest.approx(1.15 * peak, rel=0.06)
    result = await typed(settings.kafka, "recommend", "web", "-o", "vpa")
    assert f"OOM killed at {killed_at}" in " ".join(result.output.split())
    assert str(memory(after)) in result.output
