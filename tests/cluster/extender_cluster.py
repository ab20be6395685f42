"""A cluster whose kube-scheduler asks an extender, and the node states that the extender reads."""

import json
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

from aiokafka import AIOKafkaProducer

from pipeline.kafka.partition import partition_of
from pipeline.local.control_plane import ControlPlane
from pipeline.local.local_kafka import LocalKafka
from pipeline.local.port_probe import free_port
from pipeline.settings import KubernetesSettings, Settings
from pipeline.times import format_time
from pipeline.topics.codec import encode_json
from pipeline.topics.node_state import AggregatedUsage, NodeStateRecord, UsageDeviation
from pipeline.topics.registry import NODE_STATE
from pipeline.topics.resource_amounts import Usage
from tests.broker import own_topics
from tests.cluster.objects import PARTITIONS, Object, apply, items, named, pod
from tests.cluster.roles import Role
from tests.processes import until

PORT: Final = free_port()
GIB: Final = 2.0**30
_NEXT_OFFSET: Final = count(1)
"""Each state is newer than all before it, also than those of other tests."""
CORES, MEMORY_GIB = 64.0, 256.0
"""Allocatable of each node."""
ALLOCATABLE: Final[dict[str, Any]] = {"cpu": "64", "memory": "256Gi", "pods": "110"}

UNSCORED: Final = {"plugins": {"score": {"disabled": [{"name": "*"}]}}}
"""A profile whose own plugins score nothing: the extender alone decides which node is best."""


def scheduler_config(*profiles: dict[str, Any], **extender: Any) -> dict[str, Any]:
    """A scheduler that asks the extender about every node, and retries soon.

    It waits for a late answer, and places nothing without an answer unless `ignorable`.
    """
    section = {
        "urlPrefix": f"http://127.0.0.1:{PORT}", "filterVerb": "filter",
        "prioritizeVerb": "prioritize", "preemptVerb": "preempt", "weight": 1, "enableHTTPS": False,
        "nodeCacheCapable": True, "ignorable": False, "httpTimeout": "30s",
    }  # fmt: skip
    return {
        "extenders": [section | extender], "profiles": [*profiles],
        "percentageOfNodesToScore": 100, "podInitialBackoffSeconds": 1, "podMaxBackoffSeconds": 2,
    }  # fmt: skip


async def add_nodes(plane: ControlPlane, *nodes: Object) -> None:
    """Create nodes; return when each of them takes pods."""
    apply(plane, *nodes)
    await until(lambda: not any("taints" in n["spec"] for n in items(plane, "nodes")), 60)


def settings_of(plane: ControlPlane, broker: LocalKafka) -> Settings:
    """Settings with a new topic prefix. The topics do not exist yet."""
    kafka = own_topics(broker, PARTITIONS)
    return Settings(kafka=kafka, kubernetes=KubernetesSettings(kubeconfig=plane.kubeconfig()))


def extender(
    settings: Settings, *flags: str, mode: str = "act", clock_file: Path | None = None
) -> Role:
    """The extender that the scheduler asks."""
    address = ("--port", str(PORT), "--host", "127.0.0.1")
    return Role("extender", settings, "--mode", mode, *address, *flags, clock_file=clock_file)


def config_flags(folder: Path, config: dict[str, Any]) -> tuple[str, str]:
    """Flags of an extender that reads this configuration of a scheduler."""
    path = folder / "scheduler.yaml"
    path.write_text(json.dumps(config))
    return "--scheduler-config-file", str(path)


def get(path: str) -> str:
    """The extender's answer to a GET."""
    with urlopen(f"http://127.0.0.1:{PORT}{path}", timeout=30) as answer:
        body: bytes = answer.read()
        return body.decode()


def state(
    name: str,
    cores: float,
    *,
    age_seconds: float = 0.0,
    window_seconds: float = 30.0,
    memory_gib: float = 8.0,
    peak: float | None = None,
    classes: Mapping[str, float] | None = None,
    p95: Mapping[str, float] | None = None,
    mean: float | None = None,
    deviation: float | None = None,
) -> NodeStateRecord:
    """A node that uses `cores` in a window that ended `age_seconds` ago.

    Also in cores: the predicted peak, usage of classes, percentiles by span, and mean and deviation
    of 15 minutes.
    """

    def usage(cores: float | None, gib: float = memory_gib) -> Usage:
        return Usage(cpu_cores=cores, memory_bytes=None if cores is None else gib * GIB)

    spread = UsageDeviation(mean=usage(mean), stdev=usage(deviation, 0.0))
    return NodeStateRecord(
        node=name, as_of=format_time(int(time.time() - age_seconds)), generation=1, epoch=1,
        offset=next(_NEXT_OFFSET), window_seconds=window_seconds, coverage=1.0, node_known=True,
        usage=usage(cores), allocatable=usage(CORES, MEMORY_GIB), predictor="percentile",
        peaks={"percentile": usage(cores if peak is None else peak)},
        class_usage={name: usage(cpu, 1.0) for name, cpu in (classes or {}).items()},
        aggregated={span: AggregatedUsage(p95=usage(cpu)) for span, cpu in (p95 or {}).items()},
        deviation={} if mean is None else {"15m": spread},
    )  # fmt: skip


