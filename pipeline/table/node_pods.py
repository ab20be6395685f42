"""Read all pods of some nodes, and their usage over the last windows, from Kafka.

The state table has only amounts of pods: a large cluster has a million of them. Strategies that
move pods need whole records, of a few nodes. All records about a node are in one partition, so that
no other partitions are read, and records of other nodes are dropped by their key.

Reading a partition from its first record is expensive, and nodes stay hot for a while. So a reader
keeps the records of the nodes that it was asked for, and reads on where it stopped; only partitions
with a node that is new are read from their start. After an error, and if a topic was recreated or
has other partitions, everything is read anew. Nodes that nobody asked for in `NODE_PODS_SECONDS`
are forgotten, long before the broker drops the tombstones of their pods.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from pipeline.errors import KeyMismatchError, RecordError
from pipeline.kafka.client import client_options
from pipeline.kafka.follow import (
    ConsumerRecord,
    Follower,
    Positions,
    TopicPartition,
    open_follower,
)
from pipeline.kafka.partition import partition_of
from pipeline.kafka.refused_records import refuse
from pipeline.kafka.topic_admin import existing_partitions
from pipeline.settings import KafkaSettings
from pipeline.table import limits
from pipeline.table.apply_records import apply_pod_points
from pipeline.table.pod_history import PodHistory
from pipeline.table.state_table import Table
from pipeline.topics.codec import check_readable, decode_json
from pipeline.topics.pods import PodRecord, split_pod_key
from pipeline.topics.registry import PODS, WINDOWS

MOST_NODES: Final = 500
"""Nodes that are kept; more only if a caller asks for more at once."""
_MOST_WINDOWS: Final = 360
"""Windows of a node that are kept: half an hour at 5 s."""


class NodePods(NamedTuple):
    """Records of the pods of some nodes, and their usage."""

    records: list[PodRecord]
    history: PodHistory


async def read_node_pods(
    kafka: KafkaSettings, nodes: Collection[str], span_seconds: float, now: float
) -> NodePods:
    """Read the pods of `nodes` once, as `NodePodReader.read` does."""
    return await NodePodReader(kafka).read(nodes, span_seconds, now)


class _Place(NamedTuple):
    """How far a partition was read, when (Unix time), and of windows since which append time."""

    offset: int
    read_at: float
    since_ms: int


class NodePodReader:
    """Reads pods again and again, for one task at a time."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._client = client_options(kafka)
        self._pods_topic = PODS.full_name(kafka.topic_prefix)
        self._windows_topic = WINDOWS.full_name(kafka.topic_prefix)
        self._forget_all()

    def _forget_all(self) -> None:
        self._table = Table(pod_windows=_MOST_WINDOWS)
        self._pods: dict[str, dict[bytes, bytes]] = {}  # values by node and key
        self._asked_at: dict[str, float] = {}  # by node, the last one at the end
        self._window_ms: dict[str, int] = {}  # append time of the last window by node
        self._places: dict[TopicPartition, _Place] = {}
        self._counts: Mapping[str, int] = {}  # of partitions, by topic
        self._topic_ids: dict[str, str] = {}

    async def read(self, nodes: Collection[str], span_seconds: float, now: float) -> NodePods:
        """Read the pods of `nodes`, and the windows of the last `span_seconds` before `now`. The
        history may have other nodes, too, and changes with the next call.

        Invalid records are logged and skipped. Raises `TopicDriftError` if a topic is missing,
        `KafkaError` if the broker cannot be reached or does not send what it has.
        """
        if not nodes:
            return NodePods([], PodHistory(_MOST_WINDOWS))
        try:
            await self._catch_up(frozenset(nodes), span_seconds, now)
        except BaseException:
            # Records and places may not belong together.
            self._forget_all()
            raise
        values = [value for node in sorted({*nodes}) for value in self._pods[node].values()]
        return NodePods([decode_json(PodRecord, v) for v in values], self._table.pod_history)

    async def _catch_up(self, nodes: frozenset[str], span_seconds: float, now: float) -> None:
        topics = self._pods_topic, self._windows_topic
        counts = Counter(tp.topic for tp in await existing_partitions(self._client, topics))
        since_ms = max(round(1000 * (now - span_seconds - limits.LATE_WINDOW_SECONDS)), 0)
        async with open_follower(self._client, _partitions_of(nodes, counts)) as follower:
            topic_ids, ends = await follower.topic_ids(), await follower.ends()
            is_shorter = any(
                tp in self._places and self._places[tp].offset > end for tp, end in ends.items()
            )
            if is_shorter or (counts, topic_ids) != (self._counts, self._topic_ids):
                self._forget_all()
                self._counts, self._topic_ids = counts, topic_ids
            self._forget(nodes, now)
            self._restart(nodes, since_ms)
            for node in nodes:
                self._pods.setdefault(node, {})
                self._asked_at.pop(node, None)
                self._asked_at[node] = now
            starts, since = await self._starts(follower, since_ms)
            follower.read_from(starts, ends)
            async for records in follower.read_to_end():
                for record in records:
                    self._take(record)
            for tp, offset in follower.positions.items():
                self._places[tp] = _Place(offset, now, since[tp])
        for node in nodes:
            if self._window_ms.get(node, -1) < since_ms:
                self._forget_windows(node)

    def _forget(self, nodes: Collection[str], now: float) -> None:
        """Forget what was not asked for recently, and the nodes beyond the most."""
        others = [node for node in self._asked_at if node not in nodes]
        surplus = max(len(others) + len(nodes) - MOST_NODES, 0)
        old = [node for node in others[surplus:] if not _is_recent(self._asked_at[node], now)]
        for node in (*others[:surplus], *old):
            del self._pods[node], self._asked_at[node]
            self._forget_windows(node)
        for tp in [tp for tp, place in self._places.items() if not _is_recent(place.read_at, now)]:
            del self._places[tp]

    def _restart(self, nodes: Collection[str], since_ms: int) -> None:
        """Forget how far the partitions were read that have a new node, or too few windows. Their
        windows are forgotten, too, because they are taken in their order alone."""
        restarted = _partitions_of([n for n in nodes if n not in self._pods], self._counts)
        for tp in _partitions_of(nodes, self._counts):
            place = self._places.get(tp)
            if place is None or (tp.topic == self._windows_topic and since_ms < place.since_ms):
                restarted.add(tp)
        for tp in restarted:
            self._places.pop(tp, None)
        for node in self._pods:
            if not restarted.isdisjoint(_partitions_of([node], self._counts)):
                self._forget_windows(node)

    def _forget_windows(self, node: str) -> None:
        self._table.pod_history.forget(node)
        self._window_ms.pop(node, None)

    async def _starts(
        self, follower: Follower, since_ms: int
    ) -> tuple[Positions, dict[TopicPartition, int]]:
        """The offset from which each partition is read, and from when on its windows are known."""
        of_windows = [tp for tp in follower.assigned if tp.topic == self._windows_topic]
        starts = await follower.beginnings()
        starts |= await follower.offsets_at(dict.fromkeys(of_windows, since_ms))
        since = dict.fromkeys(starts, since_ms)
        for tp, place in self._places.items():
            if tp not in starts:
                continue
            # Windows that nobody needs any more are passed over.
            if tp.topic == self._pods_topic or place.offset >= starts[tp]:
                starts[tp], since[tp] = place.offset, place.since_ms
        return starts, since

    def _take(self, record: ConsumerRecord) -> None:
        try:
            if record.topic == self._windows_topic:
                self._take_window(record)
            else:
                self._take_pod(record)
        except RecordError as error:
            refuse(record.topic, error, partition=record.partition, offset=record.offset)

    def _take_pod(self, record: ConsumerRecord) -> None:
        """Keep the newest record of a pod by its key. Raises `RecordError`."""
        key = record.key or b""
        node, uid = split_pod_key(key)
        if node not in self._pods:
            return
        pods = self._pods[node]
        pods.pop(key, None)
        check_readable(record.value)
        if record.value is not None:
            pod = decode_json(PodRecord, record.value)
            if (pod.node, pod.uid) != (node, uid):
                raise KeyMismatchError(
                    f"payload is about {pod.node}/{pod.uid:.80}, key {key[:80]!r}"
                )
            pods[key] = record.value

    def _take_window(self, record: ConsumerRecord) -> None:
        """Take a window into the history of pods. Raises `RecordError`."""
        node = (record.key or b"").decode(errors="replace")
        if node in self._pods:
            check_readable(record.value)
            apply_pod_points(self._table, WINDOWS, record.key, record.value, record.headers)
            self._window_ms[node] = record.timestamp


def _is_recent(at: float, now: float) -> bool:
    """Whether something happened a short time ago: not before a clock was set back."""
    return 0 <= now - at <= limits.NODE_PODS_SECONDS


def _partitions_of(nodes: Collection[str], counts: Mapping[str, int]) -> set[TopicPartition]:
    """The partitions of each topic that hold records about these nodes."""
    return {
        TopicPartition(topic, partition_of(node, count))
        for topic, count in counts.items()
        for node in nodes
    }
