"""A real kube-scheduler with its default plugins: alone, with an extender that only observes, and
with one by which it picks another node. And requests and limits of any resource held against what
kubectl shows."""

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
from pipeline.processors.loadaware.pod_amounts import by_name, pod_limits
from tests.cluster.asking import Cluster, all_bound, configured, in_file, join, read
from tests.cluster.objects import Object, apply, delete, items, node, pod
from tests.cluster.watching import Role
from tests.processes import until

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(1800)]

ONLY_LIMITS = {"plugins": {"score": {"enabled": [{"name": "ResourceLimits"}]}}}


@pytest.fixture(scope="module")
def asking() -> Iterator[ControlPlane]:
    """Two nodes of 8 cores, and a scheduler with its default plugins that asks an extender."""
    # Where nobody listens it goes on alone at once; an answer is waited for.
    scheduler = configured({}, ignorable=True)
    with local_control_plane(scheduler=scheduler) as plane:
        plane.kubectl("create", "namespace", "springtide-system")
        asyncio.run(join(plane, node("node1"), node("node2")))
        yield plane


def burstable(name: str, request: int, limit: int, on: str | None = None) -> Object:
    made = pod(name, on=on)
    made["spec"]["containers"][0]["resources"] = {
        "requests": {"cpu": str(request)}, "limits": {"cpu": str(limit), "memory": "1Gi"},
    }  # fmt: skip
    return made


def described(plane: ControlPlane, name: str) -> dict[str, int]:
    """The limits on a node in percent of its allocatable, as kubectl prints them."""
    text = plane.kubectl("describe", "node", name).partition("Allocated resources:")[2]
    rows = re.findall(r"^\s+(cpu|memory)\s+\S+ \(\d+%\)\s+\S+ \((\d+)%\)", text, re.MULTILINE)
    return {resource: int(percent) for resource, percent in rows}


def told(name: str) -> dict[str, int]:
    """The same as the extender has it."""
    ratio = json.loads(read(f"/v1/nodes/{name}"))["limits_ratio"]
    return {resource: int(share * 100) for resource, share in ratio.items()}


async def test_an_extender_that_observes_changes_nothing(cluster: Cluster) -> None:
    """Nor is it passed by: it is asked, and would have refused the node that is taken."""
    plane = cluster.plane
    apply(plane, burstable("there1", 1, 1, "node1"), burstable("there2", 4, 4, "node2"))
    await cluster.uses({"node1": 7.5, "node2": 0.1})

    async def next_one() -> str:
        where = await cluster.lands(burstable("next", 1, 1))
        plane.kubectl("delete", "pod", "next", "--grace-period=0", "--force")
        return where

    assert await next_one() == "node1"
    for mode, expected in (("observe", "node1"), ("act", "node2")):
        with (
            Role("watcher", cluster.settings) as watcher,
            cluster.extender(mode=mode) as extender,
        ):
            await until(lambda watcher=watcher: "in step" in watcher.text(), 60)
            await until(lambda extender=extender: "table caught up" in extender.text(), 60)
            # Of 8 cores: it knows of nodes and pods.
            await until(lambda: (told("node1")["cpu"], told("node2")["cpu"]) == (12, 50), 60)
            assert await next_one() == expected
            refused = f'verdicts_total{{mode="{mode}",verdict="refused"}} 1.0'
            assert f"springtide_extender_{refused}" in read("/metrics")
            extender.kill()


async def test_the_pod_goes_where_less_is_promised(cluster: Cluster, tmp_path: Path) -> None:
    """The use case of the limit-aware proposal: alone the scheduler picks the node with the lower
    requests, whose limits are promised already; with the extender the other one."""
    plane = cluster.plane
    running = (
        burstable("pod1", 2, 6, "node1"), burstable("pod2", 2, 4, "node1"),
        burstable("pod3", 3, 3, "node2"), burstable("pod4", 2, 2, "node2"),
    )  # fmt: skip
    apply(plane, *running)
    # Alone, because nobody answers: the extender is ignorable.
    apply(plane, burstable("pod5", 1, 4))
    await until(all_bound(cluster, "pod5", 1), 60)
    assert cluster.landed("pod5") == {"pod5": "node1"}
    plane.kubectl("delete", "pod", "pod5", "--grace-period=0", "--force")
    await until(lambda: len(items(plane, "pods")) == len(running), 60)

    await cluster.uses({"node1": 1.0, "node2": 1.0})
    with (
        Role("watcher", cluster.settings) as watcher,
        cluster.extender(*in_file(tmp_path, ONLY_LIMITS)) as extender,
    ):
        await until(lambda: "in step" in watcher.text(), 60)
        await until(lambda: "table caught up" in extender.text(), 60)
        await until(lambda: told("node2")["cpu"] == 62, 60)
        assert told("node1")["cpu"] == 125
        for name in ("node1", "node2"):
            assert told(name) == described(plane, name)
        apply(plane, burstable("pod5", 1, 4))
        await until(all_bound(cluster, "pod5", 1), 60)
        assert cluster.landed("pod5") == {"pod5": "node2"}
        # 9 of 8 cores are promised there now, and 10 of node1's as before.
        await until(lambda: told("node2")["cpu"] == 112, 60)
        for name in ("node1", "node2"):
            assert told(name) == described(plane, name)


