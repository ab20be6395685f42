"""Providers with the real API server: one of two works, by a Lease, as a service account that may
do nothing else. metrics-server is a fake that stands before the API server, for there is no kubelet
to be asked."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from pipeline.errors import ControlPlaneError
from pipeline.kube.api_access import api_access
from pipeline.local.control_plane import ControlPlane
from pipeline.settings import KubernetesSettings, Settings
from pipeline.sources.compacted_writer import open_producer, pod_entry, write
from pipeline.times import format_time
from pipeline.topics.pods import PodRecord
from pipeline.topics.registry import SAMPLES
from pipeline.topics.sample_rows import read_samples
from tests.cluster.objects import items, messages
from tests.cluster.test_watcher import by_token
from tests.cluster.watching import Role
from tests.processes import until

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(1800)]

FLAGS = ("--kind", "metrics-server", "--window-seconds", "5", "--delay-seconds", "0.5",
         "--poll-seconds", "1", "--step-seconds", "5", "--port", "0")  # fmt: skip


def metrics(kind: str) -> dict[str, Any]:
    """What a metrics-server would say, with a resolution of two seconds."""
    usage = {"cpu": "250m", "memory": "64Mi"}
    told = {"timestamp": format_time(int(time.time()) // 2 * 2), "window": "2s"}
    if kind == "nodes":
        items = [{"metadata": {"name": name}, "usage": usage, **told} for name in ("m1", "m2")]
        return {"kind": "NodeMetricsList", "items": items}
    pod = {"metadata": {"name": "p", "namespace": "s"}, "containers": [{"usage": usage}], **told}
    return {"kind": "PodMetricsList", "items": [pod]}


@asynccontextmanager
async def with_fake_metrics_server(kubernetes: KubernetesSettings) -> AsyncIterator[str]:
    """The URL of a way to the API server that gives the fake's answers for metrics.k8s.io to whom
    the API server lets list them."""
    behind = api_access(kubernetes)
    connector = aiohttp.TCPConnector(ssl=behind.tls or True)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def handle(request: web.Request) -> web.Response:
            headers = {k: v for k, v in request.headers.items() if k in ("Authorization", "Accept")}
            headers["Content-Type"] = request.content_type
            async with session.request(
                request.method, behind.server + request.path_qs, headers=headers,
                data=await request.read(),
            ) as answer:  # fmt: skip
                status, body = answer.status, await answer.read()
            # Nobody serves the group here: who may list it is told that there is none.
            if request.path.startswith("/apis/metrics.k8s.io/v1beta1/") and status == 404:
                status, body = 200, json.dumps(metrics(request.path.rpartition("/")[2])).encode()
            return web.Response(status=status, body=body, content_type="application/json")

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


def through(account: Path, url: str, path: Path) -> Path:
    """The kubeconfig of `account` by this way."""
    tree = json.loads(account.read_text())
    tree["clusters"][0]["cluster"] = {"server": url}
    path.write_text(json.dumps(tree))
    return path


def holder(plane: ControlPlane) -> str:
    for lease in items(plane, "leases", "-n", "springtide-system"):
        if lease["metadata"]["name"] == "springtide-provider":
            return str(lease["spec"].get("holderIdentity") or "")
    return ""


async def test_one_of_two_works_with_the_rights_of_its_account_and_the_other_takes_over(
    plane: ControlPlane, settings: Settings, project: Path, tmp_path: Path
) -> None:
    plane.kubectl("apply", "-f", str(project / "deploy" / "rbac" / "provider.yaml"))
    account = by_token(plane, "springtide-provider", tmp_path / "account")
    kafka = settings.kafka
    pod = PodRecord(node="m1", uid="u", cgroup_uid="u", namespace="s", name="p")
    async with open_producer(kafka, "test") as producer:
        await write(producer, kafka, "test", [pod_entry(pod)])

    async def windows() -> list[tuple[str, int]]:
        headers = [read_samples(m.value).header for m in await messages(kafka, SAMPLES)]
        return [(header.node, header.window_end_ms) for header in headers]

    async def more_than(count: int) -> bool:
        return len(await windows()) > count

    async with with_fake_metrics_server(settings.kubernetes) as url:
        kubernetes = KubernetesSettings(kubeconfig=through(account, url, tmp_path / "way"))
        own = Settings(kafka=kafka, kubernetes=kubernetes)
        with Role("provider", own, *FLAGS) as first:
            await until(lambda: holder(plane), 60)
            led_by = holder(plane)
            with Role("provider", own, *FLAGS) as second:
                await until(lambda: more_than(5), 60)
                assert "standing by" in second.text()
                # One wrote, and each window once.
                assert len(set(await windows())) == len(await windows())
                assert await asyncio.to_thread(first.stop) == 0
                assert "lease lost" not in first.text()
                await until(lambda: holder(plane) not in ("", led_by), 60)
                written = len(await windows())
                await until(lambda: more_than(written + 2), 60)
                assert await asyncio.to_thread(second.stop) == 0
    sample = read_samples((await messages(kafka, SAMPLES))[-1].value)
    assert sample.header.machine_id == ""
    rows = {
        (read.header.node, row["kind"]): row
        for message in await messages(kafka, SAMPLES)
        for read in [read_samples(message.value)]
        for row in read.rows
    }
    assert rows["m1", "pod"]["id"] == "u"
    assert rows["m1", "pod"]["cpu_cores_avg"] == rows["m1", "node"]["cpu_cores_avg"] == 0.25
    assert rows["m2", "node"]["memory_bytes_avg"] == 64 * 2**20
    for denied in (
        ["get", "pods"],
        ["get", "nodes"],
        ["get", "secrets"],
        ["get", "leases", "-n", "springtide-system"],
        ["delete", "lease", "springtide-provider", "-n", "springtide-system"],
    ):
        with pytest.raises(ControlPlaneError, match="orbidden"):
            plane.kubectl(*denied, user=account)
