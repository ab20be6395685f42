"""Pods of controllers that are not part of Kubernetes."""

from typing import Any

import msgspec
import pytest

from pipeline.errors import ApiUnavailableError, ForbiddenError, NotFoundError
from tests.actuators.simulated_cluster import SimulatedPod, failed_with
from tests.actuators.test_relief import World

META = {"resourceVersion": "1"}
KRUISE = "apps.kruise.io/v1alpha1"
RESOURCES: Any = {
    "kind": "APIResourceList", "groupVersion": KRUISE, "resources": [
        {"name": "clonesets", "kind": "CloneSet"},
        {"name": "clonesets/status", "kind": "CloneSet"},
        {"name": "clonesets/scale", "kind": "Scale", "group": "autoscaling", "version": "v1"},
        {"name": "broadcastjobs", "kind": "BroadcastJob"},
        {"name": "statefulsets", "kind": "StatefulSet"},
        {"name": "statefulsets/scale", "kind": "Scale"},
    ],
}  # fmt: skip


class Kruise(World):
    """A cluster with controllers of OpenKruise. `scale` is the answer about each, `asked` the paths
    of discovery and scales."""

    def __init__(self, scale: Any) -> None:
        super().__init__()
        self.scale, self.asked = scale, list[str]()
        self.resources: Any = RESOURCES
        self._answer, self.cluster.request = self.cluster.request, self._request  # type: ignore

    def add(self, count: int, kind: str = "CloneSet", version: str = KRUISE) -> list[SimulatedPod]:
        owner = {"kind": kind, "name": "web", "apiVersion": version, "controller": True}
        return [
            self.cluster.add_pod("n", labels={"app": "clones"}, owners=[owner])
            for _ in range(count)
        ]

    async def _request(self, method: str, path: str, *, params: Any = None, **more: Any) -> Any:
        if (params or {}).get("labelSelector") == "app=clones":
            pods = [p for p in self.cluster.pods.values() if p.changes.get("owners")]
            items = [self.cluster._manifest(pod) for pod in pods]
            return msgspec.json.encode({"kind": "PodList", "metadata": META, "items": items})
        if path.startswith("/apis/") and "poddisruptionbudgets" not in path:
            self.asked.append(path)
            answer = self.scale if path.endswith("/scale") else self.resources
            if isinstance(answer, Exception):
                raise answer
            return msgspec.json.encode(answer)
        return await self._answer(method, path, params=params, **more)


def scale(replicas: int, selector: str = "app=clones") -> Any:
    return {
        "kind": "Scale", "apiVersion": "autoscaling/v1", "spec": {"replicas": replicas},
        "status": {"replicas": replicas, "selector": selector},
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["CloneSet", "StatefulSet"])
async def test_replicas_of_a_foreign_controller_are_those_of_its_scale(kind: str) -> None:
    world = Kruise(scale(4))
    pods = world.add(4, kind)
    assert await world.run(world.plan(pods[0])) == ["intended", "done"]
    assert world.evicted == [pods[0].uid]
    path = f"/apis/{KRUISE}/namespaces/d/{kind.lower()}s/web/scale"
    # Discovery is asked once.
    assert world.asked == [f"/apis/{KRUISE}", *[path] * (len(world.asked) - 1)]


@pytest.mark.parametrize(
    ("replicas", "unready", "reason"),
    [(1, 0, "ExpectedReplicas"), (0, 0, "ExpectedReplicas"), (4, 2, "MaxUnavailablePerWorkload")],
)
async def test_its_pods_have_the_limits_of_a_workload(
    replicas: int, unready: int, reason: str
) -> None:
    world = Kruise(scale(replicas))
    pods = world.add(max(replicas, 1))
    for pod in pods[1 : 1 + unready]:
        pod.ready_at = float("inf")
    await world.run(world.plan(pods[0], seconds=20.0), seconds=25.0)
    assert (world.evicted, world.last_error.partition(":")[0]) == ([], reason)


@pytest.mark.parametrize(
    "answer",
    [
        failed_with(ForbiddenError("may not get clonesets/scale"), 403),
        failed_with(NotFoundError("none", reason="NotFound"), 404),
        scale(4, selector=""),
        {"kind": "Scale"},
    ],
    ids=["forbidden", "not found", "no selector", "empty"],
)
async def test_unknown_replicas_stay_refused(answer: Any) -> None:
    world = Kruise(answer)
    pods = world.add(4)
    assert await world.run(world.plan(pods[0])) == ["refused"]
    assert world.last_error.startswith("ExpectedReplicas")


@pytest.mark.parametrize(
    ("kind", "version"),
    [
        ("BroadcastJob", KRUISE), ("Unknown", KRUISE), ("CloneSet", "../../v1"),
        ("CloneSet", "apps.kruise.io/../v1"), ("Pod", "v1"), ("CloneSet", ""),
    ],
)  # fmt: skip
async def test_controllers_without_a_scale_have_unknown_replicas(kind: str, version: str) -> None:
    world = Kruise(scale(4))
    pods = world.add(4, kind, version)
    assert await world.run(world.plan(pods[0])) == ["refused"]
    assert world.last_error.startswith("ExpectedReplicas")
    assert {*world.asked} <= {f"/apis/{KRUISE}"}


async def test_a_statefulset_of_kubernetes_is_not_asked_for_as_a_foreign_one() -> None:
    world = Kruise({"metadata": {"name": "web"}, "spec": {"replicas": 9}})
    world.resources = {"metadata": {"name": "web"}, "spec": {"replicas": 9}}
    pods = world.add(4, "StatefulSet", "apps/v1")
    await world.run(world.plan(pods[0]))
    assert {*world.asked} == {"/apis/apps/v1/namespaces/d/statefulsets/web"}


async def test_a_server_that_does_not_answer_about_a_scale_lets_the_pod_wait() -> None:
    world = Kruise(ApiUnavailableError("no answer"))
    pods = world.add(4)
    await world.run(world.plan(pods[0], seconds=60.0), seconds=10.0)
    assert world.log == []
    world.scale = scale(4)
    await world.run(seconds=30.0)
    assert world.evicted == [pods[0].uid]
