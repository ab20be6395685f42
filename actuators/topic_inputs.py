"""What the topics say, in order of each partition: all that lies there, then what comes."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition

from pipeline.kafka.client import COMMITTED, client_options, our_errors
from pipeline.settings import KafkaSettings
from pipeline.topics.registry import MAX_RECORD_BYTES, Topic

_POLL_MS: Final = 200
_AT_ONCE: Final = 500


class Input(NamedTuple):
    """A record; a value of None is a tombstone."""

    topic: str
    partition: int
    offset: int
    key: bytes
    value: bytes | None


async def read(
    kafka: KafkaSettings, topics: Sequence[Topic], since_ms: dict[str, int] | None = None
) -> AsyncIterator[list[Input] | None]:
    """Records of these topics, for ever, and None once: when all that lay there at the start was
    given. A topic in `since_ms` is read from that time on, by the broker's clock.

    Raises `BrokerUnavailableError` if the broker does not answer.
    """
    names = {topic.full_name(kafka.topic_prefix): topic.name for topic in topics}
    consumer = AIOKafkaConsumer(
        **client_options(kafka),
        **COMMITTED,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=MAX_RECORD_BYTES,
    )
    with our_errors(kafka, "reading topics"):
        try:
            await consumer.start()
            partitions = [
                TopicPartition(name, p) for name in names for p in range(kafka.partitions)
            ]
            consumer.assign(partitions)
            await _seek(consumer, names, partitions, since_ms or {})
            left = dict(await consumer.end_offsets(partitions))
            while True:
                found = await consumer.getmany(timeout_ms=_POLL_MS, max_records=_AT_ONCE)
                batch = [
                    Input(names[tp.topic], tp.partition, one.offset, one.key or b"", one.value)
                    for tp, messages in found.items()
                    for one in messages
                ]
                if batch:
                    yield batch
                for tp in list(left):
                    if await consumer.position(tp) >= left[tp]:
                        del left[tp]
                        if not left:
                            yield None
                await asyncio.sleep(0)
        finally:
            await consumer.stop()


async def _seek(
    consumer: AIOKafkaConsumer,
    names: dict[str, str],
    partitions: Sequence[TopicPartition],
    since_ms: dict[str, int],
) -> None:
    timed = {tp: since_ms[names[tp.topic]] for tp in partitions if names[tp.topic] in since_ms}
    found: dict[TopicPartition, Any] = await consumer.offsets_for_times(timed) if timed else {}
    ends = await consumer.end_offsets(list(timed)) if timed else {}
    for tp in partitions:
        if tp not in timed:
            await consumer.seek_to_beginning(tp)
        else:
            at = found.get(tp)
            consumer.seek(tp, ends[tp] if at is None else at.offset)
