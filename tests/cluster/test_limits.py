"""A real kube-scheduler with its default plugins: alone, with an extender that observes, and with
one that acts. Requests and limits of any resource agree with kubectl."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.local.control_plane import ControlPlane, local_control_plane
from pipeline.processors.kubernetes.object_records import pod_record
from pipeline.processors.kubernetes.pod_resources import amounts
from pipeline.processors.loadaware.pod_amounts import pod_limits
from pipeline.topics.resource_amounts import by_name
from tests.cluster.extender_cluster import Cluster, add_nodes, config_flags, get, scheduler_config
from tests.cluster.objects import Object, apply, delete, items, node, pod
from tests.processes import until

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(1800)]

ONLY_LIMITS = {"plugins": {"score": {"enabled": [{"name": "ResourceLimits"}]}}}


@pytest.fixture(scope="module")
def asking_plane() -> Iterator[ControlPlane]:
    """Two nodes of 8 cores, and a scheduler with its default plugins that asks an extender.

    Without an extender the scheduler continues at once.
    """
    with local_control_plane(scheduler=scheduler_config({}, ignorable=True)) as plane:
        plane.kubectl("create", "namespace", "springtide-system")
        asyncio.run(add_nodes(plane, node("node1"), node("node2")))
        yield plane


def burstable(name: str, request: int, limit: int, on: str | None = None) -> Object:
    created = pod(name, on=on)
    created["spec"]["containers"][0]["resources"] = {
        "requests": {"cpu": str(request)}, "limits": {"cpu": str(limit), "memory": "1Gi"},
    }  # fmt: skip
    return created


def kubectl_limits(plane: ControlPlane, name: str) -> dict[str, int]:
    """Limits on a node in percent of its allocatable, as kubectl prints them."""
    text = plane.kubectl("describe", "node", name).partition("Allocated resources:")[2]
    rows = re.findall(r"^\s+(cpu|memory)\s+\S+ \(\d+%\)\s+\S+ \((\d+)%\)", text, re.MULTILINE)
    return {resource: int(percent) for resource, percent in rows}


def extender_limits(name: str) -> dict[str, int]:
    """The same limits in the extender."""
    ratio = json.loads(get(f"/v1/nodes/{name}")).get("limits_ratio", {})
    return {resource: int(share * 100) for resource, share in ratio.items()}


async def test_an_extender_that_observes_changes_nothing(cluster: Cluster) -> None:
    """The scheduler does ask it, and it would have refused the chosen node."""
    plane = cluster.plane
    apply(plane, burstable("first", 1, 1, "node1"), burstable("second", 4, 4, "node2"))

    async def node_of_next_pod() -> str:
        name = await cluster.node_for(burstable("next", 1, 1))
        plane.kubectl("delete", "pod", "next", "--grace-period=0", "--force")
        return name

    assert await node_of_next_pod() == "node1"
    for mode, expected in (("observe", "node1"), ("act", "node2")):
        await cluster.use({"node1": 7.5, "node2": 0.1})
        async with cluster.watched_extender(mode=mode) as extender:
            await until(lambda: extender_limits("node1").get("cpu") == 12)
            await until(lambda: extender_limits("node2").get("cpu") == 50)
            assert await node_of_next_pod() == expected
            # At least once: the scheduler repeats a question whose answer came too late for it.
            refused = rf'verdicts_total\{{mode="{mode}",verdict="refused"\}} [1-9]'
            assert re.search(refused, get("/metrics"))
            extender.kill()


async def test_the_node_with_lower_limits_gets_the_pod(cluster: Cluster, tmp_path: Path) -> None:
    """The use case of KEP-217: alone, the scheduler picks the node with lower requests, whose
    limits already exceed its allocatable."""
    plane = cluster.plane
    running = (
        burstable("pod1", 2, 6, "node1"), burstable("pod2", 2, 4, "node1"),
        burstable("pod3", 3, 3, "node2"), burstable("pod4", 2, 2, "node2"),
    )  # fmt: skip
    apply(plane, *running)
    assert await cluster.node_for(burstable("pod5", 1, 4)) == "node1"
    plane.kubectl("delete", "pod", "pod5", "--grace-period=0", "--force")
    await until(lambda: len(items(plane, "pods")) == len(running), 60)

    async def agree_with_kubectl(cpu: int) -> None:
        await until(lambda: extender_limits("node2").get("cpu") == cpu)
        for name in ("node1", "node2"):
            await until(lambda name=name: extender_limits(name) == kubectl_limits(plane, name))

    await cluster.use({"node1": 1.0, "node2": 1.0})
    async with cluster.watched_extender(*config_flags(tmp_path, ONLY_LIMITS)):
        await agree_with_kubectl(62)
        assert extender_limits("node1")["cpu"] == 125
        assert await cluster.node_for(burstable("pod5", 1, 4)) == "node2"
        # Limits of 9 of 8 cores.
        await agree_with_kubectl(112)


DISK, PAGES = "ephemeral-storage", "hugepages-2Mi"
GPU, BATCH_CPU = "nvidia.com/gpu", "kubernetes.io/batch-cpu"


def container(name: str, requests: Object, limits: Object, **more: str) -> Object:
    resources = {"requests": requests, "limits": limits}
    return {"name": name, "image": "none", "resources": resources, **more}


def pod_of(name: str, *containers: Object, **spec: Any) -> Object:
    created = pod(name, on="node3")
    created["spec"] |= {"containers": list(containers), **spec}
    return created


def kubectl_sums(plane: ControlPlane, name: str) -> dict[str, tuple[int, int]]:
    """Requests and limits of the pods of a node by resource, as kubectl prints them."""
    text = plane.kubectl("describe", "node", name).partition("Allocated resources:")[2]
    rows = re.findall(r"^  ([a-z]\S+) +(\w+)(?: \(\d+%\))? +(\w+)", text, re.MULTILINE)
    sums = {}
    for resource, *texts in rows:
        request, limit = (amounts([(resource, text)], name)[resource] for text in texts)
        sums[resource] = (request, limit)
    return sums


def test_requests_and_limits_of_any_resource_agree_with_kubectl(asking_plane: ControlPlane) -> None:
    """Sidecars, overhead, limits above requests and without, and pod-level resources."""
    extended: dict[str, Any] = {DISK: "100Gi", PAGES: "1Gi", GPU: "8", BATCH_CPU: "8k"}
    overhead = {"podFixed": {"cpu": "10m", "memory": "64Mi", DISK: "1Gi"}}
    runtime = {
        "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "vm"},
        "handler": "vm", "overhead": overhead,
    }  # fmt: skip
    disk = container("main", {DISK: "1Gi", "cpu": "1"}, {DISK: "4Gi"})
    sidecar = container("sidecar", {}, {DISK: "2Gi"}, restartPolicy="Always")
    init = container("init", {}, {DISK: "7Gi", GPU: "2", "memory": "1Gi"})
    pages = container("main", {}, {PAGES: "4Mi", "memory": "1Gi"})
    pod_level = {"limits": {PAGES: "64Mi", "memory": "2Gi", "cpu": "1"}}
    apply(asking_plane, node("node3", **extended) | {"spec": {"unschedulable": True}}, runtime)
    apply(
        asking_plane,
        pod_of("disk", disk, runtimeClassName="vm"),
        pod_of("unlimited", container("c", {DISK: "1Gi"}, {}), runtimeClassName="vm"),
        pod_of("before", disk, initContainers=[init, sidecar], runtimeClassName="vm"),
        pod_of("beside", disk, initContainers=[sidecar, init], runtimeClassName="vm"),
        pod_of("pages", pages),
        pod_of("whole", pages, resources=pod_level),
        pod_of("batch", container("c", {BATCH_CPU: "1k"}, {BATCH_CPU: "3k"})),
        pod_of("gpu", container("c", {}, {GPU: "1"}), container("d", {}, {})),
    )
    pods = [item for item in items(asking_plane, "pods") if item["spec"].get("nodeName") == "node3"]
    records = [pod_record(item) for item in pods]
    assert len(records) == 8
    sums = {}
    for resource in ("cpu", "memory", *extended):
        requests = (by_name(pod.requests, pod.scalars).get(resource, 0) for pod in records)
        limits = (pod_limits(pod).get(resource, 0) for pod in records)
        sums[resource] = (sum(requests), sum(limits))
    assert sums == kubectl_sums(asking_plane, "node3")
    delete(asking_plane, "pod", *(pod.name for pod in records))
