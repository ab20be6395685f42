"""Write records by one class: idempotent, acknowledged by all in-sync replicas, started at need.

A `Producer` connects with its first record, or at `start` (`async with`). There are four ways to
write: `deliver` awaits one record; `offer` does, too, but gives up after ten seconds, logs the loss
and counts it, for records that must not hold up their writer; `send` and `send_batches` return
deliveries, for many records in flight; `append` extends a log without holes, so that the offset of
a record tells that all earlier ones are there. Errors are those of `translated_errors`, except
those of a delivery.

What aiokafka 0.14 requires, all in this module:

- A producer whose `start` failed or was cancelled must be stopped, else its tasks stay.
- `stop` waits for a broker that is away: it has five seconds to deliver what is in flight. Then
  deliveries fail, and the parts of the client are closed one by one.
- `send` costs ten times as much per record as batches that are made here.
- lz4 is always packed at level 9: 0.9 ms for a window of 100 pods, more than the rest of the join,
  for a tenth less of bytes. Snappy is used instead.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, NamedTuple, Self

from aiokafka import AIOKafkaProducer, errors
from aiokafka.cluster import ClusterMetadata

from pipeline.errors import KafkaError, StateError
from pipeline.kafka.client import limit_connections, limit_metadata_requests, translated_errors
from pipeline.logs import get_logger
from pipeline.tasks import run_within
from pipeline.topics.dead_letters import DeadLetter
from pipeline.topics.registry import MAX_RECORD_BYTES

LARGEST_VALUE_BYTES: Final = MAX_RECORD_BYTES - 16_384
"""What a value may take: the rest is for key, headers and the batch around them."""

DELIVERY_SECONDS: Final = 120.0
"""How long a record may take. aiokafka repeats some requests for ever, for instance while too few
replicas are in sync."""
OFFER_SECONDS: Final = 10.0
STOP_SECONDS: Final = 5.0
CLOSE_SECONDS: Final = 1.0
"""How long each part of a client may take to close, without deliveries."""

_LOG_APPEND_TIME: Final = 1
_log = get_logger(__name__)

Headers = Sequence[tuple[str, bytes]]
HeadersByKey = Mapping[bytes, Headers]
"""The headers of single records of a batch, by key; other records have none."""
Delivery = asyncio.Future[Any]


class RecordTooLargeError(KafkaError):
    """A record is larger than the producer sends or the topic accepts."""


class Keyed(NamedTuple):
    """A record to write; a value of None is a tombstone."""

    key: bytes
    value: bytes | None


class Batching(NamedTuple):
    """When a batch is sent: at `batch_bytes` (a larger record goes alone), or after `linger_ms`."""

    linger_ms: int = 0
    batch_bytes: int = 16_384
    compression: str | None = None


SINGLE_RECORDS: Final = Batching()
# A batch of a megabyte is packed within the caches of a processor. 20 ms of linger would halve the
# throughput of a loop that awaits each delivery.
LOG: Final = Batching(linger_ms=2, batch_bytes=1024 * 1024, compression="snappy")


class Producer:
    """A connection for writing; `client` is what `client_options` returns.

    The `sole_writer` of a name writes in transactions: the broker refuses the former writer.
    `lost` counts the records that `offer` could not deliver.
    """

    def __init__(
        self,
        client: Mapping[str, Any],
        batching: Batching = SINGLE_RECORDS,
        *,
        client_id: str | None = None,
        max_record_bytes: int = MAX_RECORD_BYTES,
        sole_writer: str | None = None,
    ) -> None:
        self.lost = 0
        self._client = client
        self._options = {
            "linger_ms": batching.linger_ms,
            "max_batch_size": batching.batch_bytes,
            "compression_type": batching.compression,
            "client_id": client_id,
            "max_request_size": max_record_bytes,
            "transactional_id": sole_writer,
        }
        self._next_offsets: dict[tuple[str, int], int] = {}
        self._producer: AIOKafkaProducer | None = None
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Connect, unless connected. Raises `BrokerUnavailableError` if no broker answers."""
        await self._started()

    async def stop(self, seconds: float | None = None) -> None:
        """Deliver what is in flight, within five or these `seconds`, and disconnect, within two
        more. Deliveries that did not end by then fail."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await self._stop(producer, STOP_SECONDS if seconds is None else seconds)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def deliver(
        self,
        topic: str,
        *,
        value: bytes | None,
        key: bytes | None,
        partition: int | None = None,
        headers: Headers = (),
    ) -> float | None:
        """Write a record and await its delivery, for two minutes at most; returns when the broker
        appended it (Unix time), None if it does not say.

        Raises `RecordTooLargeError` if it is too large for the producer or the topic,
        `BrokerUnavailableError` if it is not acknowledged in time: then it may be there.
        """
        async with self._within(f"writing to {topic}"):
            try:
                producer = await self._started()
                written = await producer.send_and_wait(
                    topic, value, key=key, partition=partition, headers=headers
                )
            except (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError) as error:
                raise RecordTooLargeError(f"{topic}: {error}") from error
        # Otherwise it is the producer's time. The answer to a repetition has none.
        if written.timestamp_type != _LOG_APPEND_TIME or (written.timestamp or -1) < 0:
            return None
        return float(written.timestamp / 1000)

    async def offer(
        self, topic: str, *, value: bytes, key: bytes | None, headers: Headers = ()
    ) -> None:
        """Deliver a record, or give up after ten seconds, log the loss and count it."""
        try:
            async with asyncio.timeout(OFFER_SECONDS):
                await self.deliver(topic, value=value, key=key, headers=headers)
        except (KafkaError, TimeoutError) as error:
            self.lost += 1
            _log.error("record lost", topic=topic, error=repr(error))

    async def send(
        self,
        topic: str,
        *,
        value: bytes | None,
        key: bytes | None,
        partition: int | None = None,
        headers: Headers = (),
    ) -> Delivery:
        """Put a record into a batch; the delivery raises what aiokafka raises."""
        async with self._within(f"writing to {topic}"):
            producer = await self._started()
            return _quiet(
                await producer.send(topic, value, key=key, partition=partition, headers=headers)
            )

    async def send_batches(
        self, topic: str, partition: int, records: Iterable[Keyed], headers: Headers = ()
    ) -> list[Delivery]:
        """Send records in order, in batches that are made here; the deliveries raise what aiokafka
        raises."""
        async with self._within(f"writing to {topic}"):
            producer = await self._started()
            return [
                _quiet(await producer.send_batch(batch, topic, partition=partition))
                for batch in _batches(producer, records, headers)
            ]

    async def append(
        self,
        topic: str,
        partition: int,
        records: Iterable[Keyed],
        headers: Headers | HeadersByKey = (),
    ) -> list[int]:
        """Write records and return their offsets. After a failure a prefix of them is there, and
        perhaps the batch that failed: each is delivered, within two minutes, before the next one.

        Raises `KafkaError` if a batch is not delivered, `StateError` if it is delivered and the
        broker does not return its offset, or one below an earlier record of this producer: then the
        log lost records that were acknowledged.
        """
        offsets: list[int] = []
        place = f"{topic}[{partition}]"
        async with self._within(f"writing to {place}"):
            producer = await self._started()
        for batch in _batches(producer, records, headers):
            async with self._within(f"writing to {place}"):
                written = await (await producer.send_batch(batch, topic, partition=partition))
            if written.offset < 0:  # a repetition whose first answer was lost
                raise StateError(f"{place}: the broker returned no offset")
            next_offset = self._next_offsets.get((topic, partition), 0)
            if written.offset < next_offset:
                raise StateError(
                    f"{place}: a record has offset {written.offset} after offset {next_offset - 1}",
                    hint="the log was truncated, or the topic recreated; a restart finds out which",
                )
            end = written.offset + batch.record_count()
            self._next_offsets[topic, partition] = end
            offsets += range(written.offset, end)
        return offsets

    async def dead_letters(self, topic: str, partition: int, letters: Iterable[DeadLetter]) -> None:
        """Write dead letters together, and await their delivery."""
        deliveries = [
            await self.send(topic, partition=partition, **letter._asdict()) for letter in letters
        ]
        async with self._within(f"writing to {topic}"):
            for delivery in deliveries:
                await delivery

    async def offer_dead_letter(self, topic: str, letter: DeadLetter) -> None:
        """Offer a dead letter: its record stays in a compacted topic, and reading goes on."""
        await self.offer(topic, **letter._asdict())

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """A transaction of the `sole_writer`: committed at the end, aborted by an exception. Its
        begin and its end raise as `deliver` does."""
        assert self._producer is not None, "start the producer before a transaction"
        context = self._producer.transaction()
        async with self._within("beginning a transaction"):
            await context.__aenter__()
        try:
            yield
        except BaseException as error:
            async with self._within("aborting a transaction"):
                await context.__aexit__(type(error), error, error.__traceback__)
            raise
        async with self._within("committing a transaction"):
            await context.__aexit__(None, None, None)

    async def partition_count(self, topic: str) -> int:
        """The number of partitions of a topic; 0 if it does not exist. Raises as `deliver` does."""
        async with self._within(f"looking at {topic}"):
            producer, found = await self._started(), ClusterMetadata()
            # Not `partitions_for`, which waits for a topic until a request would time out.
            if not await producer.client._metadata_update(found, [topic]):
                raise errors.NodeNotReadyError(topic)
            if topic in found.unauthorized_topics:
                raise errors.TopicAuthorizationFailedError(topic)
            return len(found.partitions_for_topic(topic) or ())

    @asynccontextmanager
    async def _within(self, doing: str) -> AsyncIterator[None]:
        with translated_errors(self._client, doing):
            async with asyncio.timeout(DELIVERY_SECONDS):
                yield

    async def _started(self) -> AIOKafkaProducer:
        if self._producer is not None:
            return self._producer
        async with self._starting:
            if self._producer is None:
                producer = AIOKafkaProducer(
                    **self._client, **self._options, acks="all", enable_idempotence=True
                )
                limit_metadata_requests(producer.client)
                limit_connections(producer.client)
                try:
                    with translated_errors(self._client, "connecting"):
                        await producer.start()
                except BaseException:
                    await self._stop(producer, CLOSE_SECONDS)  # it has sent nothing
                    raise
                self._producer = producer
            return self._producer

    async def _stop(self, producer: AIOKafkaProducer, seconds: float) -> None:
        with suppress(KafkaError, OSError), translated_errors(self._client, "disconnecting"):
            try:
                await run_within(seconds, producer.stop())
            except TimeoutError:
                # A cancelled `stop` leaves connections open, tasks running and deliveries pending.
                for close in (producer.client.close, producer._sender.close):
                    with suppress(Exception):
                        await run_within(CLOSE_SECONDS, close())
                accumulator = producer._message_accumulator
                # Each failed batch is removed from these, and nobody awaits that it is sent.
                accumulator._pending_batches.update(*accumulator._batches.values())
                accumulator.fail_all(errors.KafkaConnectionError("not delivered"))
                for batch in accumulator._pending_batches:
                    batch._drain_waiter.exception()


def log_producer(client: Mapping[str, Any]) -> Producer:
    """A producer for a worker, which extends logs by `append`."""
    return Producer(client, LOG)


def is_fenced(error: BaseException | None) -> bool:
    """Whether an error was caused by another producer that became the sole writer."""
    while error is not None:
        if isinstance(error, errors.ProducerFenced):
            return True
        # An error that follows from it may hide it.
        error = error.__cause__ or error.__context__
    return False


def _batches(
    producer: AIOKafkaProducer, records: Iterable[Keyed], headers: Headers | HeadersByKey = ()
) -> Iterator[Any]:
    by_key = headers if isinstance(headers, Mapping) else {}
    batch, common = producer.create_batch(), [] if by_key else list(headers)  # a tuple is refused
    for key, value in records:
        listed = list(by_key.get(key, ())) if by_key else common
        if batch.append(key=key, value=value, timestamp=None, headers=listed) is None:
            yield batch  # full, which closes it; an empty one takes any record
            batch = producer.create_batch()
            batch.append(key=key, value=value, timestamp=None, headers=listed)
    if batch.record_count():
        batch.close()
        yield batch


def _quiet(delivery: Delivery) -> Delivery:
    """The delivery; asyncio does not complain if nobody awaits it after an earlier one failed."""
    delivery.add_done_callback(lambda done: done.cancelled() or done.exception())
    return delivery
