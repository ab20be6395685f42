"""What is known of nodes and pods: the topics `nodes` and `pods`, as the join looks them up.

On gaining a partition it is read to its present end (`load`); then `follow` keeps it current and
tells when a node was deleted. Bad records cost themselves: they go to the dead letters.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from pipeline.agents.deleted_pods import GonePods
from pipeline.errors import KeyMismatchError, RecordError
from pipeline.kafka.client import COMMITTED
from pipeline.kafka.partition_log import LogReader, LogRecord, record_of
from pipeline.logs import get_logger
from pipeline.processors.join.pod_facts import PodRow, pod_row
from pipeline.processors.join.sample_join import NodeView
from pipeline.topics.codec import decode_json
from pipeline.topics.nodes import KnownNode, check_node_name
from pipeline.topics.pods import PodFacts, check_pod, split_pod_key
from pipeline.topics.registry import NODES, PODS

log = get_logger(__name__)

# Names of machines that come and go are made for ever. The topic keeps a tombstone for a day.
DEPARTED_AT_MOST: Final = 10_000

Refuse = Callable[[str, LogRecord, RecordError], Awaitable[None]]
"""Writes a dead letter: topic, record, and why it was refused."""


class Inventory:
    """Nodes and pods of one partition. `departed` are nodes whose last record is a tombstone, the
    newest last: of those of long ago, whose exporters have ended, none is remembered."""

    def __init__(self) -> None:
        self.nodes: dict[str, KnownNode] = {}
        # As they were written: for a view all of a node is read, which is seldom.
        self.written: dict[str, bytes] = {}
        self.departed: dict[str, None] = {}
        self.gone = GonePods()
        self._pods: dict[str, dict[str, PodRow]] = {}
        # Of static pods only: any other pod's cgroup has its own uid.
        self._cgroups: dict[tuple[str, str], str] = {}

    @property
    def pods(self) -> Mapping[str, Mapping[str, PodRow]]:
        """What is known of the pods there are, by node and by the uid in their cgroup's name."""
        return self._pods

    def view(self, node: str) -> NodeView:
        """What is known of `node` now, and of pods whose usage the next window may still hold."""
        pods, gone = self._pods.get(node, {}), self.gone.rows(node)
        return NodeView(self.nodes.get(node), {**gone, **pods} if gone else pods)

    def apply_node(self, record: LogRecord) -> str | None:
        """Take over a record of `nodes`; gives the node's name if this deletes it."""
        name = _text(record.key)
        check_node_name(name)
        if record.value is None:
            self.nodes.pop(name, None)
            self.written.pop(name, None)
            self.departed.pop(name, None)
            self.departed[name] = None
            if len(self.departed) > DEPARTED_AT_MOST:
                del self.departed[next(iter(self.departed))]
            self.gone.forget_node(name)
            return name
        node = decode_json(KnownNode, record.value)
        if node.node != name:
            raise KeyMismatchError(f"node record of {node.node!r:.80} has the key {name!r:.80}")
        self.nodes[name] = node
        self.written[name] = record.value
        self.departed.pop(name, None)
        return None

    def apply_pod(self, record: LogRecord) -> None:
        """Take over a record of `pods`."""
        node, uid = split_pod_key(record.key or b"")
        if record.value is None:
            forgotten = self._forget_pod(node, uid)
            # Of the pods that are on no node there is no window.
            if forgotten is not None and node and node not in self.departed:
                self.gone.add(node, *forgotten, record.appended_ms)
            return
        pod = decode_json(PodFacts, record.value)
        check_pod(pod)
        if (pod.node, pod.uid) != (node, uid):
            raise KeyMismatchError(f"pod record of {pod.node}/{pod.uid:.80} has another key")
        self._forget_pod(node, uid)
        if pod.cgroup_uid != uid:
            self._cgroups[node, uid] = pod.cgroup_uid
        row = pod_row(pod)
        # One text for both, which is that of the node's samples, too: there are a million of them.
        cgroup_uid = sys.intern(pod.cgroup_uid)
        self._pods.setdefault(node, {})[cgroup_uid] = row
        self.gone.forget(node, cgroup_uid)

    def _forget_pod(self, node: str, uid: str) -> tuple[str, PodRow] | None:
        """Gives the uid in its cgroup's name, and what was known of it."""
        cgroup_uid = self._cgroups.pop((node, uid), uid)
        pods = self._pods.get(node, {})
        # A static pod made anew has the cgroup of the one before it, whose tombstone may come late.
        if cgroup_uid not in pods or pods[cgroup_uid].uid != uid:
            return None
        row = pods.pop(cgroup_uid)
        if not pods:
            self._pods.pop(node, None)
        return cgroup_uid, row


def _text(key: bytes | None) -> str:
    try:
        return (key or b"").decode()
    except UnicodeDecodeError as error:
        raise KeyMismatchError("node key is not UTF-8") from error


class InventoryTopics:
    """The two topics under this prefix, and how their records reach an `Inventory`."""

    def __init__(self, prefix: str, refuse: Refuse) -> None:
        self.nodes = NODES.full_name(prefix)
        self.pods = PODS.full_name(prefix)
        self.refuse = refuse

    async def load(
        self, reader: LogReader, partition: int, inventory: Inventory, starts: Mapping[str, int]
    ) -> dict[str, int]:
        """Bring the inventory of `partition` from `starts` (where there are none, from the first
        record) to the present end of both topics; gives those ends."""
        ends = {}
        for topic in (self.nodes, self.pods):
            first, ends[topic] = await reader.bounds(topic, partition)
            start = max(first, starts.get(topic, first))
            async for records in reader.read(topic, partition, start, ends[topic]):
                for record in records:
                    await self.apply(inventory, topic, record)
        return ends

    async def apply(self, inventory: Inventory, topic: str, record: LogRecord) -> str | None:
        """Take over one record of `topic`; gives the node that it deletes, if it does."""
        try:
            if topic == self.nodes:
                return inventory.apply_node(record)
            inventory.apply_pod(record)
        except RecordError as error:
            await self.refuse(topic, record, error)
        return None


async def follow(
    client: Mapping[str, Any], starts: Mapping[TopicPartition, int]
) -> AsyncIterator[tuple[str, LogRecord]]:
    """Records of both topics as they are appended, from these offsets on, for ever."""
    consumer = AIOKafkaConsumer(
        **client,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        **COMMITTED,
    )
    expected = dict(starts)
    try:
        await consumer.start()
        consumer.assign(list(starts))
        for tp, offset in starts.items():
            consumer.seek(tp, offset)
        while True:
            for tp, messages in (await consumer.getmany(timeout_ms=1000)).items():
                for message in messages:
                    # A seek may be undone by aiokafka's own first reset: older records come again.
                    if message.offset >= expected[tp]:
                        expected[tp] = message.offset + 1
                        yield tp.topic, record_of(message)
            await asyncio.sleep(0)
    finally:
        await consumer.stop()
