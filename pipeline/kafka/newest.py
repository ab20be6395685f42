"""Find the newest record of a key without reading its topic from the start.

For commands that run once: reading a topic of a large cluster from the start takes seconds. The
partition is searched from its end backwards in growing ranges: a node that reports now is found
among the last records, a silent node wherever compaction left its record.
"""

import difflib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final, NamedTuple

from pipeline.kafka.client import client_options
from pipeline.kafka.partition import partition_of
from pipeline.kafka.partition_log import open_reader
from pipeline.settings import KafkaSettings
from pipeline.topics.registry import NODE_STATE, Topic

_FIRST_RANGE: Final = 500
_NAMES_PER_PARTITION: Final = 200
"""A typing error is not worth megabytes."""


class Found(NamedTuple):
    """The newest record of its key; a tombstone is never returned."""

    key: bytes
    value: bytes
    offset: int


async def newest(
    kafka: KafkaSettings, topic: Topic, node: str, is_wanted: Callable[[bytes], bool] | None = None
) -> Found | None:
    """The newest record of `node`, or of any key in the node's partition that `is_wanted` accepts;
    None if there is none, or a tombstone is newer.

    Raises `BrokerUnavailableError` and `KafkaError` if the topic cannot be read.
    """
    wanted = is_wanted or node.encode().__eq__
    name, partition = _partition(kafka, topic, node)
    async with open_reader(client_options(kafka), [(name, partition)]) as reader:
        deleted: set[bytes] = set()
        for start, end in ranges_backwards(*await reader.bounds(name, partition)):
            live: dict[bytes, Found | None] = {}
            async for records in reader.read(name, partition, start, end):
                for record in records:
                    key, value = record.key or b"", record.value
                    if wanted(key) and key not in deleted:
                        live[key] = None if value is None else Found(key, value, record.offset)
            if found := [record for record in live.values() if record is not None]:
                return max(found, key=lambda record: record.offset)
            deleted.update(live)
    return None


async def appended(
    kafka: KafkaSettings, topic: Topic, node: str, since_seconds: float, until_seconds: float
) -> AsyncIterator[bytes | None]:
    """Values with the key `node` that were appended in a range of time, oldest first; None is a
    tombstone. Raises as `newest` does."""
    name, partition = _partition(kafka, topic, node)
    async with open_reader(client_options(kafka), [(name, partition)]) as reader:
        start, end = [
            await reader.offset_at(name, partition, max(int(seconds * 1000), 0))
            for seconds in (since_seconds, until_seconds)
        ]
        async for records in reader.read(name, partition, start, end):
            for record in records:
                if record.key == node.encode():
                    yield record.value


async def names_near(kafka: KafkaSettings, node: str) -> list[str]:
    """Up to three names similar to `node`, in any case, of nodes with a recent `node-state`; `node`
    itself comes first if it is among them. Raises as `newest` does."""
    name = NODE_STATE.full_name(kafka.topic_prefix)
    partitions = range(kafka.partitions)
    names: set[str] = set()
    async with open_reader(client_options(kafka), [(name, each) for each in partitions]) as reader:
        for partition in partitions:
            first, end = await reader.bounds(name, partition)
            start = max(first, end - _NAMES_PER_PARTITION)
            async for records in reader.read(name, partition, start, end):
                names.update((record.key or b"").decode(errors="replace") for record in records)
    folded = {each.casefold(): each for each in sorted(names)}
    near = difflib.get_close_matches(node.casefold(), folded, n=3)
    return [folded[each] for each in near]


def ranges_backwards(first: int, end: int) -> Iterator[tuple[int, int]]:
    """Offset ranges from `end` back to `first`, each twice as long as the one after it."""
    size = _FIRST_RANGE
    while end > first:
        start = max(first, end - size)
        yield start, end
        end, size = start, size * 2


def _partition(kafka: KafkaSettings, topic: Topic, node: str) -> tuple[str, int]:
    return topic.full_name(kafka.topic_prefix), partition_of(node, kafka.partitions)
