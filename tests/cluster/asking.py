"""A cluster whose real scheduler asks an extender: nodes' usage as it is told on topics, and where
pods land."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen
from uuid import uuid4

from aiokafka import AIOKafkaProducer

from pipeline.kafka.partition import partition_of
from pipeline.local.control_plane import ControlPlane
from pipeline.local.local_kafka import LocalKafka
from pipeline.local.port_probe import free_port
from pipeline.settings import KafkaSettings, KubernetesSettings, Settings
from pipeline.times import format_time
from pipeline.topics.codec import encode_json
from pipeline.topics.node_state import AggregatedUsage, NodeStateRecord, UsageDeviation
from pipeline.topics.registry import NODE_STATE
from pipeline.topics.resource_amounts import Usage
from tests.cluster.objects import PARTITIONS, Object, apply, items, pod
from tests.cluster.watching import Role
from tests.processes import until

PORT: Final = free_port()
GIB: Final = 2.0**30
CORES, MEMORY_GIB = 64.0, 256.0
"""What each node has."""
ROOM: Final[dict[str, Any]] = {"cpu": "64", "memory": "256Gi", "pods": "110"}

UNSCORED: Final = {"plugins": {"score": {"disabled": [{"name": "*"}]}}}
"""A profile whose own plugins score nothing: the extender alone says which node is best."""


def asks(**more: Any) -> dict[str, Any]:
    """How a scheduler asks the extender, which answers for it in every case: it waits for an
    answer that is late, and places nothing without one."""
    return {
        "urlPrefix": f"http://127.0.0.1:{PORT}", "filterVerb": "filter",
        "prioritizeVerb": "prioritize", "preemptVerb": "preempt", "weight": 1, "enableHTTPS": False,
        "nodeCacheCapable": True, "ignorable": False, "httpTimeout": "30s",
    } | more  # fmt: skip


def configured(*profiles: dict[str, Any], **of_extender: Any) -> dict[str, Any]:
    """A scheduler that asks about every node, and tries again soon."""
    return {
        "extenders": [asks(**of_extender)], "profiles": [*profiles],
        "percentageOfNodesToScore": 100, "podInitialBackoffSeconds": 1, "podMaxBackoffSeconds": 2,
    }  # fmt: skip


async def join(plane: ControlPlane, *nodes: Object) -> None:
    """Make these nodes; return when each of them takes pods."""
    apply(plane, *nodes)
    await until(lambda: not any("taints" in one["spec"] for one in items(plane, "nodes")), 60)


def settings_of(plane: ControlPlane, broker: LocalKafka) -> Settings:
    """Those of a new topic prefix, whose topics are not made yet."""
    kafka = KafkaSettings(
        bootstrap_servers=broker.bootstrap_servers,
        topic_prefix=f"test-{uuid4().hex[:8]}",
        partitions=PARTITIONS,
    )
    return Settings(kafka=kafka, kubernetes=KubernetesSettings(kubeconfig=plane.kubeconfig()))


def extender(settings: Settings, *flags: str, mode: str = "act") -> Role:
    """The extender that is asked."""
    address = ("--port", str(PORT), "--host", "127.0.0.1")
    return Role("extender", settings, "--mode", mode, *address, *flags)


def in_file(folder: Path, config: dict[str, Any]) -> tuple[str, str]:
    """The flags by which an extender follows this configuration of a scheduler."""
    path = folder / "scheduler.yaml"
    path.write_text(json.dumps(config))
    return "--scheduler-config-file", str(path)


def read(path: str) -> str:
    """What the extender answers to a GET."""
    with urlopen(f"http://127.0.0.1:{PORT}{path}", timeout=30) as answer:
        found: bytes = answer.read()
        return found.decode()


def state(
    name: str,
    cores: float,
    *,
    offset: int = 1,
    age_seconds: float = 0.0,
    window_seconds: float = 30.0,
    memory_gib: float = 8.0,
    peak: float | None = None,
    of_classes: Mapping[str, float] | None = None,
    p95: Mapping[str, float] | None = None,
    mean: float | None = None,
    deviation: float | None = None,
) -> NodeStateRecord:
    """A node that uses so many cores in a window that ended so long ago.

    Cores, too, are its predicted peak, what these classes use, the percentile by span, and the mean
    and deviation of a quarter of an hour.
    """

    def used(cores: float | None, gib: float = memory_gib) -> Usage:
        return Usage(cpu_cores=cores, memory_bytes=None if cores is None else gib * GIB)

    spread = UsageDeviation(mean=used(mean), stdev=used(deviation, 0.0))
    return NodeStateRecord(
        node=name, as_of=format_time(int(time.time() - age_seconds)), generation=1, offset=offset,
        epoch=1, window_seconds=window_seconds, coverage=1.0, node_known=True, usage=used(cores),
        allocatable=used(CORES, MEMORY_GIB), predictor="percentile",
        peaks={"percentile": used(cores if peak is None else peak)},
        class_usage={of: used(cpu, 1.0) for of, cpu in (of_classes or {}).items()},
        aggregated={span: AggregatedUsage(p95=used(cpu)) for span, cpu in (p95 or {}).items()},
        deviation={} if mean is None else {"15m": spread},
    )  # fmt: skip


@dataclass
class Cluster:
    """The scheduler's cluster with topics of this test's or file's own."""

    plane: ControlPlane
    settings: Settings
    producer: AIOKafkaProducer

    async def tell(self, *states: NodeStateRecord) -> None:
        """These are the states of their nodes."""
        topic = NODE_STATE.full_name(self.settings.kafka.topic_prefix)
        for one in states:
            await self.producer.send_and_wait(
                topic,
                key=one.node.encode(),
                value=encode_json(one),
                partition=partition_of(one.node, PARTITIONS),
            )

    async def heard(self, *states: NodeStateRecord) -> None:
        """The same, and the extender knows it."""
        await self.tell(*states)
        expected = {one.node: one.offset for one in states}
        await until(lambda: expected.items() <= _offsets().items(), 60)

    async def uses(
        self,
        cores: dict[str, float],
        offset: int = 1,
        peaks: dict[str, float] | None = None,
        window_seconds: float = 30.0,
        **of_classes: float,
    ) -> None:
        """Each of these nodes uses so many cores in a window that ends now, and is predicted to use
        so many; these classes use so much of it."""
        more: dict[str, Any] = {"offset": offset, "window_seconds": window_seconds}
        await self.tell(
            *(
                state(name, used, peak=(peaks or {}).get(name), of_classes=of_classes, **more)
                for name, used in cores.items()
            )
        )

    def extender(self, *flags: str, mode: str = "act") -> Role:
        return extender(self.settings, *flags, mode=mode)

    def landed(self, prefix: str) -> dict[str, str]:
        """On which node each of these pods is; the empty one while it waits."""
        found = (one for one in items(self.plane, "pods"))
        named = {one["metadata"]["name"]: one["spec"].get("nodeName", "") for one in found}
        return {name: where for name, where in named.items() if name.startswith(prefix)}

    def create(self, prefix: str, count: int, **more: Any) -> None:
        apply(self.plane, *(pod(f"{prefix}-{number}", **more) for number in range(count)))

    async def lands(self, wanted: Object) -> str:
        """The node on which this pod is put."""
        apply(self.plane, wanted)
        name = wanted["metadata"]["name"]
        await until(lambda: self.landed(name).get(name), 60)
        return self.landed(name)[name]

    async def refused(self, wanted: Object) -> str:
        """The scheduler's Event for why this pod, with a name that none had before, is put
        nowhere."""
        apply(self.plane, wanted)
        name = wanted["metadata"]["name"]
        await until(lambda: self.said_of(name), 60)
        assert self.landed(name)[name] == ""
        return self.said_of(name)

    def said_of(self, name: str) -> str:
        """The messages of Events that explain why this pod is pending."""
        found = items(self.plane, "events", f"--field-selector=involvedObject.name={name}")
        return " ".join(one["message"] for one in found if one["reason"] == "FailedScheduling")

    async def counts(self, pods: int) -> None:
        """Return when the extender knows of so many pods on nodes, those left out that it has only
        named a node for."""
        await until(lambda: _gauge("pods") - _gauge("pods_placed") == pods, 60)


def known() -> set[str]:
    """The nodes that the extender knows, with usage and without."""
    found = json.loads(read("/v1/nodes"))
    return {one["node"] for one in found["items"]} | set(found["without_state"])


def _offsets() -> dict[str, int]:
    """Up to which offset the extender knows of each node."""
    return {one["node"]: one["offset"] for one in json.loads(read("/v1/nodes"))["items"]}


def _gauge(name: str) -> int:
    lines = read("/metrics").splitlines()
    (value,) = (line.split()[1] for line in lines if line.startswith(f"springtide_table_{name} "))
    return int(float(value))


def all_bound(cluster: Cluster, prefix: str, count: int) -> Callable[[], bool]:
    return lambda: sum(map(bool, cluster.landed(prefix).values())) == count
