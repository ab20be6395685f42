"""Everything of a chaos run: three brokers, API server behind a proxy, roles, simulated nodes."""

import asyncio
import contextlib
import signal
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from pipeline.local.control_plane import ControlPlane
from pipeline.local.kafka_cluster import BROKERS, LocalCluster
from pipeline.local.port_probe import free_port
from pipeline.processors.overcommit.status_patch import read_amounts
from pipeline.settings import variable_name
from pipeline.times import format_time
from pipeline.topics.codec import encode_json
from pipeline.topics.eviction_plans import EvictionPlanRecord, LeavingPod, WaitingPod
from pipeline.topics.registry import EVICTION_PLANS, HEARTBEATS, NODE_STATE
from tests.chaos.checker import Offer
from tests.chaos.load import ChaosLoad
from tests.chaos.role_process import RoleProcess
from tests.chaos.schedule import ROLES
from tests.cluster.objects import apply, named, node, pod, write_policy
from tests.kube.fault_proxy import FaultProxy, fault_proxy
from tests.system.harness import (
    CHECKPOINT_SECONDS,
    SESSION_SECONDS,
    Feed,
    Stage,
    create_stage,
    feed,
)

EVICTIONS_PER_MINUTE = 6
PLAN_SECONDS = 3.0
VICTIMS = 40
WAITING = 10
_LEADERS = ("actuator", "evictor")


class World:
    """A running system. `signs`, `offers`, `evictions` and `memory` are noted while it runs."""

    def __init__(
        self, plane: ControlPlane, cluster: LocalCluster, proxy: FaultProxy, stage: Stage,
        load: ChaosLoad, folder: Path, instances: int,
    ) -> None:  # fmt: skip
        self.plane, self.cluster, self.proxy, self.stage = plane, cluster, proxy, stage
        self.load = load
        self.folder = folder
        self.signs: dict[str, list[float]] = defaultdict(list)
        self.offers: list[Offer] = []
        self.evictions: list[float] = []
        self.memory: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self.ports = [free_port() for _ in range(instances)]
        self.roles = {
            name: RoleProcess(name, flags, self._variables(), folder)
            for name, flags in self._flags(instances)
        }
        self._renewals: dict[str, str] = {}
        proxy.on_write = self._note_write

    def _variables(self) -> dict[str, str]:
        kubeconfig = self.plane.kubeconfig(server=self.proxy.url)
        kafka = self.stage.settings.kafka
        values = {
            "kafka.bootstrap_servers": kafka.bootstrap_servers,
            "kafka.partitions": kafka.partitions,
            "kafka.topic_prefix": kafka.topic_prefix, "kubernetes.kubeconfig": kubeconfig,
            "kafka.replication_factor": kafka.replication_factor,
            "kubernetes.config_name": self.stage.prefix, "watcher.metrics_port": 0,
            "actuator.metrics_port": 0, "evictor.metrics_port": 0, "worker.metrics_port": 0,
        }  # fmt: skip
        return {variable_name(key): str(value) for key, value in values.items()}

    def _flags(self, instances: int) -> Iterator[tuple[str, list[str]]]:
        of_role = {
            "worker": [
                "--no-supervise", "--id", self.stage.prefix,
                "--session-timeout-seconds", str(SESSION_SECONDS),
                "--checkpoint-interval-seconds", str(CHECKPOINT_SECONDS),
                "--expiration-seconds", str(self.stage.settings.model.expiration_seconds),
            ],
            "watcher": [],
            "actuator": ["--mode", "act", "--writes-per-second", "50"],
            "evictor": ["--mode", "act", "--evictions-per-minute", str(EVICTIONS_PER_MINUTE)],
            "extender": ["--host", "127.0.0.1", "--mode", "act"],
        }  # fmt: skip
        for role in ROLES:
            for number in range(instances):
                name, more = f"{role}-{number}", []
                if role == "worker":
                    more = ["--instance-id", name, "--data-dir", str(self.folder / name)]
                if role == "extender":
                    snapshot = self.folder / f"{name}.snapshot"
                    more = ["--port", str(self.ports[number]), "--snapshot-file", str(snapshot)]
                yield name, [*of_role[role], *more]

    def _note_write(self, method: str, path: str, body: bytes) -> None:
        now = time.time()
        if path.endswith("/eviction"):
            options = msgspec.json.decode(body).get("deleteOptions", {})
            if not options.get("dryRun"):
                self.evictions.append(now)
        elif path.startswith("/api/v1/nodes/") and path.endswith("/status"):
            status = msgspec.json.decode(body).get("status") or {}
            amounts = read_amounts(status.get("allocatable") or {})
            if max(amounts) > 0:
                self.offers.append(Offer(now, path.split("/")[4], tuple(amounts)))

    # -- signs of work

    async def watch_signs(self) -> None:
        """Note when roles were seen to work, until cancelled."""
        async with AIOKafkaConsumer(
            bootstrap_servers=self.stage.bootstrap, group_id=None, request_timeout_ms=5000
        ) as consumer:
            ends: dict[TopicPartition, int] = {}
            while True:
                for check in (self._watch_topics(consumer, ends), self._watch_leases(),
                              self._watch_extenders()):  # fmt: skip
                    with contextlib.suppress(
                        aiohttp.ClientError, KafkaError, TimeoutError, ValueError, KeyError
                    ):
                        await asyncio.wait_for(check, 5.0)
                for name, role in self.roles.items():
                    if (mib := role.memory_mib()) is not None:
                        self.memory[name].append((time.time(), mib))
                await asyncio.sleep(1.0)

    async def _watch_topics(
        self, consumer: AIOKafkaConsumer, seen: dict[TopicPartition, int]
    ) -> None:
        for role, topic in (("worker", NODE_STATE), ("watcher", HEARTBEATS)):
            partitions = [
                TopicPartition(self.stage.topic(topic.name), number)
                for number in range(self.stage.partitions)
            ]
            ends = await consumer.end_offsets(partitions)
            used = [tp for tp in partitions if ends[tp]]
            grown = [tp for tp in used if ends[tp] > seen.get(tp, -1)]
            # A heartbeat is in one partition, node states are in all.
            if grown and (role == "watcher" or len(grown) == len(used)):
                self.signs[role].append(time.time())
                seen.update({tp: ends[tp] for tp in grown})

    async def _watch_leases(self) -> None:
        path = "/apis/coordination.k8s.io/v1/namespaces/springtide-system/leases"
        for item in (await self.proxy.ask(path))["items"]:
            role = item["metadata"]["name"].removeprefix("springtide-")
            renewed = str(item["spec"].get("renewTime"))
            if role in _LEADERS and self._renewals.get(role) not in (None, renewed):
                self.signs[role].append(time.time())
            self._renewals[role] = renewed

    async def _watch_extenders(self) -> None:
        async with aiohttp.ClientSession() as session:
            for number, port in enumerate(self.ports):
                url = f"http://127.0.0.1:{port}/filter"
                question = {"Pod": {}, "NodeNames": ["chaos-0"]}
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    async with session.post(url, json=question, timeout=_two_seconds()) as answer:
                        if answer.status == 200:
                            self.signs[f"extender-{number}"].append(time.time())

    def expected_signs(self) -> set[str]:
        """The roles, and each extender, that must show signs."""
        extenders = {f"extender-{number}" for number in range(len(self.ports))}
        return {"worker", "watcher", *_LEADERS} | extenders

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

    def close(self) -> None:
        """Kill all roles."""
        for role in self.roles.values():
            role.signal(signal.SIGCONT)
            role.kill()


