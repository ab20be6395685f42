"""A node of this machine that asks for evictions, in a cluster whose other node has room.

The control plane has the node `NODE` with two Prod pods and one of two replicas of a StatefulSet of
Batch, and the node `SPARE` with the other replica. KWOK simulates the kubelets at the API server.
The processes of a Prod pod and of the Batch pod of `NODE` run in real cgroups, and its exporter and
its node actuator are processes, as are watcher, worker, planner and evictor.
"""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from pipeline.clock import SystemClock
from pipeline.local.control_plane import ControlPlane
from pipeline.local.replayed_usage import NODE_CORES, NODE_GIB, ReplayedUsage
from pipeline.settings import Settings
from pipeline.tasks import cancel_tasks
from pipeline.topics.actions import ActionRecord
from pipeline.topics.codec import Record, decode_json, encode_json
from pipeline.topics.eviction_plans import EvictionPlanRecord
from pipeline.topics.eviction_requests import EvictionRequestRecord
from pipeline.topics.registry import ACTIONS, EVICTION_PLANS, EVICTION_REQUESTS, Topic
from tests.broker import flags_of, messages, send
from tests.cgroup_tree import cgroup_tree
from tests.chaos.audit_log import Deletion, Eviction, read_events, replay
from tests.cluster.objects import (
    Object,
    apply,
    deployment,
    event_text,
    items,
    named,
    node,
    write_policy,
)
from tests.cluster.roles import Role, worker
from tests.integration.actuated_node import BEST_EFFORT, NODE, Node
from tests.processes import springtide, until

SPARE = "spare-node"
BURSTABLE = "kubepods/burstable"
BATCH_POD = "batch-0"
"""The pod of the StatefulSet that runs on `NODE`."""
REPLICAS, PROD_PODS = 2, 2
BURN = "while True: pass"
BATCH_CPU = "kubernetes.io/batch-cpu"
REQUESTED = 2000
"""Batch-cpu in millicores that a replica requests: as much as `NODE` offers."""
ACT = ("--mode=act", "--features={be_memory_evict: observe}")
"""Flags of a node actuator that asks for evictions by CPU only."""
ACT_ON_MEMORY = ("--mode=act", "--features={be_cpu_evict: off}")
"""Flags of one that asks by memory only, and so at once: usage is always above the threshold."""

Kind = TypeVar("Kind", bound=Record)

# The extender's filters compare requests of Batch with what a worker offers.
COLOCATION = {"enable": True, "nodePredictPolicy": {"coldStartPeriodSeconds": 0}}
# While Prod uses one of two CPUs, Batch may use 0.2 of the 2 that it requests.
THRESHOLDS = {
    "enable": True, "cpuSuppressThresholdPercent": 60, "cpuSuppressPolicy": "cfsQuota",
    "cpuEvictBESatisfactionLowerPercent": 40, "cpuEvictBESatisfactionUpperPercent": 60,
    "memoryEvictThresholdPercent": 3,
}  # fmt: skip


def descheduling(plan_seconds: int) -> Object:
    """The configuration of planner and evictor; a plan is valid for so long."""
    return {
        "apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerConfiguration",
        "profiles": [
            {
                "name": "requests",
                "plugins": {"balance": {"enabled": [{"name": "NodeRequests"}]}},
                "pluginConfig": [
                    {"name": "NodeRequests", "args": {}},
                    {"name": "MigrationController", "args": {"defaultJobTTL": f"{plan_seconds}s"}},
                ],
            }
        ],
    }  # fmt: skip


def _stateful_set() -> Object:
    labels = {"koordinator.sh/priority-class": "koord-batch", "koordinator.sh/qosClass": "BE"}
    created = deployment("batch", REPLICAS, **{BATCH_CPU: str(REQUESTED)})
    created["kind"] = "StatefulSet"
    created["spec"]["serviceName"] = "batch"
    created["spec"]["template"]["metadata"]["labels"] |= labels
    return created


def _prod_deployment() -> Object:
    """Prod pods on `NODE` whose labels offer them for eviction, and of which one might leave."""
    created = deployment("prod", PROD_PODS, cpu="500m")
    created["spec"]["template"]["metadata"]["labels"] |= {
        "koordinator.sh/priority-class": "koord-prod", "koordinator.sh/qosClass": "LS",
        "koordinator.sh/eviction-enabled": "true",
    }  # fmt: skip
    created["spec"]["template"]["spec"]["nodeName"] = NODE
    return created


