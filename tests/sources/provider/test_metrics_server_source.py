"""The metrics-server provider, with a fake server that returns the documented lists."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import SampleSourceError
from pipeline.processors.imported_usage.fetched_usage import PodName, TimeWindow
from pipeline.settings import ProviderSettings, Settings
from pipeline.sources.provider.metrics_server_source import (
    MetricsServerSession,
    open_metrics_server,
)
from pipeline.times import format_time
from tests.kube.fake_server import Answer, fake, status
from tests.processes import until

WINDOW = TimeWindow(600_000, 660_000)

# As metrics-server 0.8 returns them (kubectl get --raw /apis/metrics.k8s.io/v1beta1/...).
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
                "name": "coredns-0", "namespace": "kube-system",
                "creationTimestamp": "1970-01-01T00:10:31Z", "labels": {"k8s-app": "kube-dns"},
            },
            "timestamp": "1970-01-01T00:10:15Z",
            "window": "17.5s",
            "containers": [{"name": "coredns", "usage": {"cpu": "3124961n", "memory": "20592Ki"}}],
        }
    ],
}  # fmt: skip

SETTINGS = Settings(provider=ProviderSettings(poll_seconds=15.0))


def listed(document: dict[str, Any], time: float = 615) -> Answer:
    items = [{**item, "timestamp": format_time(time)} for item in document["items"]]
    return Answer([json.dumps({**document, "items": items}).encode()])


async def test_documented_lists_become_usage(tmp_path: Path) -> None:
    async with fake(tmp_path, listed(NODES), listed(PODS)) as server:
        usage = await MetricsServerSession(server.api).fetch(WINDOW)
    assert [request.path for request in server.requests] == [
        "/apis/metrics.k8s.io/v1beta1/nodes",
        "/apis/metrics.k8s.io/v1beta1/pods",
    ]
    assert usage.nodes["n1"]["cpu_cores_avg"] == 0.156784319
    assert usage.nodes["n1"]["memory_bytes_avg"] == 1180288 * 1024
    pod = usage.pods[PodName("kube-system", "coredns-0")]
    assert (pod["cpu_cores_last"], pod["coverage"]) == (0.003124961, 15 / 60)
    assert usage.failed == {}


async def test_all_readings_of_a_window_count(tmp_path: Path) -> None:
    script = [listed(kind, time) for time in (615, 630, 645) for kind in (NODES, PODS)]
    async with fake(tmp_path, *script, listed(NODES, 660), listed(PODS, 660)) as server:
        provider = MetricsServerSession(server.api)
        for _ in range(3):
            await provider.poll()
        columns = (await provider.fetch(WINDOW)).nodes["n1"]
    assert (columns["points_offset_seconds"], columns["coverage"]) == ([15, 30, 45, 60], 1)


async def test_open_provider_polls_repeatedly(tmp_path: Path) -> None:
    async with fake(tmp_path, *([listed(NODES), listed(PODS)] * 3)) as server:
        async with open_metrics_server(SETTINGS, server.clock, server.api):
            await until(lambda: len(server.requests) >= 6)
        assert server.clock.slept[:2] == [15.0, 15.0]


async def test_unavailable_pods_are_unknown(tmp_path: Path) -> None:
    async with fake(tmp_path, listed(NODES), status(403)) as server:
        usage = await MetricsServerSession(server.api).fetch(WINDOW)
    assert (set(usage.nodes), usage.knows_pods) == ({"n1"}, False)
    assert "403" in usage.failed["pods"]


async def test_earlier_readings_are_used_if_the_last_poll_fails(tmp_path: Path) -> None:
    async with fake(tmp_path, listed(NODES), listed(PODS), status(404), status(404)) as server:
        provider = MetricsServerSession(server.api)
        await provider.poll()
        usage = await provider.fetch(WINDOW)
        assert (set(usage.nodes), usage.knows_pods) == ({"n1"}, True)
        assert usage.failed.keys() == {"nodes", "pods"}


@pytest.mark.parametrize(
    "answer",
    [status(404), status(401), Answer([b'{"kind":"NodeMet']), Answer([b"<html>"])],
    ids=["404", "401", "truncated", "html"],
)
async def test_unavailable_nodes_are_a_provider_error(answer: Answer, tmp_path: Path) -> None:
    async with fake(tmp_path, answer, listed(PODS)) as server:
        with pytest.raises(SampleSourceError) as caught:
            await MetricsServerSession(server.api).fetch(WINDOW)
    assert "kubectl top" in (caught.value.hint or "")


async def test_busy_server_is_retried(tmp_path: Path) -> None:
    async with fake(tmp_path, status(503), status(429), listed(NODES), listed(PODS)) as server:
        usage = await MetricsServerSession(server.api).fetch(WINDOW)
    assert usage.nodes.keys() == {"n1"}


async def test_stale_and_future_readings_are_ignored(tmp_path: Path) -> None:
    async with fake(tmp_path, listed(NODES, 600), listed(PODS, 4000)) as server:
        usage = await MetricsServerSession(server.api).fetch(WINDOW)
    expected = {"stale": 1, "ahead": 1}
    assert (usage.nodes, usage.pods, usage.left_out) == ({}, {}, expected)
