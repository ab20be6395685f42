"""What the policy says of the windows of this node, from the topic `nodes`.

The exporter does without it: while the topic cannot be read, what was last heard holds, and before
that the settings do. There is an exporter on every node, so that each asks seldom and waits long.
"""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition

from node_exporter import exporter_metrics
from pipeline.clock import Clock
from pipeline.errors import BrokerUnavailableError, KafkaError, RecordError
from pipeline.kafka.client import COMMITTED, client_options, our_errors
from pipeline.kafka.partition import partition_of
from pipeline.logs import get_logger
from pipeline.settings import KafkaSettings
from pipeline.topics.codec import Record, decode_json
from pipeline.topics.registry import MAX_RECORD_BYTES, NODES

_WAIT_SECONDS: Final = 10.0
_BACKOFF_SECONDS: Final = (5.0, 60.0)

log = get_logger(__name__)


class _Strategy(msgspec.Struct, frozen=True):
    report_interval_seconds: float | None = None


class _Node(Record, frozen=True, kw_only=True):
    """What we read of a `NodeRecord`."""

    node: str
    strategy: _Strategy | None = None


def reported_every_seconds(value: bytes | None) -> float | None:
    """What a record of the node says; None for a tombstone, and where it says nothing.

    Raises a `RecordError` for a record that cannot be read.
    """
    if value is None:
        return None
    strategy = decode_json(_Node, value).strategy
    return None if strategy is None else strategy.report_interval_seconds


async def follow(
    kafka: KafkaSettings, node: str, clock: Clock, tell: Callable[[float | None], None]
) -> None:
    """Call `tell` with each report interval that is in force for the node, for ever."""
    backoff = _BACKOFF_SECONDS[0]
    place: int | None = None
    while True:
        try:
            async for found in _records(kafka, node, place):
                place, backoff = found.next_offset, _BACKOFF_SECONDS[0]
                if found.is_new:
                    _tell(found.value, tell)
            place = None
        except KafkaError as error:
            exporter_metrics.ERRORS.labels("policy").inc()
            # That no broker answers is said by whoever publishes windows.
            say = log.debug if isinstance(error, BrokerUnavailableError) else log.warning
            if backoff == _BACKOFF_SECONDS[0]:
                say("the policy is not followed for now", why=error)
        # After an outage not all exporters at once.
        await clock.sleep(backoff * (0.5 + random.random()))
        backoff = min(2 * backoff, _BACKOFF_SECONDS[1])


def _tell(value: bytes | None, tell: Callable[[float | None], None]) -> None:
    try:
        tell(reported_every_seconds(value))
    except RecordError as error:
        exporter_metrics.ERRORS.labels("policy").inc()
        log.warning("the record of this node cannot be read", why=error)


class _Found(NamedTuple):
    """What lay below `next_offset`: the newest record of the node, if there was one at all."""

    next_offset: int
    is_new: bool = False
    value: bytes | None = None


async def _records(kafka: KafkaSettings, node: str, place: int | None) -> AsyncIterator[_Found]:
    """What lies there from `place` on (None: from the beginning), then what comes, for ever."""
    tp = TopicPartition(NODES.full_name(kafka.topic_prefix), partition_of(node, kafka.partitions))
    key = node.encode()
    with our_errors(kafka, "following the policy"):
        async with _consumer(kafka, tp, place) as consumer:
            end = (await consumer.end_offsets([tp]))[tp]
            if place is not None and place > end:
                return  # the topic was made anew
            found = _Found(await consumer.position(tp))
            while found.next_offset < end:
                found = await _next(consumer, tp, key, found)
        yield found
        wait = min(_WAIT_SECONDS, kafka.request_timeout_seconds / 2)
        # Until so much has come the broker waits: one answer for many changes.
        patient = {"fetch_max_wait_ms": round(1000 * wait), "fetch_min_bytes": MAX_RECORD_BYTES}
        async with _consumer(kafka, tp, found.next_offset, **patient) as consumer:
            while True:
                yield (found := await _next(consumer, tp, key, _Found(found.next_offset)))


async def _next(
    consumer: AIOKafkaConsumer, tp: TopicPartition, key: bytes, before: _Found
) -> _Found:
    records = (await consumer.getmany(tp, timeout_ms=1000)).get(tp, [])
    own = [record.value for record in records if record.key == key]
    at = await consumer.position(tp)
    return _Found(at, True, own[-1]) if own else before._replace(next_offset=at)


@asynccontextmanager
async def _consumer(
    kafka: KafkaSettings, tp: TopicPartition, place: int | None, **fetching: int
) -> AsyncIterator[AIOKafkaConsumer]:
    consumer = AIOKafkaConsumer(
        **client_options(kafka),
        **COMMITTED,
        **fetching,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=MAX_RECORD_BYTES,
    )
    try:
        await consumer.start()
        consumer.assign([tp])
        if place is None:
            await consumer.seek_to_beginning(tp)
        else:
            consumer.seek(tp, place)
        yield consumer
    finally:
        await consumer.stop()
