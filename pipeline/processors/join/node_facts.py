"""What a window says of its node: what is known of it, and of those of its pods that were not seen.

Pure. `node_facts` follows from the node's record alone, so that it is found once a record and not
once a window; `with_unmeasured` adds what changes with the sample.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np

from pipeline.errors import InvalidPolicyError, InvalidRecordError
from pipeline.processors.join.pod_facts import PodRow
from pipeline.processors.kubernetes.node_reservation import reservation
from pipeline.processors.kubernetes.pod_classes import CLASSES
from pipeline.topics.nodes import KnownNode, NodeStrategy, Strategy
from pipeline.topics.pod_columns import LISTED
from pipeline.topics.resource_amounts import Resources, millicores, whole_bytes
from pipeline.topics.sample_rows import Listing, SampleRows
from pipeline.topics.windows import NodeFacts

RAW_ALLOCATABLE: Final = "node.koordinator.sh/raw-allocatable"


def node_facts(record: KnownNode, default_strategy: Strategy) -> NodeFacts:
    """What a window says of the node of this record. What its strategy does not name is that of
    `default_strategy`; a reservation that cannot be read keeps nothing."""
    try:
        kept = reservation(record.annotations)
        reserved = Resources(cpu_millicores=kept.cpu_millicores, memory_bytes=kept.memory_bytes)
    except InvalidPolicyError:
        reserved = Resources()
    return NodeFacts(
        known=True,
        allocatable=raw_allocatable(record),
        capacity=record.capacity,
        strategy=(record.strategy or NodeStrategy()).over(default_strategy),
        strategy_hash=record.strategy_hash,
        overcommit=record.overcommit,
        reserved=reserved,
        host_apps=record.host_apps,
    )


def raw_allocatable(record: KnownNode) -> Resources:
    """What pods may use of the node as it is: where its amounts are amplified, those before that.

    The annotation counts for what it names; one that cannot be read counts for nothing.
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
    of_node = record.allocatable
    return Resources(
        cpu_millicores=of_node.cpu_millicores if cpu is None or cpu < 0 else cpu,
        memory_bytes=of_node.memory_bytes if memory is None or memory < 0 else memory,
    )


def facts_of_sample(sample: SampleRows, default_strategy: Strategy) -> NodeFacts:
    """What a window says of a node of which there is no record: its capacity is that of its own
    row, and it takes no part."""
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
    """`facts` with what those of `pods`, by the uid in their cgroup's name, ask for that are not in
    `listing`: those that run or are about to, in sum by class."""
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
    found = {
        CLASSES[code]: Resources(cpu_millicores=int(cpu), memory_bytes=int(memory))
        for code, (cpu, memory) in sorted(sums.items())
    }
    return msgspec.structs.replace(facts, unmeasured=found)
