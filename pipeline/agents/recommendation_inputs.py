"""Load each pod's owner and its node's checkpoint, as input of recommendations.

Nodes are added to `WorkloadSums` one partition after the other, so that one partition at a time is
in memory. Nothing is written. A node is loaded from the checkpoint that a worker would start from;
nodes without an intact one are reported.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from pipeline.agents.checkpoint_selection import read_checkpoints
from pipeline.agents.cluster_state import ClusterState
from pipeline.agents.consume import Readers
from pipeline.agents.refusals import ignore_records
from pipeline.errors import CheckpointError, RecordError
from pipeline.kafka.partition_log import LogReader
from pipeline.processors.join.pod_facts import PodRow
from pipeline.processors.recommendation import PodOwner, WorkloadSums
from pipeline.topics.checkpoints import NodeCheckpoint
from pipeline.topics.registry import CHECKPOINTS, PODS

Wanted = Callable[[PodOwner], bool]


async def add_nodes(
    workloads: WorkloadSums,
    is_wanted: Wanted | None = None,
    *,
    prefix: str,
    partitions: int,
    open_reader: Readers,
) -> dict[str, CheckpointError]:
    """Add the pods of wanted owners, by default of all owners.

    Returns the errors of nodes with such pods whose checkpoints cannot be used.
    """
    topics = [topic.full_name(prefix) for topic in (PODS, CHECKPOINTS)]
    failed: dict[str, CheckpointError] = {}
    partition_topics = [(topic, partition) for topic in topics for partition in range(partitions)]
    async with open_reader(partition_topics) as reader:
        for partition in range(partitions):
            pod_topic, checkpoint_topic = topics
            owners = _owner_numbers(
                await _read_pods(reader, pod_topic, partition), workloads, is_wanted
            )
            content = await read_checkpoints(reader, checkpoint_topic, partition, 0, ignore_records)
            for node, checkpoints in content.usable().items():
                if is_wanted and node not in owners:
                    continue
                try:
                    _add(workloads, node, checkpoints, owners.get(node, {}))
                except CheckpointError as error:
                    failed[node] = error
    return failed


async def _read_pods(reader: LogReader, topic: str, partition: int) -> ClusterState:
    """Read the pods of a partition."""
    cluster_state = ClusterState()
    async for records in reader.read(topic, partition, *await reader.bounds(topic, partition)):
        for record in records:
            # A worker writes the dead letter of an invalid record.
            with suppress(RecordError):
                cluster_state.apply_pod(record)
    return cluster_state


def _owner_numbers(
    cluster_state: ClusterState, workloads: WorkloadSums, is_wanted: Wanted | None
) -> dict[str, dict[str, int]]:
    """Return the owner number of each wanted pod, by node and UID."""
    numbers: dict[str, dict[str, int]] = {}
    for node, pods in cluster_state.pods.items():
        for uid, pod in pods.items():
            owner = _owner(pod)
            if is_wanted is None or is_wanted(owner):
                numbers.setdefault(node, {})[uid] = workloads.count(owner)
    return numbers


def _owner(pod: PodRow) -> PodOwner:
    namespace = pod.namespace or ""
    if pod.owner_kind and pod.owner_name:
        return PodOwner(pod.owner_kind, namespace, pod.owner_name)
    return PodOwner("Pod", namespace, pod.name or "")


def _add(
    workloads: WorkloadSums,
    node: str,
    checkpoints: Sequence[NodeCheckpoint],
    owners: Mapping[str, int],
) -> None:
    """Add a node from its first intact checkpoint.

    Raises the CheckpointError of the last one if all are damaged.
    """
    for number, checkpoint in enumerate(checkpoints, start=1):
        try:
            return workloads.add(node, checkpoint.state, owners)
        except CheckpointError:
            if number == len(checkpoints):
                raise
    return None
