"""Hot nodes on real parts, in a closed loop: whatever leaves a node comes back somewhere.

The pods of a Deployment make their node hot. Planner and evictor relieve it, controllers replace
what leaves, a real scheduler asks the extender where to put it, and usage follows the pods. Then
the load falls, so that the node that was relieved is the coolest of all, and the replacements are
deleted: once more they have to be placed. A cycle of load takes a minute and a half; if there are
more, the load comes back. All of that lies within the rest of the workload.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from pipeline.clock import SystemClock
from pipeline.kafka.topic_admin import apply_topics
from pipeline.kube.api_client import open_api
from pipeline.local import hot_node_scenario as scenario
from pipeline.local.control_plane import ControlPlane, local_control_plane
from pipeline.local.port_probe import HOST, free_port
from pipeline.local.replayed_usage import NODE_CORES, PodsByNode, ReplayedUsage
from pipeline.settings import KafkaSettings, KubernetesSettings, Settings
from pipeline.topics.alerts import AlertRecord
from pipeline.topics.node_views import NodeViewRecord
from pipeline.topics.registry import ALERTS, NODE_VIEWS
from tests.chaos.audit_log import AUDIT_POLICY, Eviction
from tests.chaos.eviction_evidence import read_records
from tests.chaos.eviction_monitor import Violation, accepted, violations
from tests.chaos.eviction_stage import EvictionStage
from tests.chaos.role_process import RoleProcess
from tests.cluster.extender_cluster import UNSCORED
from tests.cluster.objects import Object, deployment, items, service_account
from tests.plane import NAMESPACES
from tests.processes import ROOT, until

HOT: Final = "loop-hot"
SPARES: Final = ("loop-spare-0", "loop-spare-1")
NODES: Final = (HOT, *SPARES)
NAMESPACE: Final = "loop"
REPLICAS: Final = 4
PER_MINUTE: Final = 60.0
_WITH_RBAC: Final = ("watcher", "planner", "evictor")
_SECONDS: Final = 240.0
_SPAN_WINDOWS: Final = scenario.SPAN_SECONDS // scenario.WINDOW_SECONDS
_QUIET_WINDOWS: Final = 600
"""Windows before the load rises: by predicted peaks, too, the node is the coolest when it falls."""
_BUSY, _CALM, _BASE = (share * NODE_CORES for share in (0.18, 0.02, 0.30))
"""Cores of a pod of the Deployment in both phases, and of the pod that each spare node has: with
all pods a node is hot, the nodes are not when one has left for a spare node."""
_POD_BYTES: Final = 2.0**30
_LOOSE_BUCKET: Final = {"duration": "60s", "maxMigrating": 100, "burst": 100}
LIMITS: Final[Mapping[str, Any]] = {
    "defaultJobTTL": "60s", "objectLimiters": {"workload": _LOOSE_BUCKET},
}  # fmt: skip
"""Not these limits keep pods from being evicted again."""

Bugs = Mapping[str, tuple[str, ...]]
"""Names of `seeded_bugs` by role."""
NO_BUGS: Final[Bugs] = {}


class LoopResult(NamedTuple):
    """What was exceeded, the evictions, and how many pods were placed anew while load was low."""

    violations: list[Violation]
    evictions: list[Eviction]
    placed_anew: int


def configuration() -> Object:
    """The policy of the demo, with our limits."""
    of_demo = scenario.DESCHEDULER_CONFIGURATION
    (profile,) = of_demo["profiles"]
    low_node_load, controller = profile["pluginConfig"]
    plugins = [low_node_load, {**controller, "args": LIMITS}]
    # Nodes that stay hot are planned for again after the interval.
    return {
        **of_demo,
        "deschedulingInterval": "10s",
        "profiles": [{**profile, "pluginConfig": plugins}],
    }


class ReliefLoop:
    """The cluster of a loop on a stage. The scheduler of its control plane asks `url`."""

    def __init__(self, stage: EvictionStage, url: str, bugs: Bugs) -> None:
        self.stage, self._is_busy = stage, True
        more: dict[str, Any] = {
            f"{role}.metrics_port": 0 for role in ("watcher", "worker", "planner")
        }
        more |= {
            "worker.id": NAMESPACE, "worker.data_dir": stage.folder / "worker",
            "extender.mode": "act", "extender.host": HOST,
            "extender.port": url.rpartition(":")[2],
        }  # fmt: skip
        self.roles: dict[str, RoleProcess] = {}
        for role in ("watcher", "worker", "extender", "planner"):
            flags = ("--no-supervise",) if role == "worker" else ()
            self.roles[role] = stage.role(
                role, self._kubeconfig(role), bugs.get(role, ()), more, flags
            )
        evictor = stage.evictor("evictor", self._kubeconfig("evictor"), bugs.get("evictor", ()))
        self.roles["evictor"] = evictor

    def _kubeconfig(self, role: str) -> Path:
        if role in _WITH_RBAC:
            return service_account(self.stage.plane, role, ROOT)
        return self.stage.plane.kubeconfig()

    # -- the cluster

    async def prepare(self) -> None:
        """Let the roles work, and all pods of the Deployment run on one node."""
        await apply_topics(self.stage.settings.kafka)
        await self.stage.create(scenario.node_object(HOT))
        for role in self.roles.values():
            role.start()
        await self._create(deployment("web", REPLICAS, cpu="500m", memory="1Gi"))
        await self._until(lambda: self.counts() == {HOT: REPLICAS})
        await self.stage.create(*map(scenario.node_object, SPARES))
        for number, name in enumerate(SPARES):
            await self._create(deployment(f"base-{number}", 1, on=name))
        await self._until(self._are_viewed)

    async def _create(self, manifest: Object) -> None:
        manifest["metadata"]["namespace"] = NAMESPACE
        await self.stage.create(manifest)

    async def _are_viewed(self) -> bool:
        """Whether the worker knows all pods where they are."""
        kafka = self.stage.settings.kafka
        views = await read_records(kafka, NODE_VIEWS, NodeViewRecord)
        known = {view.node: len(view.pods) for view, _ in views}
        return known == {HOT: REPLICAS, **dict.fromkeys(SPARES, 1)}

    async def _until(self, condition: Any) -> None:
        await until(condition, _SECONDS, self.state)

    def state(self) -> str:
        """Where the pods are, and the ends of the logs."""
        logs = (f"-- {name}\n{role.tail()}" for name, role in self.roles.items())
        return "\n".join([str(self.counts()), *logs])

    def pods(self, name: str = "web") -> dict[str, Object]:
        """The running pods of Deployments whose name begins so, by UID."""
        return {
            pod["metadata"]["uid"]: pod
            for pod in items(self.stage.plane, "pods", "-n", NAMESPACE)
            if pod["metadata"]["name"].startswith(name)
            and pod["status"]["phase"] == "Running"
            and "deletionTimestamp" not in pod["metadata"]
        }

    def counts(self) -> dict[str, int]:
        """The number of running pods of the Deployment by node."""
        return dict(Counter(pod["spec"]["nodeName"] for pod in self.pods().values()))

    # -- usage

    def usage(self) -> ReplayedUsage:
        """The usage of all nodes, wherever the pods are."""
        return ReplayedUsage(
            self.stage.settings.kafka, SystemClock(), self._pods_by_node, self._usage_of,
            windows=_QUIET_WINDOWS + _SPAN_WINDOWS, window_seconds=scenario.WINDOW_SECONDS,
        )  # fmt: skip

    def _usage_of(self, pod: str, step: int) -> tuple[float, float]:
        is_busy = self._is_busy and step >= _QUIET_WINDOWS
        cores = _BASE if pod.startswith("base") else _BUSY if is_busy else _CALM
        return cores, _POD_BYTES

    def _pods_by_node(self) -> PodsByNode:
        nodes: dict[str, dict[str, str]] = {name: {} for name in NODES}
        for uid, pod in self.pods("").items():
            nodes[pod["spec"]["nodeName"]][uid] = pod["metadata"]["name"]
        return nodes

    # -- the loop

    async def run(self, cycles: int) -> int:
        """Load that is high and falls, so many times; returns how many pods were placed anew while
        it was low."""
        usage = self.usage()
        await usage.send(_QUIET_WINDOWS + _SPAN_WINDOWS)
        async with asyncio.TaskGroup() as group:  # an error of the usage ends the loop
            sending = group.create_task(usage.run())
            await self._until(self._has_left)
            # A planner without memory plans again.
            await self._wait_windows(usage, 4)
            placed_anew = await self._load_falls(usage)
            for _ in range(cycles - 1):
                self._is_busy = True
                # The average of a span is as high as it gets, and an alert would be open.
                await self._wait_windows(usage, _SPAN_WINDOWS + 1)
                placed_anew += await self._load_falls(usage)
            sending.cancel()
        return placed_anew

    async def _load_falls(self, usage: ReplayedUsage) -> int:
        self._is_busy = False
        await self._wait_windows(usage, 2)
        await self._until(self._has_closed)
        return await self._place_anew()

    def _has_left(self) -> bool:
        """Whether a pod left the hot node, and its replacement runs elsewhere."""
        counts = self.counts()
        return sum(counts.values()) == REPLICAS and counts.get(HOT, 0) < REPLICAS

    async def _has_closed(self) -> bool:
        """Whether the alerts of the node that was hot have closed."""
        alerts = await read_records(self.stage.settings.kafka, ALERTS, AlertRecord)
        of_node = [alert for alert, _ in alerts if alert.node == HOT]
        closed = {alert.id for alert in of_node if alert.transition == "closed"}
        return bool(of_node) and closed == {alert.id for alert in of_node}

    async def _place_anew(self) -> int:
        """Delete the pods that left the node, as their user may; wait for their replacements."""
        gone = {
            uid: pod for uid, pod in self.pods().items() if pod["spec"]["nodeName"] != HOT
        }  # fmt: skip
        names = [pod["metadata"]["name"] for pod in gone.values()]
        await asyncio.to_thread(
            self.stage.plane.kubectl, "delete", "pod", "-n", NAMESPACE, "--force", *names
        )
        await self._until(
            lambda: len(pods := self.pods()) == REPLICAS and gone.keys().isdisjoint(pods)
        )
        return len(gone)

    async def _wait_windows(self, usage: ReplayedUsage, windows: int) -> None:
        last = usage.step + windows
        await self._until(lambda: usage.step >= last)


@contextmanager
def asking_plane() -> Iterator[tuple[ControlPlane, str]]:
    """A control plane whose scheduler asks the extender at this URL."""
    url = f"http://{HOST}:{free_port()}"
    # The extender alone decides which node is best.
    scheduler = {**scenario.scheduler_configuration(url), "profiles": [UNSCORED]}
    with local_control_plane(scheduler=scheduler, audit_policy=AUDIT_POLICY) as plane:
        for name in NAMESPACES:
            plane.kubectl("create", "namespace", name)
        yield plane, url


async def run_loop(
    plane: ControlPlane, url: str, kafka: KafkaSettings, folder: Path, bugs: Bugs = NO_BUGS,
    *, cycles: int,
) -> LoopResult:  # fmt: skip
    """Run a loop of so many cycles of load, and judge it. Topics of `kafka` and objects of the
    cluster are created here."""
    kubernetes = KubernetesSettings(kubeconfig=plane.kubeconfig())
    settings = Settings(kafka=kafka, kubernetes=kubernetes)
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(open_api(kubernetes, SystemClock(), name="loop"))
        stage = EvictionStage(
            plane, api, settings, folder, configuration(), PER_MINUTE, [NAMESPACE]
        )
        loop = ReliefLoop(stage, url, bugs)
        for role in loop.roles.values():
            stack.callback(role.kill)
        await loop.prepare()
        placed_anew = await loop.run(cycles)
        observed = await stage.observed(is_loop=True)
    return LoopResult(violations(observed), accepted(observed.events), placed_anew)
