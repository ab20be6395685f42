"""Everything a worker writes to Kafka, through one idempotent producer.

`append` awaits delivery of one record batch after the other, whole or not at all, so that no hole
can lie below a record that is there. A failed delivery raises, and whoever called must end the
worker.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from aiokafka import AIOKafkaProducer

from pipeline.errors import StateError
from pipeline.topics.dead_letters import DeadLetter
from pipeline.topics.registry import MAX_RECORD_BYTES

# aiokafka packs lz4 at level 9, whatever one asks for: nine tenths of a millisecond for a window of
# 100 pods, more than all the rest of the join, and for a tenth less of bytes.
_COMPRESSION = "snappy"
# What is packed in one go stays in the caches of a processor, and its memory is used again.
_BATCH_BYTES = 1024 * 1024
# 20 ms of linger halves the throughput of a loop that awaits what it sent.
_LINGER_MS = 2

LARGEST_VALUE_BYTES = MAX_RECORD_BYTES - 16_384
"""What a value may take: the rest is for key, headers and the batch around them."""


class Keyed(NamedTuple):
    """A record to write; a value of None is a tombstone."""

    key: bytes
    value: bytes | None


class Output:
    """The worker's producer; made by `open_output`."""

    def __init__(self, producer: AIOKafkaProducer) -> None:
        self._producer = producer

    async def append(self, topic: str, partition: int, records: Sequence[Keyed]) -> list[int]:
        """Write `records` so that after any failure a prefix of them is there, and no more; gives
        their offsets.

        Raises `ValueError` for a record that fits no batch, `StateError` where the broker has the
        records but does not say at which offsets, and what aiokafka raises for a failed delivery.
        """
        # Batches made here: aiokafka's own way costs ten times as much per record.
        rest, offsets = list(records), list[int]()
        while rest:
            batch = self._producer.create_batch()
            taken = 0
            for key, value in rest:
                if batch.size() >= _BATCH_BYTES:
                    break
                if batch.append(key=key, value=value, timestamp=None) is None:
                    break
                taken += 1
            if not taken:
                raise ValueError(f"a record of {len(rest[0].value or b'')} bytes fits no batch")
            batch.close()
            written = await (await self._producer.send_batch(batch, topic, partition=partition))
            if written.offset < 0:  # a repetition whose first answer was lost
                raise StateError(f"{topic}[{partition}]: the broker does not say where records lie")
            offsets += range(written.offset, written.offset + taken)
            del rest[:taken]
        return offsets

    async def dead_letter(self, topic: str, partition: int, letter: DeadLetter) -> None:
        """Write a dead letter and await its delivery."""
        await self._producer.send_and_wait(
            topic,
            key=letter.key,
            value=letter.value,
            partition=partition,
            headers=letter.headers,
        )


@asynccontextmanager
async def open_output(client: Mapping[str, Any]) -> AsyncIterator[Output]:
    """A producer with the connection settings `client` (those of `topics.client`)."""
    producer = AIOKafkaProducer(
        **client,
        enable_idempotence=True,
        acks="all",
        linger_ms=_LINGER_MS,
        compression_type=_COMPRESSION,
        max_batch_size=MAX_RECORD_BYTES - 4096,
        max_request_size=MAX_RECORD_BYTES,
    )
    try:
        await producer.start()
        yield Output(producer)
    finally:
        await producer.stop()
