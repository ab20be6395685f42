"""metrics-server by a fake that gives the documented lists: readings between two windows count,
what fails is told with the next window."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import ProviderError
from pipeline.processors.provided.fetched_usage import PodName, TimeWindow
from pipeline.settings import ProviderSettings, Settings
from pipeline.sources.providers.metrics_server import MetricsServer, open_metrics_server
from pipeline.times import format_time
from tests.kube.fake_server import Answer, fake, status

WINDOW = TimeWindow(600_000, 660_000)

# As the API of metrics-server 0.8 tells them (kubectl get --raw /apis/metrics.k8s.io/v1beta1/...).
NODES: dict[str, Any] = {
    "kind": "NodeMetricsList",
    "apiVersion": "metrics.k8s.io/v1beta1",
    "metadata": {},
    "items": [
        {
            "metadata": {
                "name": "n1",
                "creationTimestamp": "1970-01-01T00:10:31Z",
                "labels": {"kubernetes.io/arch": "amd64", "kubernetes.io/hostname": "n1"},
            },
            "timestamp": "1970-01-01T00:10:15Z",
            "window": "15.072s",
            "usage": {"cpu": "156784319n", "memory": "1180288Ki"},
        }
    ],
}
PODS: dict[str, Any] = {
    "kind": "PodMetricsList",
    "apiVersion": "metrics.k8s.io/v1beta1",
    "metadata": {},
    "items": [
        {
            "metadata": {
                "name": "coredns-0",
                "namespace": "kube-system",
                "creationTimestamp": "1970-01-01T00:10:31Z",
                "labels": {"k8s-app": "kube-dns"},
            },
            "timestamp": "1970-01-01T00:10:15Z",
            "window": "17.5s",
            "containers": [{"name": "coredns", "usage": {"cpu": "3124961n", "memory": "20592Ki"}}],
        }
    ],
}

SETTINGS = Settings(provider=ProviderSettings(poll_seconds=15.0))


def told(document: dict[str, Any], at: float = 615) -> Answer:
    items = [{**item, "timestamp": format_time(at)} for item in document["items"]]
    return Answer([json.dumps({**document, "items": items}).encode()])


async def test_the_documented_lists_are_usage(tmp_path: Path) -> None:
    async with fake(tmp_path, told(NODES), told(PODS)) as server:
        found = await MetricsServer(server.api).fetch(WINDOW)
    assert [asked.path for asked in server.asked] == [
        "/apis/metrics.k8s.io/v1beta1/nodes",
        "/apis/metrics.k8s.io/v1beta1/pods",
    ]
    assert found.nodes["n1"]["cpu_cores_avg"] == 0.156784319
    assert found.nodes["n1"]["memory_bytes_avg"] == 1180288 * 1024
    pod = found.pods[PodName("kube-system", "coredns-0")]
    assert pod["cpu_cores_last"] == 0.003124961
    assert pod["coverage"] == 15 / 60
    assert found.failed == {}


async def test_readings_between_two_windows_count(tmp_path: Path) -> None:
    script = [told(kind, at) for at in (615, 630, 645) for kind in (NODES, PODS)]
    async with fake(tmp_path, *script, told(NODES, 660), told(PODS, 660)) as server:
        provider = MetricsServer(server.api)
        for _ in range(3):
            await provider.ask()
        columns = (await provider.fetch(WINDOW)).nodes["n1"]
    assert columns["points_offset_seconds"] == [15, 30, 45, 60]
    assert columns["coverage"] == 1


async def test_it_is_asked_as_long_as_it_is_open(tmp_path: Path) -> None:
    async with fake(tmp_path, *([told(NODES), told(PODS)] * 3)) as server:
        async with open_metrics_server(SETTINGS, server.clock, server.api):
            for _ in range(500):
                if len(server.asked) >= 6:
                    break
                await asyncio.sleep(0.02)
        assert server.clock.slept[:2] == [15.0, 15.0]


async def test_pods_that_cannot_be_had_are_unknown(tmp_path: Path) -> None:
    async with fake(tmp_path, told(NODES), status(403)) as server:
        found = await MetricsServer(server.api).fetch(WINDOW)
    assert found.nodes.keys() == {"n1"}
    assert not found.knows_pods
    assert "403" in found.failed["pods"]


async def test_what_was_read_before_serves_where_the_last_question_fails(tmp_path: Path) -> None:
    async with fake(tmp_path, told(NODES), told(PODS), status(404), status(404)) as server:
        provider = MetricsServer(server.api)
        await provider.ask()
        found = await provider.fetch(WINDOW)
        assert found.nodes.keys() == {"n1"}
        assert found.knows_pods
        assert found.failed.keys() == {"nodes", "pods"}


@pytest.mark.parametrize(
    "answer",
    [status(404), status(401), Answer([b'{"kind":"NodeMet']), Answer([b"<html>"])],
    ids=["404", "401", "truncated", "html"],
)
async def test_without_nodes_it_is_an_error(answer: Answer, tmp_path: Path) -> None:
    async with fake(tmp_path, answer, told(PODS)) as server:
        with pytest.raises(ProviderError) as caught:
            await MetricsServer(server.api).fetch(WINDOW)
    assert "kubectl top" in (caught.value.hint or "")


async def test_a_server_that_is_busy_is_asked_again(tmp_path: Path) -> None:
    async with fake(tmp_path, status(503), status(429), told(NODES), told(PODS)) as server:
        found = await MetricsServer(server.api).fetch(WINDOW)
    assert found.nodes.keys() == {"n1"}


async def test_stale_items_are_left_out(tmp_path: Path) -> None:
    async with fake(tmp_path, told(NODES, 600), told(PODS, 4000)) as server:
        found = await MetricsServer(server.api).fetch(WINDOW)
    assert found.nodes == found.pods == {}
    assert found.left_out == {"stale": 1, "ahead": 1}
