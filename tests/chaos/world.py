"""Everything of a chaos run: three brokers, API server behind a proxy, roles, simulated nodes."""

import asyncio
import contextlib
import json
import random
import signal
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import aiohttp
import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError

from pipeline.errors import RecordError
from pipeline.kafka import record_batches
from pipeline.kafka.follow import topic_partitions
from pipeline.local.control_plane import ControlPlane
from pipeline.local.local_kafka import LocalKafka
from pipeline.local.port_probe import free_port
from pipeline.processors.overcommit.status_patch import read_amounts
from pipeline.settings import variable_name
from pipeline.times import format_time
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.eviction_plans import EvictionPlanRecord, LeavingPod, WaitingPod
from pipeline.topics.heartbeats import HeartbeatRecord
from pipeline.topics.registry import EVICTION_PLANS, HEARTBEATS, NODE_STATE
from tests.cgroup_tree import CgroupTree
from tests.chaos.archived_log import ArchivedLog, read_archives
from tests.chaos.checker import Offer
from tests.chaos.eviction_evidence import observe
from tests.chaos.eviction_monitor import Observed, read_limits
from tests.chaos.load import ChaosLoad
from tests.chaos.node_limits import POLICY, NodeLimits, limits_of, undo
from tests.chaos.provided_usage import PROVIDED
from tests.chaos.role_process import RoleProcess
from tests.cluster.objects import apply, deployment, named, node, pod, write_policy
from tests.kube.fault_proxy import FaultProxy, fault_proxy
from tests.system.harness import (
    CHECKPOINT_SECONDS,
    SESSION_SECONDS,
    Feed,
    Stage,
    create_stage,
    feed,
    model_flags,
)

Bugs = Mapping[str, Sequence[str]]
"""Names of `seeded_bugs` by process."""
NO_BUGS: Final[Bugs] = {}

EXPORTERS = ("exporter-0", "exporter-1")
"""Nodes of real exporters on this machine, by the name of the process."""
EVICTIONS_PER_MINUTE = 6
PLAN_SECONDS = 3.0
VICTIMS = 40
MOVING = "moving"
"""Deployments whose pods come back to their node when they are evicted."""
WAITING = 10
MEMORY_FILE = "memory.csv"
"""Process, Unix time, resident memory and the part of it that is not of files, in MiB."""
_LEADERS = ("actuator", "planner", "evictor")
HOT_NODES: Final = {
    "apiVersion": "descheduler/v1alpha2",
    "kind": "DeschedulerConfiguration",
    "deschedulingInterval": "10s",
    "profiles": [
        {
            "name": "chaos",
            "plugins": {"balance": {"enabled": [{"name": "LowNodeLoad"}]}},
            "pluginConfig": [
                {
                    "name": "LowNodeLoad",
                    # Nodes with pods are hot in every other phase, those without are not.
                    "args": {
                        "highThresholds": {"cpu": 10},
                        "lowThresholds": {"cpu": 8},
                        "usageAggregatedDuration": "1m",
                        "anomalyCondition": {"consecutiveAbnormalities": 2},
                    },
                },
                {"name": "MigrationController", "args": {"evictAllBarePods": True}},
            ],
        }
    ],
}
"""The configuration by which the planner relieves nodes."""
EXPORTER_WINDOW_SECONDS = PROVIDER_WINDOW_SECONDS = 5


