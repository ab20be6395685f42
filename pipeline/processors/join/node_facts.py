"""Facts of a window's node: its record, and the requests of pods that the sample lacks.

`node_facts` follows from the node's record alone, so callers compute it once per record and not
once per window; `with_unmeasured` adds what changes with the sample. Invalid annotations never
refuse a window: usage must be learned whatever a user writes on a Node.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np

from pipeline.errors import InvalidRecordError
from pipeline.processors.join.pod_facts import PodRow
from pipeline.processors.kubernetes.node_reservation import valid_reservation
from pipeline.processors.kubernetes.pod_classes import CLASSES
from pipeline.topics.nodes import KnownNode, NodeStrategy, Strategy
from pipeline.topics.pod_columns import LISTED
from pipeline.topics.resource_amounts import Resources, millicores, whole_bytes
from pipeline.topics.sample_rows import Listing, SampleRows
from pipeline.topics.windows import NodeFacts

RAW_ALLOCATABLE: Final = "node.koordinator.sh/raw-allocatable"


def node_facts(record: KnownNode, default_strategy: Strategy) -> NodeFacts:
    """The facts of the node of this record.

    Fields that its strategy does not name are those of `default_strategy`. An invalid reservation
    reserves nothing.
    """
    stated = valid_reservation(record.annotations)
    return NodeFacts(
        known=True,
        allocatable=raw_allocatable(record),
        capacity=record.capacity,
        strategy=(record.strategy or NodeStrategy()).over(default_strategy),
        strategy_hash=record.strategy_hash,
        overcommit=record.overcommit,
        reserved=Resources(cpu_millicores=stated.cpu_millicores, memory_bytes=stated.memory_bytes),
        host_apps=record.host_apps,
        hot_nodes=record.hot_nodes,
    )


def raw_allocatable(record: KnownNode) -> Resources:
    """The node's allocatable before amplification.

    Amounts come from the annotation `RAW_ALLOCATABLE` as far as it names them, else from the
    record. An invalid annotation is ignored.
    """
    text = record.annotations.get(RAW_ALLOCATABLE)
    if text is None:
        return record.allocatable
    try:
        amounts = msgspec.json.decode(text, type=dict[str, str | int | float])
        cpu = millicores(amounts["cpu"]) if "cpu" in amounts else None
        memory = whole_bytes(amounts["memory"]) if "memory" in amounts else None
    except (msgspec.DecodeError, UnicodeError, RecursionError, InvalidRecordError):
        return record.allocatable
    stated = record.allocatable
    return Resources(
        cpu_millicores=stated.cpu_millicores if cpu is None or cpu < 0 else cpu,
        memory_bytes=stated.memory_bytes if memory is None or memory < 0 else memory,
    )


def sample_node_facts(sample: SampleRows, default_strategy: Strategy) -> NodeFacts:
    """The facts of a node without a record: its capacity is that of its row in the sample, and it
    has no overcommit policy."""
    cpu_cores, memory_bytes = (
        float(sample.number(name)[sample.listing.node])
        for name in ("capacity_cpu_cores", "capacity_memory_bytes")
    )
    capacity = Resources(
        cpu_millicores=None if np.isnan(cpu_cores) else round(cpu_cores * 1000),
        memory_bytes=None if np.isnan(memory_bytes) else round(memory_bytes),
    )
    return NodeFacts(allocatable=capacity, capacity=capacity, strategy=default_strategy)


def with_unmeasured(facts: NodeFacts, listing: Listing, pods: Mapping[str, PodRow]) -> NodeFacts:
    """`facts` with the requests, in sum by class, of those of `pods` (by cgroup UID) that run or
    are about to and are not in `listing`."""
    sums: dict[int, tuple[float, float]] = {}
    for uid in pods.keys() - set(listing.uids):
        pod = pods[uid]
        if pod.phase in LISTED and pod.pod_class is not None:
            cpu, memory = sums.get(pod.pod_class, (0.0, 0.0))
            sums[pod.pod_class] = (
                cpu + max(pod.request_cpu_millicores or 0.0, 0.0),
                memory + max(pod.request_memory_bytes or 0.0, 0.0),
            )
    if not sums:
        return facts
    unmeasured = {
        CLASSES[code]: Resources(cpu_millicores=int(cpu), memory_bytes=int(memory))
        for code, (cpu, memory) in sorted(sums.items())
    }
    return msgspec.structs.replace(facts, unmeasured=unmeasured)
