"""What a cluster watcher would have said of a benchmark's nodes and pods.

Without it every pod is unknown, and a worker spends its time on other things than in a cluster that
runs: here two of three pods are Prod and one is Batch, all are old, none is cold.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from pipeline.settings import Settings
from pipeline.sources.compacted_writer import Entry, node_entry, open_producer, pod_entry, write
from pipeline.topics.hot_node_policy import HotNodePolicy
from pipeline.topics.nodes import NodeRecord, NodeStrategy
from pipeline.topics.overcommit_policy import Overcommit
from pipeline.topics.pods import PodRecord
from pipeline.topics.resource_amounts import Resources

_REQUESTS: Final = Resources(cpu_millicores=500, memory_bytes=1 << 30)
_CAPACITY: Final = Resources(cpu_millicores=64_000, memory_bytes=2**38)
_ALLOCATABLE: Final = Resources(cpu_millicores=62_000, memory_bytes=2**38 - 2**33)
_CREATED_AT: Final = "2023-11-14T21:13:30Z"
_PERCENTS: Final = {"cpu": 70.0, "memory": 80.0}
HOT_NODES: Final = HotNodePolicy(high_percent=_PERCENTS, prod_high_percent=_PERCENTS)
"""Thresholds of all four rules: those of the example of Koordinator."""


def node_record(
    node: str, overcommit: Overcommit | None = None, hot_nodes: HotNodePolicy | None = None
) -> NodeRecord:
    """A node of 64 cores and 256 GiB. A run is too short to wait until pods have their samples.
    It takes part in Mid and Batch, and in detection, where there is a policy for it."""
    return NodeRecord(
        node=node, allocatable=_ALLOCATABLE, capacity=_CAPACITY,
        strategy=NodeStrategy(cold_start_samples=0), overcommit=overcommit, hot_nodes=hot_nodes,
    )  # fmt: skip


def pod_record(node: str, uid: str, number: int) -> PodRecord:
    """The pod with this number on its node."""
    batch = number % 3 == 2
    return PodRecord(
        node=node, uid=uid, cgroup_uid=uid, namespace="shop", name=f"cart-{uid}",
        pod_class="batch" if batch else "prod", qos="BE" if batch else "LS", phase="Running",
        requests=_REQUESTS, limits=_REQUESTS, created_at=_CREATED_AT,
    )  # fmt: skip


def entries(
    fleet: Iterable[tuple[str, Sequence[str]]],
    overcommit: Overcommit | None = None,
    hot_nodes: HotNodePolicy | None = None,
) -> Iterator[Entry]:
    """The records of a fleet, given as the name and the pods' UIDs of each node."""
    for node, uids in fleet:
        yield node_entry(node_record(node, overcommit, hot_nodes))
        for number, uid in enumerate(uids):
            yield pod_entry(pod_record(node, uid, number))


async def publish(
    settings: Settings,
    fleet: Iterable[tuple[str, Sequence[str]]],
    overcommit: Overcommit | None = None,
    hot_nodes: HotNodePolicy | None = None,
) -> None:
    """Write the records of a fleet, as in `entries`, and await their delivery."""
    written = entries(fleet, overcommit, hot_nodes)
    async with open_producer(settings.kafka, "benchmark") as producer:
        await write(producer, settings.kafka, "benchmark", written)
