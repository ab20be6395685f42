"""Write the records of a source to compacted topics: only the differences.

A source reads its last records back from the topic and writes those that differ, so that a restart
writes nothing and removes what was deleted meanwhile. A record that it no longer has becomes a
tombstone. The record header `source` names the source, so that no source removes the records of
another.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from itertools import islice
from typing import NamedTuple

from pipeline.kafka.client import client_options, translated_errors
from pipeline.kafka.follow import ConsumerRecord, Fetching, open_follower, topic_partitions
from pipeline.kafka.partition import partition_of
from pipeline.kafka.producer import DELIVERY_SECONDS, Batching, Delivery, Keyed, Producer
from pipeline.metrics import counter
from pipeline.settings import KafkaSettings
from pipeline.times import format_time
from pipeline.topics.codec import encode_json
from pipeline.topics.heartbeats import WATCHER, HeartbeatRecord
from pipeline.topics.nodes import SOURCE_HEADER, NodeRecord
from pipeline.topics.pods import PodRecord, pod_key
from pipeline.topics.registry import HEARTBEATS, NODES, PODS, Topic

# Small, because fetched records are buffered as objects.
_FETCH_BYTES = 256 * 1024
# Compressed, because records are similar: half of a pod record is field names.
_BATCHING = Batching(linger_ms=5, batch_bytes=256 * 1024, compression="snappy")

RECORDS = counter(
    "source_records", "Records that a source has written.", ["source", "topic", "change"]
)


ProducerFactory = Callable[[KafkaSettings, str], AbstractAsyncContextManager[Producer]]
"""Opens the producer of a source, by settings and client id."""


class Entry(NamedTuple):
    """A record to write, in the partition of `node`; a value of None is a tombstone."""

    topic: Topic
    node: str
    key: bytes
    value: bytes | None


def node_entry(record: NodeRecord) -> Entry:
    """Return the entry of a node record."""
    return Entry(NODES, record.node, record.node.encode(), encode_json(record))


def pod_entry(record: PodRecord) -> Entry:
    """Return the entry of a pod record."""
    key = pod_key(record.node, record.uid)
    return Entry(PODS, record.node, key, encode_json(record))


def heartbeat_entry(at: float | None) -> Entry:
    """Return the entry of a heartbeat of the watcher; `at` in UTC seconds."""
    record = HeartbeatRecord(source=WATCHER, at=None if at is None else format_time(at))
    return Entry(HEARTBEATS, WATCHER, WATCHER.encode(), encode_json(record))


def node_of_key(topic: Topic, key: bytes) -> str:
    """Return the node of a key of the topic `nodes` or `pods`."""
    text = key.decode(errors="replace")
    return text.rpartition("/")[0] if topic.name == PODS.name else text


def difference(
    topic: Topic,
    wanted: Mapping[bytes, Entry],
    known: Mapping[bytes, bytes],
    retained: Collection[bytes] = (),
) -> list[Entry]:
    """Return the entries that change the values of `topic` from `known` to `wanted`.

    Keys in `retained` are not removed. Tombstones come first, so that a pod that moved is on
    two nodes only briefly.
    """
    removed = [
        Entry(topic, node_of_key(topic, key), key, None)
        for key in known
        if key not in wanted and key not in retained
    ]
    return removed + [entry for key, entry in wanted.items() if known.get(key) != entry.value]


def open_producer(kafka: KafkaSettings, client_id: str, sole_writer: str | None = None) -> Producer:
    """Create the producer of a source.

    With `sole_writer`, a transactional id, it writes in transactions and the broker fences earlier
    producers of that id. Raises `BrokerUnavailableError` on entry if no broker answers.
    """
    client = client_options(kafka)
    return Producer(client, _BATCHING, client_id=client_id, sole_writer=sole_writer)


async def write(
    producer: Producer,
    kafka: KafkaSettings,
    source: str,
    entries: Iterable[Entry],
    in_flight: int = 1000,
) -> int:
    """Write `entries`, those of a partition in order, await delivery, and return their number.

    At most `in_flight` entries are in flight. Raises `KafkaError` if one is not delivered within
    two minutes.
    """
    headers = [(SOURCE_HEADER, source.encode())]
    written, remaining = 0, iter(entries)
    with translated_errors(kafka, f"writing from the source {source!r}"):
        while chunk := [*islice(remaining, in_flight)]:
            batches: dict[tuple[Topic, int], list[Keyed]] = {}
            for entry in chunk:
                place = entry.topic, partition_of(entry.node, kafka.partitions)
                batches.setdefault(place, []).append(Keyed(entry.key, entry.value))
            pending: list[Delivery] = []
            for (topic, partition), records in batches.items():
                name = topic.full_name(kafka.topic_prefix)
                pending += await producer.send_batches(name, partition, records, headers)
                tombstones = sum(record.value is None for record in records)
                RECORDS.labels(source, topic.name, "tombstone").inc(tombstones)
                RECORDS.labels(source, topic.name, "value").inc(len(records) - tombstones)
            async with asyncio.timeout(DELIVERY_SECONDS):
                for delivery in pending:
                    await delivery
            written += len(chunk)
    return written


async def read_back(kafka: KafkaSettings, topic: Topic, source: str) -> dict[bytes, bytes]:
    """Return by key the values of `topic` whose newest record is from `source`.

    Raises `BrokerUnavailableError` if the broker does not answer or falls silent.
    """
    known: dict[bytes, bytes] = {}
    async for key, value in records_of_source(kafka, topic, source):
        if value is not None:
            known[key] = value
        else:
            known.pop(key, None)
    return known


async def records_of_source(
    kafka: KafkaSettings, topic: Topic, source: str
) -> AsyncIterator[tuple[bytes, bytes | None]]:
    """Yield key and value of all records of `topic` up to its present end, as `all_records` does.

    The value of a tombstone or of another source's record is None. Raises `BrokerUnavailableError`
    if the broker does not answer or falls silent.
    """
    async for message in all_records(kafka, topic):
        is_own = (SOURCE_HEADER, source.encode()) in message.headers
        yield message.key, message.value if is_own else None


async def all_records(kafka: KafkaSettings, topic: Topic) -> AsyncIterator[ConsumerRecord]:
    """Yield all records of `topic` that have a key, up to its present end.

    Records are in the order of their partition. The partition of the empty node comes first,
    because pods move from there to their node. Raises `BrokerUnavailableError` if the broker does
    not answer or falls silent.
    """
    partitions = topic_partitions(kafka, topic)
    first = partition_of("", kafka.partitions)
    fetching = Fetching(_FETCH_BYTES)
    async with open_follower(client_options(kafka), partitions, fetching) as follower:
        starts, ends = await follower.beginnings(), await follower.ends()
        for group in (partitions[first : first + 1], partitions[:first] + partitions[first + 1 :]):
            follower.read_from({tp: starts[tp] for tp in group}, {tp: ends[tp] for tp in group})
            async for records in follower.read_to_end():
                for record in records:
                    if record.key is not None:
                        yield record
