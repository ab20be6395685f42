"""A cluster in memory for evictors: an API server with Deployments, budgets and random failures,
and a monitor of the evictions that it accepted."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from pipeline.clock import ManualClock
from pipeline.errors import (
    ApiRefusedError,
    ApiUnavailableError,
    ConflictError,
    KubernetesError,
    NotFoundError,
)
from pipeline.processors.eviction.migration_limits import workload_limit
from pipeline.processors.eviction.migration_policy import MigrationLimits
from pipeline.times import format_time

GRACE_SECONDS = 20.0
START_SECONDS = 15.0
"""From the creation of a replacement until it is Ready."""
STOP = "/stop"


class CrashError(Exception):
    """The evictor's process ends."""


@dataclass
class SimulatedPod:
    """A pod; once it is deleted, `killed_at` is the end of its grace period, and `gone_at` when its
    node is done with it. `changes` replace parts of its manifest."""

    uid: str
    name: str
    namespace: str
    node: str
    deployment: str | None = None
    ready_at: float = 0.0
    gone_at: float | None = None
    killed_at: float | None = None
    changes: dict[str, Any] = field(default_factory=dict)


class Accepted(NamedTuple):
    """An eviction that the server accepted, with what was true at that moment: other evicted pods
    that still existed, and pods of the workload that are missing or unavailable afterwards."""

    at: float
    pod: SimulatedPod
    leaving: tuple[SimulatedPod, ...]
    moving: int
    unavailable: int


