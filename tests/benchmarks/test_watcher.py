"""The benchmark of the watcher: its fake API server is one to the watcher's own client, and what is
read of the metrics page and the topic is what stands there."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp.test_utils import TestServer

from benchmarks import watcher
from benchmarks.api_server import CHANGED_AT, FakeApiServer, node_name, pod_uid
from pipeline.clock import SystemClock
from pipeline.kube.api_client import Api, open_api
from pipeline.kube.lease import Lease
from pipeline.kube.list_watch import Began, Changed, Complete, Page, follow
from pipeline.processors.kubernetes.object_records import read_node, read_pod
from pipeline.settings import KubernetesSettings
from pipeline.topics.resource_amounts import Resources


@asynccontextmanager
async def fake_api_server(tmp_path: Path, pods: int, changes: float) -> AsyncIterator[Api]:
    async with TestServer(FakeApiServer(3, pods, changes).application()) as server:
        config = watcher.fake_kubeconfig(tmp_path, server.port or 0)
        async with open_api(KubernetesSettings(kubeconfig=config), SystemClock()) as api:
            yield api


def test_pods_and_nodes_are_what_a_cluster_has() -> None:
    server = FakeApiServer(3, 10, 0.0)
    pods = [read_pod(server.pod(number)) for number in range(8)]
    assert len({pod.uid for pod in pods}) == len({pod.name for pod in pods}) == 8
    assert {pod.node for pod in pods} == {node_name(0), node_name(1), node_name(2)}
    assert {pod.pod_class for pod in pods} == {"prod"}
    assert pods[0].requests == pods[4].requests == Resources(
        cpu_millicores=200, memory_bytes=256 << 20
    )  # fmt: skip
    assert len({pod.requests.cpu_millicores for pod in pods}) == 4
    of_others = [read_pod(server.pod(number)).init_containers for number in (0, 19, 20, 40)]
    assert of_others[0] == of_others[1]
    assert len(set(map(repr, of_others))) == 3
    assert 3000 < len(server.pod(0)) < 6000
    assert read_node(server.node(1)).allocatable.cpu_millicores == 64_000


async def test_a_client_gets_every_pod_in_pages_and_then_changes(tmp_path: Path) -> None:
    uids, pages, changed = list[str](), 0, list[Changed]()
    async with fake_api_server(tmp_path, pods=1100, changes=200.0) as api:
        events = follow(api, "/api/v1/pods")
        async for event in events:
            match event:
                case Began():
                    assert not pages
                case Page(objects):
                    pages += 1
                    uids += [read_pod(of).uid for of in objects]
                case Complete():
                    assert uids == [pod_uid(number) for number in range(1100)]
                case Changed():
                    changed.append(event)
            if len(changed) == 3:
                break
        await events.aclose()
    assert pages == 3
    told = [read_pod(of) for of, _ in changed]
    assert len({pod.uid for pod in told}) == 3
    assert all(float(pod.annotations[CHANGED_AT]) > 0 for pod in told)


async def test_a_watcher_can_lead_by_its_lease(tmp_path: Path) -> None:
    async with fake_api_server(tmp_path, pods=0, changes=0.0) as api:
        lease = Lease(api, "springtide-system", "some", "me")

        async def work() -> None:
            assert lease.is_held

        await lease.lead(work)
        assert await api.get("/apis/apps/v1/deployments") == {
            "metadata": {"resourceVersion": "1000000"}, "items": [],
        }  # fmt: skip


def test_what_a_new_pod_says_is_what_may_be_said() -> None:
    body = watcher.as_new(FakeApiServer(3, 10, 0.0).pod(4))
    assert "status" not in body
    assert not {"uid", "resourceVersion", "managedFields"} & body["metadata"].keys()
    assert read_pod(json.dumps(body | {"metadata": body["metadata"] | {"uid": "u"}}).encode())


def test_arguments() -> None:
    assert watcher.parsed(["--fake-pods", "7"]).nodes == 10_000
    assert watcher.parsed(["--real", "7"]).nodes == 200
    with pytest.raises(SystemExit):
        watcher.parsed(["--real", "7", "--fake-pods", "7"])