class AskingNode:
    """The cluster, what runs on its node, and what topics and the API server say about it."""

    def __init__(self, plane: ControlPlane, settings: Settings, node: Node, since: float) -> None:
        self.plane, self.settings, self.node = plane, settings, node
        self._since = since

    # -- the control plane

    def pods(self) -> dict[str, Object]:
        return named(self.plane, "pods")

    def uid(self, name: str = BATCH_POD) -> str:
        """The UID of the pod that has this name now; empty if there is none."""
        return str(self.pods().get(name, {}).get("metadata", {}).get("uid", ""))

    def prod_uids(self) -> set[str]:
        """The UIDs of the Prod pods that are not being deleted."""
        metadata = [pod["metadata"] for pod in items(self.plane, "pods", "-l", "app=prod")]
        return {each["uid"] for each in metadata if "deletionTimestamp" not in each}

    def events(self, name: str = BATCH_POD) -> str:
        return event_text(self.plane, name)

    def evictions(self) -> list[Eviction]:
        """The evictions that the API server accepted since the begin of the test."""
        events = read_events(self.plane.audit_log, self._since)
        found = [request for _, request in replay(events)]
        assert not [r for r in found if isinstance(r, Deletion) and r.agent.startswith("springt")]
        return [r for r in found if isinstance(r, Eviction) and r.is_accepted]

    def allow_no_disruption(self) -> None:
        """Make a disruption budget for the Batch pods that allows none."""
        selector = {"matchLabels": {"app": "batch"}}
        apply(self.plane, {
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": {"name": "batch"}, "spec": {"maxUnavailable": 0, "selector": selector},
        })  # fmt: skip

    def let_plans_last(self, seconds: int) -> None:
        """Write the configuration of planner and evictor; plans are valid for so long."""
        name = self.settings.kubernetes.descheduler_config_name
        write_policy(self.plane, name, koord_descheduler_config=descheduling(seconds))

    # -- the node

    def run_pods(self) -> str:
        """Let a Prod pod and the Batch pod want all CPU that they get, each in its cgroup; returns
        that of the Batch pod."""
        prod, batch = f"{BURSTABLE}/pod{min(self.prod_uids())}", f"{BEST_EFFORT}/pod{self.uid()}"
        for path in (prod, batch):
            self.node.tree.make(path)
            self.node.tree.python(path, BURN)
        return batch

    # -- topics

    async def _records(self, topic: Topic, kind: type[Kind]) -> list[Kind]:
        records = await messages(self.settings.kafka, topic)
        return [decode_json(kind, record.value) for record in records]

    async def requests(self) -> list[EvictionRequestRecord]:
        return await self._records(EVICTION_REQUESTS, EvictionRequestRecord)

    async def plans(self) -> list[EvictionPlanRecord]:
        return await self._records(EVICTION_PLANS, EvictionPlanRecord)

    async def actions(self, action: str, *outcomes: str) -> list[ActionRecord]:
        """The actions of this name, with one of these outcomes if there are any."""
        found = await self._records(ACTIONS, ActionRecord)
        return [a for a in found if a.action == action and (not outcomes or a.outcome in outcomes)]

    async def repeat(self, *requests: EvictionRequestRecord) -> None:
        values = [(NODE, encode_json(request)) for request in requests]
        await send(self.settings.kafka, EVICTION_REQUESTS, *values)

    def plan_now(self) -> str:
        """What `springtide plan` prints: also why a pod stays."""
        policy = self.node.folder / "descheduler.json"
        policy.write_text(json.dumps(descheduling(60)))
        argv = springtide("plan", *flags_of(self.settings.kafka), "--policy", str(policy))
        run = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        return run.stdout + run.stderr

    # -- roles

    def planner(self) -> Role:
        return Role("planner", self.settings)

    def evictor(self, mode: str = "act") -> Role:
        return Role("evictor", self.settings, "--mode", mode)


@asynccontextmanager
async def asking_node(
    plane: ControlPlane, settings: Settings, folder: Path
) -> AsyncIterator[AskingNode]:
    """The cluster with its pods bound, exporter, watcher and worker at work; no node actuator, no
    planner and no evictor yet."""
    kafka, clock, name = settings.kafka, SystemClock(), f"{settings.kafka.topic_prefix}-descheduler"
    kubernetes = msgspec.structs.replace(settings.kubernetes, descheduler_config_name=name)
    settings = msgspec.structs.replace(settings, kubernetes=kubernetes)
    since = clock.now()
    write_policy(
        plane, kubernetes.config_name, colocation_config=COLOCATION,
        resource_threshold_config={"clusterStrategy": THRESHOLDS},
    )  # fmt: skip
    with ExitStack() as stack:
        tree = stack.enter_context(cgroup_tree("evictions"))
        node = Node(kafka, tree, folder, cgroups=[BEST_EFFORT, BURSTABLE])
        stack.callback(node.stop)
        asking = AskingNode(plane, settings, node, since)
        asking.let_plans_last(60)
        await _bind_pods(asking)
        stack.enter_context(Role("watcher", settings))
        stack.enter_context(worker(settings))
        usage = ReplayedUsage(
            kafka, clock, lambda: {SPARE: {}}, lambda *_: (0.0, 0.0), windows=1, window_seconds=5
        )
        reporting = asyncio.create_task(usage.run())
        try:
            yield asking
        finally:
            await cancel_tasks(reporting)


async def _bind_pods(asking: AskingNode) -> None:
    """Let the real scheduler bind the first replica to `NODE`, and the next one to `SPARE`. Then
    `NODE` takes no other pod."""

    def are_bound(*names: str) -> bool:
        pods = asking.pods()
        bound = {pod["spec"].get("nodeName") for name, pod in pods.items() if "batch" in name}
        running = [pod["status"]["phase"] == "Running" for pod in pods.values()]
        return bound - {None} == {*names} and running.count(True) == len(names) + PROD_PODS

    def offer(name: str, cpu: int, memory: int, millicores: int) -> Object:
        amounts: dict[str, Any] = {BATCH_CPU: str(millicores)}
        return node(name, cpu=str(cpu), memory=f"{memory}Gi", **amounts)

    nodes = offer(NODE, 2, 24, REQUESTED), offer(SPARE, NODE_CORES, NODE_GIB, 2 * REQUESTED)
    apply(asking.plane, nodes[0], _prod_deployment(), _stateful_set())
    await until(lambda: are_bound(NODE), 120, asking.pods)
    asking.plane.kubectl("cordon", NODE)
    apply(asking.plane, nodes[1])
    await until(lambda: are_bound(NODE, SPARE), 120, asking.pods)
