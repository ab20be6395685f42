"""A short storm for each limit of evictions, in which this limit alone is tight.

Each has an evictor, nodes, namespaces and topics of its own, so that all run at the same time. All
pods of the storm are planned at once, and hold on to their nodes when they are evicted: the evictor
may evict as many as the limit allows, and without the limit it evicts them all.
"""

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from aiokafka import AIOKafkaProducer

from pipeline.kafka.client import client_options
from pipeline.kube.api_client import Api
from pipeline.local.control_plane import ControlPlane
from pipeline.local.local_kafka import LocalKafka
from pipeline.settings import KubernetesSettings, Settings
from pipeline.times import format_time
from pipeline.topics.codec import encode_json
from pipeline.topics.eviction_plans import EvictionPlanRecord, LeavingPod
from pipeline.topics.registry import EVICTION_PLANS
from tests.broker import own_topics
from tests.chaos.eviction_monitor import Violation, violations
from tests.chaos.eviction_stage import EvictionStage, configuration, holding
from tests.cluster.objects import Object, deployment, node, pod
from tests.processes import until

PODS: Final = 8
VALID_SECONDS: Final = 60.0
HELD_SECONDS: Final = 15.0
"""An evictor, which tries waiting pods again every few seconds, evicts no more in this time."""
FAST: Final = 6000.0
_FINAL: Final = ("done", "refused", "failed")

_LOOSE_BUCKET: Final = {"duration": "60s", "maxMigrating": 100, "burst": 100}
_LOOSE_ARGS: Final[Mapping[str, Any]] = {
    "maxMigratingGlobally": 100, "maxMigratingPerNode": 100, "maxMigratingPerNamespace": 100,
    "maxMigratingPerWorkload": "100%", "maxUnavailablePerWorkload": "100%",
    "evictQPS": 100, "evictBurst": 10,
    "objectLimiters": {"workload": _LOOSE_BUCKET, "namespace": _LOOSE_BUCKET},
}  # fmt: skip
_LOOSE_CAPS: Final[Mapping[str, Any]] = {
    "deschedulingInterval": "3600s", "maxNoOfPodsToEvictTotal": 100,
    "maxNoOfPodsToEvictPerNode": 100, "maxNoOfPodsToEvictPerNamespace": 100,
}  # fmt: skip
_TIGHT_BUCKET: Final = {"duration": "3600s", "maxMigrating": 2, "burst": 2}


class LimitStorm(NamedTuple):
    """What is tight, how many pods may leave (by a slow rate the first), and whether they are those
    of a Deployment."""

    allowed: int
    args: Mapping[str, Any] = {}
    caps: Mapping[str, Any] = {}
    of_deployment: bool = False
    per_minute: float = FAST


# Bare pods stand on two nodes and in two namespaces, two in each combination.
STORMS: Final[Mapping[str, LimitStorm]] = {
    "global": LimitStorm(3, {"maxMigratingGlobally": 3}),
    "node": LimitStorm(4, {"maxMigratingPerNode": 2}),
    "namespace": LimitStorm(4, {"maxMigratingPerNamespace": 2}),
    "workload": LimitStorm(2, {"maxMigratingPerWorkload": 2}, of_deployment=True),
    "unavailable": LimitStorm(2, {"maxUnavailablePerWorkload": 2}, of_deployment=True),
    "workload limiter": LimitStorm(
        2,
        {"objectLimiters": {"workload": _TIGHT_BUCKET, "namespace": _LOOSE_BUCKET}},
        of_deployment=True,
    ),
    "namespace limiter": LimitStorm(
        4, {"objectLimiters": {"workload": _LOOSE_BUCKET, "namespace": _TIGHT_BUCKET}}
    ),
    "cycle of a node": LimitStorm(2, caps={"maxNoOfPodsToEvictPerNode": 1}),
    "cycle of a namespace": LimitStorm(2, caps={"maxNoOfPodsToEvictPerNamespace": 1}),
    "cycle": LimitStorm(2, caps={"maxNoOfPodsToEvictTotal": 2}),
    "rate": LimitStorm(3, per_minute=6.0),
    "evictQPS": LimitStorm(3, {"evictQPS": "0.1", "evictBurst": 2}),
}
"""By the name that the monitor gives to the limit."""