class SimulatedCluster:
    """The API server. `failure` is asked for each request; its error replaces the answer, and a
    lost answer to an eviction may hide that the pod is deleted."""

    def __init__(self, clock: ManualClock, random: Random) -> None:
        self.clock = clock
        self.random = random
        self.pods: dict[str, SimulatedPod] = {}
        self.replicas: dict[str, int] = {}
        self.budgets: list[Any] = []
        self.nodes: list[Any] = []
        self.rng = Random(1)
        self.accepted: list[Accepted] = []
        self.failure: Callable[[], Exception | None] = lambda: None
        self.latency_seconds = 0.0
        self.events: list[str] = []
        self.is_stopped = False
        self.server_ahead_seconds = 0.0
        self._serial = 0

    # -- state

    def now(self) -> float:
        """The server's wall clock, which is not the evictor's: it never jumps."""
        return 1_700_000_000.0 + self.clock.monotonic()

    def server_now(self) -> float:
        """The server's wall clock by its last answer."""
        return self.clock.now() + self.server_ahead_seconds

    def add_pod(self, node: str, namespace: str = "d", deployment: str | None = None, **changes: Any
    ) -> SimulatedPod:  # fmt: skip
        self._serial += 1
        uid = f"u{self._serial}"
        name = f"{deployment or 'bare'}-{self._serial}"
        pod = SimulatedPod(uid, name, namespace, node, deployment, changes=changes)
        self.pods[uid] = pod
        return pod

    def add_deployment(self, name: str, replicas: int, nodes: list[str], namespace: str = "d"
    ) -> list[SimulatedPod]:  # fmt: skip
        self.replicas[name] = replicas
        return [
            self.add_pod(nodes[number % len(nodes)], namespace, name) for number in range(replicas)
        ]

    def _settle(self) -> None:
        """Let pods that were deleted go."""
        now = self.now()
        for uid, pod in [*self.pods.items()]:
            if pod.gone_at is not None and now >= pod.gone_at:
                del self.pods[uid]

    def _delete(self, pod: SimulatedPod) -> None:
        now = self.now()
        self._settle()
        siblings = [
            p for p in self.pods.values() if p.deployment and p.deployment == pod.deployment
        ]
        leaving = tuple(p for p in self.pods.values() if p.gone_at is not None and p is not pod)
        grace = pod.changes.get("grace", GRACE_SECONDS)
        pod.killed_at, pod.gone_at = now + grace, now + pod.changes.get("ends_after", grace)
        replicas = self.replicas.get(pod.deployment or "", 0)
        if pod.deployment is not None:
            new = self.add_pod("elsewhere", pod.namespace, pod.deployment)
            new.ready_at = now + START_SECONDS
        ready = sum(p.gone_at is None and p.ready_at <= now for p in siblings)
        moving = max(sum(p.gone_at is not None for p in siblings), replicas - ready)
        self.accepted.append(Accepted(now, pod, leaving, moving, replicas - ready))

    # -- the interface of Api

    async def request(self, method: str, path: str, *, params: Any = None, body: Any = None,
                      **_: Any) -> bytes:  # fmt: skip
        if self.latency_seconds:
            await self.clock.sleep(self.random.random() * self.latency_seconds)
        self._settle()
        is_eviction = path.endswith("/eviction") and "dryRun" not in body["deleteOptions"]
        failure = self.failure()
        if failure is not None and not (is_eviction and _may_hide(failure)):
            raise failure
        if failure is not None and self.random.random() < 0.5:
            raise failure
        answer = self._answer(method, path, params or {}, body)
        if failure is not None:
            raise failure
        return json.dumps(answer).encode()

    async def create(self, path: str, body: Any) -> Any:
        self.events.append(f"{body['reason']} {body['involvedObject']['name']}")

    def _answer(self, method: str, path: str, params: Any, body: Any) -> Any:
        if path == STOP:
            if self.is_stopped:
                return {}
            raise NotFoundError("no ConfigMap", reason="NotFound")
        if path == "/api/v1/pods":
            node = params.get("fieldSelector", "").removeprefix("spec.nodeName=").split(",")[0]
            return self._list(p for p in self.pods.values() if node in ("", p.node))
        if path.endswith("/poddisruptionbudgets"):
            return _listed(self.budgets)
        if path == "/api/v1/nodes":
            own = params["fieldSelector"].removeprefix("metadata.name!=").split(",")[0]
            return _listed([node for node in self.nodes if node["metadata"]["name"] != own])
        parts = path.split("/")
        if "deployments" in parts:
            name = parts[-1]
            selector = {"matchLabels": {"app": name}}
            spec = {"replicas": self.replicas[name], "selector": selector}
            return {"metadata": {"name": name, "namespace": parts[-3]}, "spec": spec, "status": {}}
        if path.endswith("/pods"):
            label = params["labelSelector"].removeprefix("app=")
            return self._list(p for p in self.pods.values() if p.deployment == label)
        if method == "POST":
            return self._evict(path.removesuffix("/eviction"), body)
        if method == "PATCH":
            annotations = self._named(path).changes.setdefault("annotations", {})
            annotations.update(body["metadata"]["annotations"])
        return self._manifest(self._named(path))

    def _evict(self, path: str, body: Any) -> Any:
        pod, options = self._named(path), body["deleteOptions"]
        if pod.uid != options["preconditions"]["uid"]:
            raise failed_with(ConflictError("the UID differs"), 409)
        if "dryRun" not in options:
            if pod.gone_at is None:
                self._delete(pod)
            else:
                self.accepted.append(Accepted(self.now(), pod, (), 0, 0))
        return {}

    def _named(self, path: str) -> SimulatedPod:
        namespace, name = path.split("/")[4], path.split("/")[6]
        for pod in self.pods.values():
            if (pod.namespace, pod.name) == (namespace, name):
                return pod
        raise failed_with(NotFoundError(f"{name} does not exist", reason="NotFound"), 404)

    def _list(self, pods: Iterator[SimulatedPod]) -> Any:
        return _listed([self._manifest(pod) for pod in pods])

    def _manifest(self, pod: SimulatedPod) -> Any:
        labels = {"pod-template-hash": "h", "app": pod.deployment} if pod.deployment else {}
        owner = {"kind": "ReplicaSet", "name": f"{pod.deployment}-h", "controller": True}
        is_ready = pod.ready_at <= self.now()
        changes = dict(pod.changes)
        return {
            "metadata": {
                "name": pod.name, "namespace": pod.namespace, "uid": pod.uid,
                "labels": labels | changes.get("labels", {}),
                "annotations": changes.get("annotations", {}),
                "ownerReferences": [owner] if pod.deployment else changes.get("owners", []),
                "deletionTimestamp": format_time(pod.killed_at) if pod.killed_at else None,
                "deletionGracePeriodSeconds": changes.get("grace") if pod.killed_at else None,
            },
            "spec": {
                "nodeName": pod.node,
                "containers": [{"name": "main", "resources": changes.get("resources", {})}],
                "tolerations": changes.get("tolerations", []),
                "volumes": changes.get("volumes", []), "priority": changes.get("priority", 5500),
                "terminationGracePeriodSeconds": changes.get("grace"),
            },
            "status": {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": "True" if is_ready else "False"}],
            },
        }  # fmt: skip


def _listed(items: list[Any]) -> Any:
    return {"kind": "SomeList", "metadata": {"resourceVersion": "1"}, "items": items}


