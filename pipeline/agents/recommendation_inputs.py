"""Reads what recommendations rest on: whose each pod is, and the checkpoints of its node.

Owes the rest: nodes brought to `Workloads` one after the other, a partition at a time, for the pods
of a node and its checkpoint lie in the same. Nothing is written. A node counts with the checkpoint
that a worker would start from; one that cannot be read is named and costs nothing but itself.
"""

from collections.abc import Callable, Mapping, Sequence

from pipeline.agents.checkpoint_selection import read_checkpoints
from pipeline.agents.cluster_state import Inventory
from pipeline.agents.consume import Readers
from pipeline.errors import CheckpointError, RecordError
from pipeline.kafka.partition_log import LogReader, LogRecord
from pipeline.processors.join.pod_facts import PodRow
from pipeline.processors.recommendation import Owner, Workloads
from pipeline.topics.checkpoints import NodeCheckpoint
from pipeline.topics.registry import CHECKPOINTS, PODS

Wanted = Callable[[Owner], bool]


async def add_nodes(
    workloads: Workloads,
    is_wanted: Wanted | None = None,
    *,
    prefix: str,
    partitions: int,
    open_reader: Readers,
) -> dict[str, CheckpointError]:
    """Add the pods of the owners that are wanted, by default of all. Gives the nodes with such pods
    whose checkpoints cannot be used, with the reasons."""
    topics = [topic.full_name(prefix) for topic in (PODS, CHECKPOINTS)]
    failed: dict[str, CheckpointError] = {}
    places = [(topic, partition) for topic in topics for partition in range(partitions)]
    async with open_reader(places) as reader:
        for partition in range(partitions):
            pods, checkpoints = topics
            owners = _numbers(await _inventory(reader, pods, partition), workloads, is_wanted)
            found = await read_checkpoints(reader, checkpoints, partition, 0, _pass_over)
            for node, fit in found.fit().items():
                if is_wanted and node not in owners:
                    continue
                try:
                    _add(workloads, node, fit, owners.get(node, {}))
                except CheckpointError as error:
                    failed[node] = error
    return failed


async def _inventory(reader: LogReader, topic: str, partition: int) -> Inventory:
    """The pods of a partition, as the join knows them."""
    inventory = Inventory()
    async for records in reader.read(topic, partition, *await reader.bounds(topic, partition)):
        for record in records:
            try:
                inventory.apply_pod(record)
            except RecordError as error:
                await _pass_over(topic, record, error)
    return inventory


def _numbers(
    inventory: Inventory, workloads: Workloads, is_wanted: Wanted | None
) -> dict[str, dict[str, int]]:
    """By node and by UID of the models the owners' numbers of the pods that are asked for."""
    found: dict[str, dict[str, int]] = {}
    for node, pods in inventory.pods.items():
        for uid, pod in pods.items():
            owner = _owner(pod)
            if is_wanted is None or is_wanted(owner):
                found.setdefault(node, {})[uid] = workloads.count(owner)
    return found


def _owner(pod: PodRow) -> Owner:
    namespace = pod.namespace or ""
    if pod.owner_kind and pod.owner_name:
        return Owner(pod.owner_kind, namespace, pod.owner_name)
    return Owner("Pod", namespace, pod.name or "")


def _add(
    workloads: Workloads, node: str, fit: Sequence[NodeCheckpoint], owners: Mapping[str, int]
) -> None:
    """Add a node by the first of these checkpoints that can be used; raises the last one's
    CheckpointError if none can."""
    for place, checkpoint in enumerate(fit, start=1):
        try:
            return workloads.add(node, checkpoint.state, owners)
        except CheckpointError:
            if place == len(fit):
                raise
    return None


async def _pass_over(topic: str, record: LogRecord, error: RecordError) -> None:
    """A record that cannot be read is a worker's to refuse."""