class LimitRun:
    """One storm, in which the evictor may have seeded bugs."""

    def __init__(self, stage: EvictionStage, storm: LimitStorm, name: str) -> None:
        self.stage, self.storm, self.name = stage, storm, name
        self.nodes = [f"{name}-{number}" for number in range(2)]
        self._reached_at: float | None = None

    async def prepare(self) -> None:
        """Create nodes and pods; return when all pods run, and no replacement can."""
        stage, labels = self.stage, {"storm": self.name}
        await stage.create(*(node(name, labels=labels) for name in self.nodes), *self._pods())
        await until(self._are_running, 120)
        for name in self.nodes:
            await stage.api.patch(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": True}})

    def _pods(self) -> list[Object]:
        first, second = self.stage.namespaces
        if not self.storm.of_deployment:
            return [
                holding(pod(f"bare-{n}", on=self.nodes[n % 2]), (first, second)[n // 2 % 2])
                for n in range(PODS)
            ]
        web = deployment("web", PODS)
        web["metadata"]["namespace"] = first
        template = holding(web["spec"]["template"], first)
        del template["metadata"]["namespace"]
        template["spec"]["nodeSelector"] = {"storm": self.name}
        return [web]

    async def _are_running(self) -> bool:
        pods = await self.stage.pods()
        return len(pods) == PODS and all(p["status"]["phase"] == "Running" for p in pods)

    async def plan_all(self) -> list[str]:
        """Plan to evict all pods, by a plan for each node; return their UIDs."""
        settings, now = self.stage.settings, time.time()
        pods = await self.stage.pods()
        topic = EVICTION_PLANS.full_name(settings.kafka.topic_prefix)
        async with AIOKafkaProducer(**client_options(settings.kafka)) as producer:
            for name in self.nodes:
                uids = [p["metadata"]["uid"] for p in pods if p["spec"].get("nodeName") == name]
                plan = EvictionPlanRecord(
                    node=name, id=f"{name}", at=format_time(now),
                    valid_until=format_time(now + VALID_SECONDS), planner="storm",
                    strategy="storm", why="all pods at once",
                    pods=tuple(LeavingPod(uid=uid, pod_class="mid") for uid in uids),
                )  # fmt: skip
                await producer.send_and_wait(topic, encode_json(plan), key=name.encode())
        return [p["metadata"]["uid"] for p in pods]

    async def is_over(self, uids: list[str], *, is_limited: bool) -> bool:
        """Whether each pod was evicted, or was refused at the end of its plan. With a limit it is
        enough that as many pods as it allows were evicted, and then none for a while."""
        actions = await self.stage.actions()
        judged = {uid for a in actions if a.outcome in _FINAL for uid in a.before.values() if uid}
        evicted = {uid for a in actions if a.outcome == "done" for uid in a.before.values() if uid}
        if self._reached_at is None and len(evicted) >= self.storm.allowed:
            self._reached_at = time.monotonic()
        await asyncio.sleep(2.0)
        reached_at = self._reached_at if is_limited else None
        has_held = reached_at is not None and time.monotonic() > reached_at + HELD_SECONDS
        return has_held or judged.issuperset(uids)


def stage_of(
    plane: ControlPlane, api: Api, broker: LocalKafka, folder: Path, number: int, storm: LimitStorm
) -> EvictionStage:
    """The stage of a storm, with namespaces of its number."""
    namespaces = [f"storm-{number}-{letter}" for letter in "ab"]
    kubernetes = KubernetesSettings(
        kubeconfig=plane.kubeconfig(), namespace=namespaces[0],
        descheduler_config_name=namespaces[0],
    )  # fmt: skip
    settings = Settings(kafka=own_topics(broker), kubernetes=kubernetes)
    configured = configuration({**_LOOSE_ARGS, **storm.args}, {**_LOOSE_CAPS, **storm.caps})
    return EvictionStage(plane, api, settings, folder, configured, storm.per_minute, namespaces)


async def run_storm(
    run: LimitRun, bugs: tuple[str, ...], all_ready: asyncio.Barrier
) -> tuple[int, list[Violation]]:
    """Run a storm; return how many pods were evicted, and what that exceeded. A leader begins with
    a look at all pods of the cluster: `all_ready` keeps back evictions until all leaders have."""
    stage = run.stage
    evictor = stage.evictor(f"evictor-{run.name}", stage.plane.kubeconfig(), bugs)
    try:
        await run.prepare()
        evictor.start()
        await until(lambda: '"ready"' in evictor.text(), 120, evictor.tail)
        await all_ready.wait()
        uids = await run.plan_all()
        await until(lambda: run.is_over(uids, is_limited=not bugs), 240, evictor.tail)
        evictor.kill()
        found, pods = violations(await stage.observed()), await stage.pods()
    finally:
        evictor.kill()
        await stage.clear()
    return sum("deletionTimestamp" in pod["metadata"] for pod in pods), found