def failed_with(error: KubernetesError, status: int, *causes: str) -> KubernetesError:
    """The error with the status and the causes of its answer."""
    error.status = status
    error.causes = causes
    return error


def _may_hide(failure: Exception) -> bool:
    """Whether the server may have evicted although the client sees this failure."""
    if not isinstance(failure, KubernetesError):
        return True
    return failure.status in (None, 500, 504) and not isinstance(failure, ApiRefusedError)


def random_failure(random: Random, *, often: float) -> Exception | None:
    """One of the answers that an API server, a proxy or the network may give."""
    if random.random() >= often:
        return None
    kind = random.randrange(7)
    if kind == 0:
        busy = ApiUnavailableError("429 slow down", retry_after_seconds=3.0, was_done=False)
        return failed_with(busy, 429)
    if kind == 1:
        error = ApiUnavailableError("429 budget", was_done=False)
        return failed_with(error, 429, "DisruptionBudget")
    if kind == 2:
        return failed_with(ApiUnavailableError("500 broken"), 500)
    if kind == 3:
        return failed_with(ApiUnavailableError("504 gateway"), 504)
    if kind == 4:
        return failed_with(ConflictError("409 conflict"), 409)
    if kind == 5:
        return ApiRefusedError("no reason")
    return ApiUnavailableError("no answer")


def violations(
    accepted: list[Accepted], limits: MigrationLimits, per_minute: float, replicas: dict[str, int]
) -> list[str]:
    """The limits that the accepted evictions exceed."""
    problems: set[str] = set()
    counts = Counter(eviction.pod.uid for eviction in accepted)
    problems.update("twice" for count in counts.values() if count > 1)
    for number, eviction in enumerate(accepted):
        pod, others = eviction.pod, eviction.leaving
        before = accepted[:number]
        _above(problems, "global", len(others) + 1, limits.max_migrating_globally)
        on_node = sum(other.node == pod.node for other in others) + 1
        _above(problems, "node", on_node, limits.max_migrating_per_node)
        in_namespace = sum(other.namespace == pod.namespace for other in others) + 1
        _above(problems, "namespace", in_namespace, limits.max_migrating_per_namespace)
        if pod.deployment is not None:
            count = replicas[pod.deployment]
            most = workload_limit(count, limits.max_migrating_per_workload)
            _above(problems, "workload", eviction.moving, most)
            most = workload_limit(count, limits.max_unavailable_per_workload)
            _above(problems, "unavailable", eviction.unavailable, most)
        recent = [e for e in before if eviction.at - e.at < limits.cycle_seconds]
        same = sum(e.pod.node == pod.node for e in recent) + 1
        _above(problems, "cycle of a node", same, limits.cycle_per_node)
        same = sum(e.pod.namespace == pod.namespace for e in recent) + 1
        _above(problems, "cycle of a namespace", same, limits.cycle_per_namespace)
        _above(problems, "cycle", len(recent) + 1, limits.cycle_total)
        if before and eviction.at - before[-1].at < 60.0 / per_minute - 1e-6:
            problems.add("rate")
    problems.update(_exceeded_buckets(accepted, limits, replicas))
    return sorted(problems)


def _exceeded_buckets(
    accepted: list[Accepted], limits: MigrationLimits, replicas: dict[str, int]
) -> Iterator[str]:
    """Limiters whose evictions within some time are more than the burst and what time adds."""
    for name, limiter in (
        ("workload limiter", limits.workload_limiter),
        ("namespace limiter", limits.namespace_limiter),
    ):
        times: dict[str, list[float]] = {}
        for eviction in accepted:
            of_workload = name == "workload limiter"
            key = eviction.pod.deployment if of_workload else eviction.pod.namespace
            if key is not None and limiter.duration_seconds > 0:
                times.setdefault(key, []).append(eviction.at)
        for key, at in times.items():
            setting = limiter.max_migrating
            if name == "workload limiter":
                unset = setting is None
                setting = limits.max_migrating_per_workload if unset else setting
                setting = workload_limit(replicas[key], setting)
            if not isinstance(setting, int):
                continue
            rate = setting / limiter.duration_seconds
            for first in range(len(at)):
                for last in range(first, len(at)):
                    most = limiter.burst + (at[last] - at[first]) * rate
                    if last - first + 1 > most + 1e-6:
                        yield name


def _above(problems: set[str], name: str, count: int, limit: int | None) -> None:
    if limit is not None and count > limit:
        problems.add(name)
