"""A storm of plans and failures on two evictors, drawn by a seed.

Fifty nodes are hot at once, and their usage flaps around the threshold: each time it crosses, there
is a new plan, made by a list of pods that may be old, sent once or several times, and not in order.
Requests of the evictors fail, answers to evictions are lost or late. Leaders are killed between the
call and its record, and one is paused until another leads. Only a seed decides what happens at the
n-th eviction; when that is depends on the machine.
"""

import asyncio
import random
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from aiohttp import web
from aiokafka import AIOKafkaProducer

from pipeline.clock import SystemClock
from pipeline.kafka.client import client_options
from pipeline.kafka.topic_admin import apply_topics
from pipeline.kube.api_client import open_api
from pipeline.local.control_plane import ControlPlane
from pipeline.settings import KafkaSettings, KubernetesSettings, Settings
from pipeline.times import format_time
from pipeline.topics.codec import encode_json
from pipeline.topics.eviction_plans import EvictionPlanRecord, LeavingPod
from pipeline.topics.registry import EVICTION_PLANS
from tests.chaos.audit_log import Eviction
from tests.chaos.eviction_monitor import accepted, violations
from tests.chaos.eviction_stage import EvictionStage, configuration, holding
from tests.chaos.role_process import RoleProcess
from tests.cluster.objects import Object, deployment, node, pod, service_account
from tests.kube.fault_proxy import FaultProxy, served
from tests.processes import ROOT, until

HOT_NODES: Final = 50
NODES: Final = tuple(f"hot-{number}" for number in range(HOT_NODES))
NAMESPACES: Final = ("storm-shop", "storm-batch")
PER_MINUTE: Final = 120.0
LIMITS: Final[Mapping[str, Any]] = {
    "maxMigratingGlobally": 8, "maxMigratingPerNode": 2, "maxMigratingPerNamespace": 6,
    "maxMigratingPerWorkload": 2, "maxUnavailablePerWorkload": 3,
    "skipCheckExpectedReplicas": False,
    # So long an eviction counts after a failure that may have been a success.
    "defaultJobTTL": "20s",
    "objectLimiters": {
        "workload": {"duration": "60s", "maxMigrating": 6, "burst": 2},
        "namespace": {"duration": "60s", "maxMigrating": 60, "burst": 6},
    },
}  # fmt: skip
CAPS: Final[Mapping[str, Any]] = {
    "deschedulingInterval": "5s", "maxNoOfPodsToEvictTotal": 7, "maxNoOfPodsToEvictPerNode": 2,
    "maxNoOfPodsToEvictPerNamespace": 5,
}  # fmt: skip
LEAVING_SECONDS: Final = 8.0
"""An evicted pod leaves its node within this time."""
PAUSE_SECONDS: Final = 25.0
"""Longer than a lease lasts."""
FAILING: Final = 0.4
"""The share of evictions that fail in some way."""
FAILURES: Final = (409, 429, 500, 504, "slow", "silent", "late")
"""Of evictions. `silent` and `late` evict, and the answer is lost at once, or after a time-out."""
LONGEST_SECONDS: Final = 500.0
_THRESHOLD: Final = 75.0
_REQUEST_SECONDS: Final = 3.0


def objects() -> list[Object]:
    """The hot nodes, Deployments, a StatefulSet whose pods keep their names, and bare pods."""
    where = {"nodeSelector": {"storm": "hot"}}
    workloads = []
    for number in range(8):
        manifest = deployment(f"web-{number}", 10)
        if number == 0:
            manifest["kind"] = "StatefulSet"
            manifest["spec"] |= {"serviceName": "db", "podManagementPolicy": "Parallel"}
        manifest["metadata"]["namespace"] = NAMESPACES[number % 2]
        template = holding(manifest["spec"]["template"], "")
        del template["metadata"]["namespace"]
        template["spec"] |= where
        workloads.append(manifest)
    bare = [
        holding(pod(f"bare-{number}", on=name), NAMESPACES[number % 2])
        for number, name in enumerate(NODES)
    ]
    return [*(node(name, labels={"storm": "hot"}) for name in NODES), *workloads, *bare]


class EvictorProxy(FaultProxy):
    """The API server of one evictor, of which many evictions fail."""

    def __init__(self, plane: ControlPlane, kubeconfig: Path, seed: str, storm: "Storm") -> None:
        super().__init__(plane, seed=seed, kubeconfig=kubeconfig)
        self.share = 0.02
        self.role: RoleProcess | None = None
        self._storm = storm

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/eviction") and b'"dryRun"' not in await request.read():
            self._storm.evicting(self, is_done=False)
        return await super().handle(request)

    def _fault(self, request: web.Request) -> int | str | None:
        if not request.path.endswith("/eviction"):
            return super()._fault(request)
        if self._rng.random() >= FAILING:
            return None
        return self._draw(*FAILURES)


