"""Read all pods of some nodes, and their usage over the last windows, from Kafka.

The state table has only amounts of pods: a large cluster has a million of them. Strategies that
move pods need whole records, of a few nodes. All records about a node are in one partition, so that
no other partitions are read, and records of other nodes are dropped by their key.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from pipeline.errors import KeyMismatchError, RecordError
from pipeline.kafka.client import client_options
from pipeline.kafka.follow import ConsumerRecord, TopicPartition, open_follower
from pipeline.kafka.partition import partition_of
from pipeline.kafka.topic_admin import existing_partitions
from pipeline.logs import get_logger
from pipeline.settings import KafkaSettings
from pipeline.table import limits
from pipeline.table.apply_records import apply_pod_points
from pipeline.table.pod_history import PodHistory
from pipeline.table.state_table import Table
from pipeline.topics.codec import check_readable, decode_json
from pipeline.topics.pods import PodRecord, split_pod_key
from pipeline.topics.registry import PODS, WINDOWS

_MOST_WINDOWS: Final = 360
"""Windows of a node that are kept: half an hour at 5 s."""

log = get_logger(__name__)


class NodePods(NamedTuple):
    """Records of the pods of some nodes, and their usage."""

    records: list[PodRecord]
    history: PodHistory


async def read_node_pods(
    kafka: KafkaSettings, nodes: Collection[str], span_seconds: float, now: float
) -> NodePods:
    """Read the pods of `nodes`, and the windows of the last `span_seconds` before `now`.

    Invalid records are logged and skipped. Raises `TopicDriftError` if a topic is missing,
    `KafkaError` if the broker cannot be reached or does not send what it has.
    """
    table, pods = Table(pod_windows=_MOST_WINDOWS), dict[bytes, PodRecord]()
    if not nodes:
        return NodePods([], table.pod_history)
    wanted, client = frozenset(nodes), client_options(kafka)
    of_pods, of_windows = (topic.full_name(kafka.topic_prefix) for topic in (PODS, WINDOWS))
    existing = await existing_partitions(client, (of_pods, of_windows))
    since_ms = max(round(1000 * (now - span_seconds - limits.LATE_WINDOW_SECONDS)), 0)
    async with open_follower(client, _partitions_of(wanted, existing)) as follower:
        await follower.begin({of_windows: since_ms})
        async for records in follower.read_to_end():
            for record in records:
                try:
                    if record.topic == of_windows:
                        _take_window(table, wanted, record)
                    else:
                        _take_pod(pods, wanted, record)
                except RecordError as error:
                    log.warning("record refused", topic=record.topic, partition=record.partition,
                                offset=record.offset, error=error.message)  # fmt: skip
    return NodePods([*pods.values()], table.pod_history)


def _partitions_of(
    nodes: Collection[str], existing: Sequence[TopicPartition]
) -> list[TopicPartition]:
    """The partitions of each topic that hold records about these nodes."""
    counts = Counter(tp.topic for tp in existing)
    holding = {name: {partition_of(node, n) for node in nodes} for name, n in counts.items()}
    return [tp for tp in existing if tp.partition in holding[tp.topic]]


def _take_pod(pods: dict[bytes, PodRecord], nodes: Collection[str], record: ConsumerRecord) -> None:
    """Keep the newest record of a pod by its key. Raises `RecordError`."""
    key = record.key or b""
    node, uid = split_pod_key(key)
    if node not in nodes:
        return
    pods.pop(key, None)
    check_readable(record.value)
    if record.value is not None:
        pod = decode_json(PodRecord, record.value)
        if (pod.node, pod.uid) != (node, uid):
            raise KeyMismatchError(f"payload is about {pod.node}/{pod.uid:.80}, key {key[:80]!r}")
        pods[key] = pod


def _take_window(table: Table, nodes: Collection[str], record: ConsumerRecord) -> None:
    """Take a window into the history of pods. Raises `RecordError`."""
    if (record.key or b"").decode(errors="replace") in nodes:
        check_readable(record.value)
        apply_pod_points(table, WINDOWS, record.key, record.value, record.headers)
