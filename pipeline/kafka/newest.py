"""Records of a key, found without reading their topic from the beginning.

Owes the rest: what a command asks of a topic where a live reader would be too much. For the newest
a partition is read backwards in growing pieces, so that a node that writes now is found among the
last records, and one that fell silent wherever compaction has kept it.
"""

import difflib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition

from pipeline.kafka.client import COMMITTED, client_options, our_errors
from pipeline.kafka.partition import partition_of
from pipeline.settings import KafkaSettings
from pipeline.topics.registry import NODE_STATE, Topic

_FIRST_PIECE: Final = 500
_NAMES_FROM: Final = 200
"""Of each partition: a typing error is not worth megabytes."""
_POLL_MS: Final = 300
_SILENT_POLLS: Final = 100


class Found(NamedTuple):
    """A record that is in force: nothing newer of its key, no tombstone behind it."""

    key: bytes
    value: bytes
    offset: int


async def newest(
    kafka: KafkaSettings,
    topic: Topic,
    node: str,
    is_wanted: Callable[[bytes], bool] | None = None,
) -> Found | None:
    """The newest record in force of `node`, or of any key in its partition that `is_wanted`.

    Raises `BrokerUnavailableError` and `KafkaError` where the topic cannot be read.
    """
    wanted = is_wanted or node.encode().__eq__
    tp = TopicPartition(topic.full_name(kafka.topic_prefix), partition_of(node, kafka.partitions))
    with our_errors(kafka, f"reading {tp.topic}[{tp.partition}]"):
        async with _consumer(kafka, [tp]) as consumer:
            first = (await consumer.beginning_offsets([tp]))[tp]
            gone: set[bytes] = set()
            for start, end in _pieces(first, (await consumer.end_offsets([tp]))[tp]):
                live: dict[bytes, Found | None] = {}
                async for key, value, offset in _read(consumer, tp, start, end):
                    if wanted(key) and key not in gone:
                        live[key] = None if value is None else Found(key, value, offset)
                if found := [record for record in live.values() if record is not None]:
                    return max(found, key=lambda record: record.offset)
                gone.update(live)
    return None


async def appended(
    kafka: KafkaSettings, topic: Topic, node: str, since_seconds: float, until_seconds: float
) -> AsyncIterator[bytes | None]:
    """What the broker took under the key `node` in a range of time, oldest first; None is a
    tombstone. Raises as `newest` does."""
    tp = TopicPartition(topic.full_name(kafka.topic_prefix), partition_of(node, kafka.partitions))
    with our_errors(kafka, f"reading {tp.topic}[{tp.partition}]"):
        async with _consumer(kafka, [tp]) as consumer:
            first, end = [
                await _offset_at(consumer, tp, seconds)
                for seconds in (since_seconds, until_seconds)
            ]
            async for key, value, _ in _read(consumer, tp, first, end):
                if key == node.encode():
                    yield value


async def _offset_at(consumer: AIOKafkaConsumer, tp: TopicPartition, seconds: float) -> int:
    """Where the first record lies that was appended then or later: the end if there is none."""
    found = (await consumer.offsets_for_times({tp: max(int(seconds * 1000), 0)}))[tp]
    end: int = (await consumer.end_offsets([tp]))[tp] if found is None else found.offset
    return end


async def names_near(kafka: KafkaSettings, node: str) -> list[str]:
    """Up to three names like `node`, whatever their case, among the nodes that have reported
    lately; `node` itself is the first if it is one of them."""
    topic = NODE_STATE.full_name(kafka.topic_prefix)
    tps = [TopicPartition(topic, partition) for partition in range(kafka.partitions)]
    names: set[str] = set()
    with our_errors(kafka, f"reading {topic}"):
        async with _consumer(kafka, tps) as consumer:
            ends = await consumer.end_offsets(tps)
            for tp, first in (await consumer.beginning_offsets(tps)).items():
                start = max(first, ends[tp] - _NAMES_FROM)
                async for key, _, _ in _read(consumer, tp, start, ends[tp]):
                    names.add(key.decode(errors="replace"))
    folded = {name.casefold(): name for name in sorted(names)}
    near = difflib.get_close_matches(node.casefold(), folded, n=3)
    return [folded[name] for name in near]


@asynccontextmanager
async def _consumer(
    kafka: KafkaSettings, tps: list[TopicPartition]
) -> AsyncIterator[AIOKafkaConsumer]:
    """A reader outside any group, its partitions paused."""
    consumer = AIOKafkaConsumer(
        **client_options(kafka), **COMMITTED, group_id=None, enable_auto_commit=False
    )
    await consumer.start()
    try:
        consumer.assign(tps)
        consumer.pause(*tps)
        yield consumer
    finally:
        await consumer.stop()


async def _read(
    consumer: AIOKafkaConsumer, tp: TopicPartition, start: int, end: int
) -> AsyncIterator[tuple[bytes, bytes | None, int]]:
    """Key, value and offset of what is kept of start <= offset < end."""
    if start >= end:
        return
    consumer.seek(tp, start)
    consumer.resume(tp)
    position, silent = start, 0
    try:
        while position < end:
            for message in (await consumer.getmany(tp, timeout_ms=_POLL_MS)).get(tp, ()):
                if start <= message.offset < end:
                    yield message.key or b"", message.value, message.offset
            before, position = position, await consumer.position(tp)
            if position < start:
                # aiokafka's own first reset, under way since `assign`, may undo a seek.
                consumer.seek(tp, start)
            silent = silent + 1 if position == before else 0
            if silent > _SILENT_POLLS:
                raise TimeoutError(f"nothing arrived of offsets {position} to {end}")
    finally:
        consumer.pause(tp)


def _pieces(first: int, end: int) -> Iterator[tuple[int, int]]:
    """Ranges from the end back to the beginning, each twice as long as the one behind it."""
    size = _FIRST_PIECE
    while end > first:
        start = max(first, end - size)
        yield start, end
        end, size = start, size * 2