@dataclass
class Cluster:
    """The scheduler's cluster, with topics for this test or file alone."""

    plane: ControlPlane
    settings: Settings
    producer: AIOKafkaProducer

    async def publish(self, *states: NodeStateRecord) -> None:
        """Publish states of nodes."""
        topic = NODE_STATE.full_name(self.settings.kafka.topic_prefix)
        for record in states:
            await self.producer.send_and_wait(
                topic, key=record.node.encode(), value=encode_json(record),
                partition=partition_of(record.node, PARTITIONS),
            )  # fmt: skip

    async def withdraw(self, names: Iterable[str]) -> None:
        """Delete the states of nodes."""
        topic = NODE_STATE.full_name(self.settings.kafka.topic_prefix)
        for name in names:
            await self.producer.send_and_wait(
                topic, key=name.encode(), value=None, partition=partition_of(name, PARTITIONS)
            )

    async def publish_and_wait(self, *states: NodeStateRecord) -> None:
        """Publish states of nodes; return when the extender has read them."""
        await self.publish(*states)
        await until(lambda: are_read(states), 60)

    async def use(
        self,
        cores: dict[str, float],
        peaks: dict[str, float] | None = None,
        window_seconds: float = 30.0,
        **classes: float,
    ) -> None:
        """Publish states of nodes that use `cores` in a window that ends now, with predicted
        `peaks`, and usage of `classes` in cores. No extender may have read them yet."""
        more: dict[str, Any] = {"window_seconds": window_seconds}
        await self.publish(
            *(
                state(name, used, peak=(peaks or {}).get(name), classes=classes, **more)
                for name, used in cores.items()
            )
        )

    async def use_and_wait(
        self, cores: dict[str, float], window_seconds: float = 30.0, **classes: float
    ) -> None:
        """`use`; return when the extender has read the states."""
        more: dict[str, Any] = {"window_seconds": window_seconds}
        await self.publish_and_wait(
            *(state(name, used, classes=classes, **more) for name, used in cores.items())
        )

    @asynccontextmanager
    async def extender(self, *flags: str, mode: str = "act") -> AsyncIterator[Role]:
        """An extender that has read the topics."""
        with extender(self.settings, *flags, mode=mode) as role:
            await role.logs("table caught up")
            yield role

    @asynccontextmanager
    async def watched_extender(self, *flags: str, mode: str = "act") -> AsyncIterator[Role]:
        """An extender that knows nodes and pods from a watcher."""
        with Role("watcher", self.settings) as watcher:
            async with self.extender(*flags, mode=mode) as role:
                await watcher.logs("in step")
                yield role

    def nodes_of_pods(self, prefix: str) -> dict[str, str]:
        """The node of each pod whose name starts with `prefix`; empty while it waits."""
        pods = named(self.plane, "pods").items()
        return {n: p["spec"].get("nodeName", "") for n, p in pods if n.startswith(prefix)}

    def create(self, prefix: str, count: int, **more: Any) -> None:
        apply(self.plane, *(pod(f"{prefix}-{number}", **more) for number in range(count)))

    async def place(self, prefix: str, count: int, seconds: float = 120, **more: Any) -> list[str]:
        """Create pods; return their nodes when all are bound."""
        self.create(prefix, count, **more)
        await until(lambda: sum(map(bool, self.nodes_of_pods(prefix).values())) == count, seconds)
        return [*self.nodes_of_pods(prefix).values()]

    async def node_for(self, wanted: Object) -> str:
        """Create a pod; return the node to which it is bound."""
        apply(self.plane, wanted)
        name = wanted["metadata"]["name"]
        await until(lambda: self.nodes_of_pods(name).get(name), 60)
        return self.nodes_of_pods(name)[name]

    async def refusal(self, wanted: Object) -> str:
        """Create a pod with a new name; return the Event that explains why it is pending."""
        apply(self.plane, wanted)
        name = wanted["metadata"]["name"]
        await until(lambda: self.pending_reason(name), 60)
        assert self.nodes_of_pods(name)[name] == ""
        return self.pending_reason(name)

    def pending_reason(self, name: str) -> str:
        """The messages of Events that explain why a pod is pending."""
        events = items(self.plane, "events", f"--field-selector=involvedObject.name={name}")
        return " ".join(e["message"] for e in events if e["reason"] == "FailedScheduling")

    async def wait_for_pods(self, count: int) -> None:
        """Return when the extender knows `count` pods on nodes, without those in flight."""
        await until(lambda: _gauge("pods") - _gauge("pods_placed") == count, 60)


def known_nodes() -> set[str]:
    """The nodes that the extender knows, with usage and without."""
    answer = json.loads(get("/v1/nodes"))
    return {item["node"] for item in answer["items"]} | set(answer["without_state"])


def are_read(states: Iterable[NodeStateRecord]) -> bool:
    """Whether the extender has read these states, or newer ones of their nodes."""
    known = {item["node"]: item["offset"] for item in json.loads(get("/v1/nodes"))["items"]}
    return all(known.get(record.node, 0) >= record.offset for record in states)


def _gauge(name: str) -> int:
    lines = get("/metrics").splitlines()
    (value,) = (line.split()[1] for line in lines if line.startswith(f"springtide_table_{name} "))
    return int(float(value))
