"""Providers with the real API server: a Lease decides which of two works.

metrics-server is a fake in front of the API server, because there is no kubelet to ask.
"""

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

from pipeline.kube.api_access import api_access
from pipeline.local.control_plane import ControlPlane
from pipeline.settings import KubernetesSettings, Settings
from pipeline.sources.compacted_writer import open_producer, pod_entry, write
from pipeline.times import format_time
from pipeline.topics.pods import PodRecord
from pipeline.topics.registry import SAMPLES
from pipeline.topics.sample_rows import read_samples
from tests.broker import messages
from tests.cluster.objects import assert_forbidden, named, service_account, service_account_token
from tests.cluster.roles import Role
from tests.processes import until

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(1800)]

FLAGS = ("--kind", "metrics-server", "--window-seconds", "5", "--delay-seconds", "0.5",
         "--poll-seconds", "1", "--step-seconds", "5", "--port", "0")  # fmt: skip


def metrics(kind: str) -> dict[str, Any]:
    """The answer of a metrics-server with a resolution of two seconds."""
    usage = {"cpu": "250m", "memory": "64Mi"}
    times = {"timestamp": format_time(int(time.time()) // 2 * 2), "window": "2s"}
    if kind == "nodes":
        nodes = [{"metadata": {"name": name}, "usage": usage, **times} for name in ("m1", "m2")]
        return {"kind": "NodeMetricsList", "items": nodes}
    pod = {"metadata": {"name": "p", "namespace": "s"}, "containers": [{"usage": usage}], **times}
    return {"kind": "PodMetricsList", "items": [pod]}


@asynccontextmanager
async def fake_metrics_server(kubernetes: KubernetesSettings) -> AsyncIterator[str]:
    """The URL of a proxy of the API server that answers for metrics.k8s.io if the API server
    permits the request."""
    access = api_access(kubernetes)
    connector = aiohttp.TCPConnector(ssl=access.tls or True)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def handle(request: web.Request) -> web.Response:
            headers = {k: v for k, v in request.headers.items() if k in ("Authorization", "Accept")}
            headers["Content-Type"] = request.content_type
            async with session.request(
                request.method, access.server + request.path_qs, headers=headers,
                data=await request.read(),
            ) as answer:  # fmt: skip
                status, body = answer.status, await answer.read()
            # The API server does not serve the group: a permitted request gets 404.
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


def holder(plane: ControlPlane) -> str:
    leases = named(plane, "leases", "-n", "springtide-system")
    spec = leases.get("springtide-provider", {}).get("spec", {})
    return str(spec.get("holderIdentity") or "")


async def test_one_of_two_providers_works_with_its_permissions_and_the_other_takes_over(
    plane: ControlPlane, settings: Settings, project: Path, tmp_path: Path
) -> None:
    service_account(plane, "provider", project)
    account = service_account_token(plane, "springtide-provider", tmp_path / "account")
    kafka = settings.kafka
    pod = PodRecord(node="m1", uid="u", cgroup_uid="u", namespace="s", name="p")
    async with open_producer(kafka, "test") as producer:
        await write(producer, kafka, "test", [pod_entry(pod)])

    async def windows() -> list[tuple[str, int]]:
        headers = [read_samples(m.value).header for m in await messages(kafka, SAMPLES)]
        return [(header.node, header.window_end_ms) for header in headers]

    async def more_than(count: int) -> bool:
        return len(await windows()) > count

    async with fake_metrics_server(settings.kubernetes) as url:
        tree = json.loads(account.read_text())
        tree["clusters"][0]["cluster"] = {"server": url}
        (tmp_path / "proxied").write_text(json.dumps(tree))
        kubernetes = KubernetesSettings(kubeconfig=tmp_path / "proxied")
        own = Settings(kafka=kafka, kubernetes=kubernetes)
        with Role("provider", own, *FLAGS) as first:
            await until(lambda: holder(plane), 120)
            leader = holder(plane)
            with Role("provider", own, *FLAGS) as second:
                await until(lambda: more_than(5), 120)
                await second.logs("standing by")
                # Only the leader wrote, and each window once.
                written = await windows()
                assert len({*written}) == len(written)
                assert await asyncio.to_thread(first.stop) == 0
                assert "lease lost" not in first.text()
                await until(lambda: holder(plane) not in ("", leader), 120)
                count = len(await windows())
                await until(lambda: more_than(count + 2), 120)
                assert await asyncio.to_thread(second.stop) == 0
    samples = [read_samples(message.value) for message in await messages(kafka, SAMPLES)]
    assert samples[-1].header.machine_id == ""
    rows = {(s.header.node, row["kind"]): row for s in samples for row in s.rows}
    assert rows["m1", "pod"]["id"] == "u"
    assert rows["m1", "pod"]["cpu_cores_avg"] == rows["m1", "node"]["cpu_cores_avg"] == 0.25
    assert rows["m2", "node"]["memory_bytes_avg"] == 64 * 2**20
    assert_forbidden(
        plane, account, "get pods", "get nodes", "get secrets", "get leases -n springtide-system",
        "delete lease springtide-provider -n springtide-system",
    )  # fmt: skip