def _two_seconds() -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=2.0)


def create_objects(plane: ControlPlane, nodes: int, config_name: str) -> ChaosLoad:
    """Create nodes, pods of class Mid that may be evicted, and pods that wait for room."""
    colocation = {"enable": True, "nodePredictPolicy": {"coldStartPeriodSeconds": 0}}
    write_policy(
        plane, config_name, colocation_config=colocation, springtide_config={"coldStartSamples": 1}
    )
    mid, prod = ({"koordinator.sh/priority-class": f"koord-{name}"} for name in ("mid", "prod"))
    names = [f"chaos-{number}" for number in range(nodes)]
    apply(
        plane,
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 9500,
         "metadata": {"name": "evicting"}},
        *(node(name, cpu="32", memory="128Gi") for name in names),
        *(pod(f"victim-{number}", on=names[number % nodes], labels=mid)
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
    plane: ControlPlane, cluster: LocalCluster, folder: Path, *, seed: int, nodes: int,
    instances: int,
) -> AsyncIterator[tuple[World, Feed]]:  # fmt: skip
    """All roles, and a feed of their load, which does not run yet; they are killed at the end."""
    stage = await create_stage(cluster.bootstrap_servers, replicas=BROKERS)
    load = await asyncio.to_thread(create_objects, plane, nodes, stage.prefix)
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(fault_proxy(plane, seed=seed))
        proxy.is_fair = True
        world = World(plane, cluster, proxy, stage, load, folder, instances)
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