class Storm:
    """A stage with two evictors behind proxies, plans and failures."""

    def __init__(self, stage: EvictionStage, seed: int) -> None:
        self.stage = stage
        # Of each task its own: which of them is first depends on the machine.
        self._rng, self._leaving_rng = (random.Random(f"{seed}/{name}") for name in "ab")
        self.accepted = self.kills = self.pauses = 0
        self.roles: list[RoleProcess] = []
        self.proxies: list[EvictorProxy] = []
        # At these evictions, of all evictors, the leader dies or pauses.
        self._kill_after = {self._rng.randrange(3, 6)}
        self._kill_before = {self._rng.randrange(10, 15)}
        self._pause_after = self._rng.randrange(20, 25)
        self._began = 0
        self._usage = dict.fromkeys(NODES, _THRESHOLD + 10.0)
        self._hot: set[str] = set()
        self._listed: list[Object] = []
        self._made = 0

    # -- failures

    def evicting(self, proxy: EvictorProxy, *, is_done: bool) -> None:
        """Note that an eviction begins, or was accepted, and kill its evictor if it is time."""
        assert proxy.role is not None
        if not is_done:
            self._began += 1
            if self._began in self._kill_before:
                self._kill(proxy.role)
            return
        self.accepted += 1
        if self.accepted in self._kill_after:
            self._kill(proxy.role)
        if self.accepted == self._pause_after:
            proxy.role.signal(signal.SIGSTOP)
            self.pauses += 1
            asyncio.get_running_loop().call_later(PAUSE_SECONDS, proxy.role.signal, signal.SIGCONT)

    def _kill(self, role: RoleProcess) -> None:
        self.kills += 1
        role.kill()

    async def restart_ended(self) -> None:
        """Restart evictors that ended, as Kubernetes does, until cancelled."""
        while True:
            for role in self.roles:
                role.start()
            await asyncio.sleep(1.0)

    # -- the cluster

    async def let_pods_leave(self) -> None:
        """Let evicted pods leave their nodes, each after a while, until cancelled."""
        leaves_at: dict[str, float] = {}
        while True:
            self._listed = await self.stage.pods()
            now = time.monotonic()
            due = []
            for item in self._listed:
                metadata = item["metadata"]
                if metadata.get("deletionTimestamp"):
                    at = leaves_at.setdefault(
                        metadata["uid"], now + self._leaving_rng.uniform(0.0, LEAVING_SECONDS)
                    )
                    if now >= at:
                        due.append(item)
            await self.stage.let_go(due)
            await asyncio.sleep(0.5)

    # -- plans

    async def plan(self, producer: AIOKafkaProducer) -> None:
        """Publish plans for nodes whose usage crosses the threshold, until cancelled."""
        topic = EVICTION_PLANS.full_name(self.stage.settings.kafka.topic_prefix)
        late: list[tuple[float, EvictionPlanRecord]] = []
        pods: list[Object] = []
        while True:
            if self._rng.random() < 0.3 or not pods:
                pods = self._listed  # else what was there some seconds ago
            late += self._new_plans(pods)
            due = [plan for at, plan in late if at <= time.time()]
            late = [item for item in late if item[0] > time.time()]
            self._rng.shuffle(due)
            for plan in due:
                await producer.send_and_wait(topic, encode_json(plan), key=plan.node.encode())
            await asyncio.sleep(1.0)

    def _new_plans(self, pods: list[Object]) -> list[tuple[float, EvictionPlanRecord]]:
        """Let usage flap; a plan for each node that became hot, and when it is published."""
        new = []
        for name in NODES:
            on_node = [item for item in pods if item["spec"].get("nodeName") == name]
            if self._usage[name] > _THRESHOLD and name not in self._hot and on_node:
                self._hot.add(name)
                plan = self._plan_for(name, on_node)
                for _ in range(self._rng.choice((1, 1, 2, 3))):
                    new.append((time.time() + self._rng.choice((0.0, 0.0, 1.0, 5.0)), plan))
            elif self._usage[name] <= _THRESHOLD:
                self._hot.discard(name)
            self._usage[name] += self._rng.uniform(-10.0, 10.0)
            self._usage[name] = min(max(self._usage[name], 60.0), 90.0)
        return new

    def _plan_for(self, name: str, on_node: list[Object]) -> EvictionPlanRecord:
        self._made += 1
        now, chosen = time.time(), self._rng.sample(on_node, min(len(on_node), 3))
        return EvictionPlanRecord(
            node=name, id=f"storm-{self._made}", at=format_time(now),
            valid_until=format_time(now + self._rng.choice((10.0, 30.0, 60.0))),
            planner="storm", strategy="storm", why=f"cpu {self._usage[name]:.0f}% of 75%",
            pods=tuple(LeavingPod(uid=p["metadata"]["uid"], pod_class="mid") for p in chosen),
        )  # fmt: skip

    def has_happened(self, evictions: int) -> bool:
        """Whether all failures have happened, and so many pods were evicted."""
        expected = len(self._kill_after) + len(self._kill_before)
        return self.kills == expected and self.pauses == 1 and self.accepted >= evictions

    @property
    def kinds(self) -> set[str]:
        """The kinds of failures that evictions met."""
        faults = {fault for proxy in self.proxies for fault in proxy.faults}
        return {fault.split()[1] for fault in faults if fault.startswith("POST")}

    def state(self) -> str:
        """What has happened so far, and the ends of the logs."""
        text = f"{self.accepted} evictions, {self.kills} kills, {self.pauses} pauses"
        return "\n".join([text, *(role.tail() for role in self.roles)])