class World:
    """A running system since `began` (Unix time). `signs`, `offers` and `memory` are noted while it
    runs. `kills_evictors` kills all evictors at the next eviction, before it is recorded."""

    def __init__(
        self, plane: ControlPlane, brokers: Sequence[LocalKafka], proxy: FaultProxy, stage: Stage,
        load: ChaosLoad, folder: Path, names: Sequence[str], bugs: Bugs, began: float,
        trees: Mapping[str, CgroupTree], more: Mapping[str, Sequence[str]],
    ) -> None:  # fmt: skip
        self.plane, self.brokers, self.proxy, self.stage = plane, brokers, proxy, stage
        self.load = load
        self.folder, self.trees, self._more = folder, trees, more
        self.signs: dict[str, list[float]] = defaultdict(list)
        self.offers: list[Offer] = []
        self.began, self.kills_evictors = began, False
        self.memory: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self.ports = {name: free_port() for name in names}
        variables = self._variables()
        self.roles = {
            name: RoleProcess(name, self._flags(name), variables, folder, bugs.get(name, ()))
            for name in names
        }
        self._limits_before = {node: limits_of(tree) for node, tree in trees.items()}
        self._renewals: dict[str, str] = {}
        self._complete_until: str | None = None
        self._published: set[int] = set()
        proxy.on_write = self._note_write

    def _variables(self) -> dict[str, str]:
        kubeconfig = self.plane.kubeconfig(server=self.proxy.url)
        kafka = self.stage.settings.kafka
        values = {
            "kafka.bootstrap_servers": kafka.bootstrap_servers,
            "kafka.partitions": kafka.partitions,
            "kafka.topic_prefix": kafka.topic_prefix, "kubernetes.kubeconfig": kubeconfig,
            "kafka.replication_factor": kafka.replication_factor,
            "kubernetes.config_name": self.stage.prefix,
            "kubernetes.descheduler_config_name": descheduler_config(self.stage.prefix),
        }  # fmt: skip
        return {variable_name(key): str(value) for key, value in values.items()}

    def _flags(self, name: str) -> list[str]:
        role, _, number = name.rpartition("-")
        node = f"exporter-{number}"
        parent = self.trees[node].name if node in self.trees else ""
        on_node = [
            "--node-name", node, "--socket-path", str(self.folder / f"{node}.socket"),
            "--cgroup-parent", parent,
        ]  # fmt: skip
        port = str(self.ports[name])
        page = ["--metrics-host", "127.0.0.1", "--metrics-port", port]
        if name in self._more:
            return [*page, *self._more[name]]
        flags = {
            "exporter": [
                *page, *on_node, "--window-seconds", str(EXPORTER_WINDOW_SECONDS),
            ],
            "provider": [
                "--port", port, "--kind", "chaos", "--delay-seconds", "0",
                "--window-seconds", str(PROVIDER_WINDOW_SECONDS),
                "--step-seconds", str(PROVIDER_WINDOW_SECONDS),
            ],
            "worker": [
                *page, "--no-supervise", "--id", self.stage.prefix, "--instance-id", name,
                "--data-dir", str(self.folder / name),
                "--session-timeout-seconds", str(SESSION_SECONDS),
                "--checkpoint-interval-seconds", str(CHECKPOINT_SECONDS),
                *model_flags(self.stage.settings.model),
            ],
            "watcher": page,
            "actuator": [*page, "--mode", "act", "--writes-per-second", "50"],
            "planner": page,
            "evictor": [
                *page, "--mode", "act", "--evictions-per-minute", str(EVICTIONS_PER_MINUTE),
            ],
            "extender": [
                "--host", "127.0.0.1", "--port", port, "--mode", "act",
                "--snapshot-file", str(self.folder / f"{name}.snapshot"),
            ],
            "archive": [
                *page, "--directory", str(self.folder / name), "--file-seconds", "5",
            ],
            # Without cgroups of its own the node is this machine, which is not ours to limit.
            "node-actuator": [
                *page, *on_node, "--state-file", str(self.folder / f"{name}.json"),
                "--mode", "off", "--features",
                json.dumps({"cpu_suppression": "act" if parent else "observe"}),
            ],
        }  # fmt: skip
        return flags[role]

    def _note_write(self, method: str, path: str, body: bytes) -> None:
        now = time.time()
        if path.endswith("/eviction"):
            options = msgspec.json.decode(body).get("deleteOptions", {})
            if not options.get("dryRun") and self.kills_evictors:
                self.kills_evictors = False
                for name in self.roles:
                    if name.startswith("evictor-"):
                        self.roles[name].kill()
        elif path.startswith("/api/v1/nodes/") and path.endswith("/status"):
            status = msgspec.json.decode(body).get("status") or {}
            amounts = read_amounts(status.get("allocatable") or {})
            if max(amounts) > 0:
                self.offers.append(Offer(now, path.split("/")[4], tuple(amounts)))

    # -- signs of work

    async def watch_signs(self) -> None:
        """Note when roles were seen to work, until cancelled."""
        topics = (NODE_STATE, HEARTBEATS)
        async with AIOKafkaConsumer(
            bootstrap_servers=self.stage.bootstrap, group_id=None, request_timeout_ms=5000
        ) as consumer:
            consumer.assign(topic_partitions(self.stage.settings.kafka, *topics))
            while True:
                for check in (partial(self._watch_topics, consumer), self._watch_leases,
                              self._watch_pages):  # fmt: skip
                    with contextlib.suppress(
                        aiohttp.ClientError, KafkaError, TimeoutError, ValueError, KeyError
                    ):
                        await asyncio.wait_for(check(), 5.0)
                self._note_memory()
                await asyncio.sleep(1.0)

    def _note_memory(self) -> None:
        """Note the memory of each role, also in a file of the run's folder."""
        with (self.folder / MEMORY_FILE).open("a") as table:
            for role in self.roles.values():
                if (mib := role.memory_mib()) is not None:
                    resident, anonymous = mib
                    now = time.time()
                    self.memory[role.incarnation].append((now, resident))
                    table.write(f"{role.incarnation},{now:.1f},{resident:.2f},{anonymous:.2f}\n")

    async def _watch_topics(self, consumer: AIOKafkaConsumer) -> None:
        for tp, records in (await consumer.getmany(timeout_ms=500)).items():
            if tp.topic == self.stage.topic(HEARTBEATS.name):
                self._note_heartbeats(record.value for record in records)
                continue
            self._published.add(tp.partition)
            nodes = {(record.key or b"").decode(errors="replace") for record in records}
            for name in nodes.intersection(self.roles):
                self._note_sign(name)
            if not nodes.isdisjoint(PROVIDED):
                self._note_sign("provider")
        if self._published >= self.load.partitions(self.stage.partitions):
            self._note_sign("worker")
            self._published.clear()

    def _note_heartbeats(self, values: Iterable[bytes | None]) -> None:
        """The watcher vouches for its topics again: it also lives while it cannot."""
        for value in values:
            with contextlib.suppress(RecordError):
                at = decode_json(HeartbeatRecord, value).at if value else None
                if at not in (None, self._complete_until):
                    self._complete_until = at
                    self._note_sign("watcher")

    def _note_sign(self, role: str) -> None:
        self.signs[role].append(time.time())

    async def _watch_leases(self) -> None:
        path = "/apis/coordination.k8s.io/v1/namespaces/springtide-system/leases"
        for item in (await self.proxy.ask(path))["items"]:
            role = item["metadata"]["name"].removeprefix("springtide-")
            renewed = str(item["spec"].get("renewTime"))
            if role in _LEADERS and self._renewals.get(role) not in (None, renewed):
                self._note_sign(role)
            self._renewals[role] = renewed

    async def _watch_pages(self) -> None:
        """Ask extenders as a scheduler does, other instances for their metrics. The results of an
        exporter are its sign."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2.0)) as session:
            pages = [name for name in self.roles if not name.startswith("exporter")]
            await asyncio.gather(*(self._watch_page(session, name) for name in pages))

    async def _watch_page(self, session: aiohttp.ClientSession, name: str) -> None:
        url = f"http://127.0.0.1:{self.ports[name]}"
        question = {"Pod": {}, "NodeNames": ["chaos-0"]}
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            asked = (
                session.post(f"{url}/filter", json=question)
                if name.startswith("extender")
                else session.get(f"{url}/metrics")
            )
            async with asked as answer:
                if answer.status == 200:
                    self._note_sign(name)

    def expected_signs(self) -> set[str]:
        """The roles whose instances work together, and each instance."""
        return {"worker", "watcher", "provider", *_LEADERS, *self.roles}

    def all_work_since(self, moment: float) -> bool:
        """Whether each role was seen to work after `moment`."""
        return all(max(self.signs[role], default=0) > moment for role in self.expected_signs())

    # -- background

    async def restart_ended(self) -> None:
        """Restart roles that ended, as Kubernetes does, until cancelled."""
        while True:
            await asyncio.sleep(1.0)
            for role in self.roles.values():
                role.start()

    async def plan_evictions(self, made: Feed) -> None:
        """Plan more evictions than the limit allows, until cancelled."""
        pods = {
            name: item
            for name, item in named(self.plane, "pods").items()
            if name.startswith(("victim-", "waiting-"))
        }
        for number in range(VICTIMS):
            await asyncio.sleep(PLAN_SECONDS)
            victim, waiting = f"victim-{number}", f"waiting-{number % WAITING}"
            now, on = time.time(), pods[victim]["spec"]["nodeName"]
            uid = pods[waiting]["metadata"]["uid"]
            plan = EvictionPlanRecord(
                node=on, id=f"{number}", at=format_time(now), valid_until=format_time(now + 60),
                planner="chaos", why="a chaos run",
                waiting=WaitingPod(namespace="default", name=waiting, uid=uid, priority=9500),
                pods=(LeavingPod(uid=pods[victim]["metadata"]["uid"], pod_class="mid"),),
            )  # fmt: skip
            topic = self.stage.topic(EVICTION_PLANS.name)
            await made.producer.send_and_wait(topic, encode_json(plan), key=on.encode())

    async def plan_everything(self, producer: AIOKafkaProducer, rng: random.Random) -> None:
        """Plan to evict all pods of each node, three times, in any order."""
        now, of_node = time.time(), defaultdict[str, list[str]](list)
        for item in (await self.proxy.ask("/api/v1/namespaces/default/pods"))["items"]:
            if item["metadata"]["name"].startswith(("victim-", MOVING)):
                of_node[item["spec"].get("nodeName", "")].append(item["metadata"]["uid"])
        plans = [
            EvictionPlanRecord(
                node=name, id=f"storm/{name}/{now}", at=format_time(now), planner="storm", why="",
                valid_until=format_time(now + 60), strategy="storm",
                pods=tuple(LeavingPod(uid=uid, pod_class="mid") for uid in uids),
            )
            for name, uids in of_node.items()
        ] * 3  # fmt: skip
        topic = self.stage.topic(EVICTION_PLANS.name)
        for plan in rng.sample(plans, len(plans)):
            await producer.send(topic, encode_json(plan), key=plan.node.encode())

    async def evictions(self) -> Observed:
        """What the API server logged of evictions."""
        limits = read_limits(HOT_NODES, EVICTIONS_PER_MINUTE)
        return await observe(self.plane, self.stage.settings.kafka, limits, self.began)

    async def archived_log(self) -> ArchivedLog:
        """The log of windows and the archives of it."""
        names = [name for name in self.roles if name.startswith("archive-")]
        return await read_archives(self.stage, {name: self.folder / name for name in names})

    def undo_limits(self) -> list[NodeLimits]:
        """Restore the limits of each node; its actuators must have ended."""
        return [
            undo(node, tree, self._limits_before[node], flags, self.roles[name].log)
            for node, tree in self.trees.items()
            for name in [node.replace("exporter", "node-actuator")]
            for flags in [self._flags(name)]
        ]

    def silence_sources(self) -> None:
        """Pause exporters and providers: while they publish, a log that is read never ends."""
        for name, role in self.roles.items():
            if name.startswith(("exporter-", "provider-")):
                role.signal(signal.SIGSTOP)

    def close(self) -> None:
        """Kill all roles."""
        for role in self.roles.values():
            role.signal(signal.SIGCONT)
            role.kill()


def descheduler_config(config_name: str) -> str:
    """The name of the ConfigMap of hot nodes."""
    return f"{config_name}-hot-nodes"


def create_objects(plane: ControlPlane, nodes: int, config_name: str) -> ChaosLoad:
    """Create nodes, pods of class Mid that may be evicted on half of them, and pods that wait for
    room."""
    colocation = {"enable": True, "nodePredictPolicy": {"coldStartPeriodSeconds": 0}}
    write_policy(
        plane, config_name, colocation_config=colocation,
        springtide_config={"coldStartSamples": 1}, resource_threshold_config=POLICY,
    )  # fmt: skip
    write_policy(plane, descheduler_config(config_name), **{"koord-descheduler-config": HOT_NODES})
    mid, prod = ({"koordinator.sh/priority-class": f"koord-{name}"} for name in ("mid", "prod"))
    names = [f"chaos-{number}" for number in range(nodes)]
    moving = [deployment(f"{MOVING}-{number}", 8, on=names[number]) for number in range(4)]
    apply(
        plane, *moving,
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 9500,
         "metadata": {"name": "evicting"}},
        *(node(name, cpu="32", memory="128Gi") for name in (*names, *EXPORTERS, *PROVIDED)),
        *(pod(f"victim-{number}", on=names[number % (nodes // 2)], labels=mid)
          for number in range(VICTIMS)),
        *(pod(f"waiting-{number}", labels=prod, priority_class="evicting", cpu="1000")
          for number in range(WAITING)),
    )  # fmt: skip
    uids: dict[str, list[str]] = defaultdict(list)
    for name, item in named(plane, "pods").items():
        if name.startswith("victim-"):
            uids[item["spec"]["nodeName"]].append(item["metadata"]["uid"])
    return ChaosLoad(names, uids)


@asynccontextmanager
async def running_world(
    plane: ControlPlane, brokers: Sequence[LocalKafka], folder: Path, *, seed: int, nodes: int,
    names: Sequence[str], bugs: Bugs, trees: Mapping[str, CgroupTree],
    more: Mapping[str, Sequence[str]] = NO_BUGS,
) -> AsyncIterator[tuple[World, Feed]]:  # fmt: skip
    """The roles `names`, and a feed of their load, which does not run yet; they are killed at the
    end. `more` has the flags of roles that need what is not of the world."""
    record_batches.install()  # the consumers of this process read hostile records, too
    servers = ",".join(broker.bootstrap_servers for broker in brokers)
    stage = await create_stage(servers, replicas=len(brokers))
    began = time.time()
    load = await asyncio.to_thread(create_objects, plane, nodes, stage.prefix)
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(fault_proxy(plane, seed=seed))
        proxy.is_fair = True
        world = World(plane, brokers, proxy, stage, load, folder, names, bugs, began, trees, more)
        stack.callback(world.close)
        for role in world.roles.values():
            role.start()
        made = await stack.enter_async_context(feed(stage, load))  # type: ignore[arg-type]
        tasks = [
            asyncio.create_task(work)
            for work in (world.watch_signs(), world.restart_ended(), world.plan_evictions(made))
        ]
        stack.push_async_callback(_cancel, tasks)
        yield world, made


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result