DISK, PAGES = "ephemeral-storage", "hugepages-2Mi"
GPU, BATCH_CPU = "nvidia.com/gpu", "kubernetes.io/batch-cpu"


def container(name: str, requests: Object, limits: Object, **more: str) -> Object:
    stated = {"requests": requests, "limits": limits}
    return {"name": name, "image": "none", "resources": stated, **more}


def of_containers(name: str, *containers: Object, **spec: Any) -> Object:
    made = pod(name, on="node3")
    made["spec"] |= {"containers": list(containers), **spec}
    return made


def allocated(plane: ControlPlane, name: str) -> dict[str, tuple[int, int]]:
    """What kubectl says that the pods of a node ask for, and may take, by resource."""
    text = plane.kubectl("describe", "node", name).partition("Allocated resources:")[2]
    rows = re.findall(r"^  ([a-z]\S+) +(\w+)(?: \(\d+%\))? +(\w+)", text, re.MULTILINE)
    found = {}
    for resource, *said in rows:
        request, limit = (amounts([(resource, one)], name)[resource] for one in said)
        found[resource] = (request, limit)
    return found


def test_requests_and_limits_of_any_resource_are_those_of_kubernetes(asking: ControlPlane) -> None:
    """Sidecars, overhead, limits above requests and without, and amounts of a pod as a whole."""
    has: dict[str, Any] = {DISK: "100Gi", PAGES: "1Gi", GPU: "8", BATCH_CPU: "8k"}
    overhead = {"podFixed": {"cpu": "10m", "memory": "64Mi", DISK: "1Gi"}}
    runtime = {
        "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "vm"},
        "handler": "vm", "overhead": overhead,
    }  # fmt: skip
    some = container("main", {DISK: "1Gi", "cpu": "1"}, {DISK: "4Gi"})
    mesh = container("mesh", {}, {DISK: "2Gi"}, restartPolicy="Always")
    first = container("first", {}, {DISK: "7Gi", GPU: "2", "memory": "1Gi"})
    pages = container("main", {}, {PAGES: "4Mi", "memory": "1Gi"})
    whole = {"limits": {PAGES: "64Mi", "memory": "2Gi", "cpu": "1"}}
    # For no pod but these.
    apart = node("node3", **has) | {"spec": {"unschedulable": True}}
    apply(asking, apart, runtime)
    apply(
        asking,
        of_containers("disk", some, runtimeClassName="vm"),
        of_containers("unlimited", container("c", {DISK: "1Gi"}, {}), runtimeClassName="vm"),
        of_containers("before", some, initContainers=[first, mesh], runtimeClassName="vm"),
        of_containers("beside", some, initContainers=[mesh, first], runtimeClassName="vm"),
        of_containers("pages", pages),
        of_containers("whole", pages, resources=whole),
        of_containers("batch", container("c", {BATCH_CPU: "1k"}, {BATCH_CPU: "3k"})),
        of_containers("gpu", container("c", {}, {GPU: "1"}), container("d", {}, {})),
    )
    there = [one for one in items(asking, "pods") if one["spec"].get("nodeName") == "node3"]
    records = [pod_record(one) for one in there]
    assert len(records) == 8
    sums = {}
    for resource in ("cpu", "memory", *has):
        requests = (by_name(one.requests, one.scalars).get(resource, 0) for one in records)
        limits = (pod_limits(one).get(resource, 0) for one in records)
        sums[resource] = (sum(requests), sum(limits))
    assert sums == allocated(asking, "node3")
    delete(asking, "pod", *(one["metadata"]["name"] for one in there))