class StormResult(NamedTuple):
    """What evictions exceeded, the evictions, and the kinds of failures that they met."""

    problems: list[str]
    evictions: list[Eviction]
    failures: set[str]


async def run_storm(
    plane: ControlPlane, kafka: KafkaSettings, folder: Path, seed: int, evictions: int
) -> StormResult:
    """Run until so many pods were evicted, and all failures have happened. The evictors come as
    their service account. Topics of `kafka` and objects of the cluster are created here."""
    account = service_account(plane, "evictor", ROOT)
    kubernetes = KubernetesSettings(
        kubeconfig=plane.kubeconfig(), request_timeout_seconds=_REQUEST_SECONDS
    )
    settings = Settings(kafka=kafka, kubernetes=kubernetes)
    await apply_topics(kafka)
    configured = configuration(LIMITS, CAPS)
    async with open_api(kubernetes, SystemClock(), name="storm") as api:
        stage = EvictionStage(plane, api, settings, folder, configured, PER_MINUTE, NAMESPACES)
        try:
            async with running_storm(stage, account, seed) as storm:
                await until(lambda: storm.has_happened(evictions), LONGEST_SECONDS, storm.state)
            observed = await stage.observed()
        finally:
            await stage.clear()
    found = [f"storm of seed {seed}: {violation}" for violation in violations(observed)]
    return StormResult(found, accepted(observed.events), storm.kinds)


@asynccontextmanager
async def running_storm(stage: EvictionStage, kubeconfig: Path, seed: int) -> AsyncIterator[Storm]:
    """A storm on two evictors, which are killed at the end."""
    storm = Storm(stage, seed)
    await stage.create(*objects())
    await until(lambda: _all_run(stage), 180)
    async with AsyncExitStack() as stack:
        for number in range(2):
            proxy = EvictorProxy(stage.plane, kubeconfig, f"{seed}/{number}", storm)
            proxy.on_write = _noting(storm, proxy)
            await stack.enter_async_context(served(proxy))
            by_proxy = stage.plane.kubeconfig(server=proxy.url)
            proxy.role = stage.evictor(f"evictor-{number}", by_proxy)
            storm.roles.append(proxy.role)
            storm.proxies.append(proxy)
            stack.callback(proxy.role.kill)
            stack.callback(proxy.role.signal, signal.SIGCONT)
        options = client_options(stage.settings.kafka)
        producer = await stack.enter_async_context(AIOKafkaProducer(**options))
        group = await stack.enter_async_context(asyncio.TaskGroup())
        tasks = [
            group.create_task(work)
            for work in (storm.restart_ended(), storm.let_pods_leave(), storm.plan(producer))
        ]
        yield storm
        for task in tasks:
            task.cancel()


def _noting(storm: Storm, proxy: EvictorProxy) -> Callable[[str, str, bytes], None]:
    def note(method: str, path: str, body: bytes) -> None:
        if path.endswith("/eviction"):
            options = msgspec.json.decode(body).get("deleteOptions", {})
            if not options.get("dryRun"):
                storm.evicting(proxy, is_done=True)

    return note


async def _all_run(stage: EvictionStage) -> bool:
    pods = await stage.pods()
    return len(pods) == 8 * 10 + HOT_NODES and all(p["status"]["phase"] == "Running" for p in pods)
