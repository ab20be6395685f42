"""What the policy says of the windows of this node, from the topic `nodes`.

The exporter does without it: while the topic cannot be read, what was last heard holds, and before
that the settings do. There is an exporter on every node, so that each asks seldom and waits long.
"""

from collections.abc import AsyncIterator, Callable
from typing import Final

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition

from node_exporter import metrics
from pipeline.clock import Clock
from pipeline.errors import KafkaError, RecordError
from pipeline.logs import get_logger
from pipeline.settings import KafkaSettings
from pipeline.topics.client import COMMITTED, client_options, our_errors
from pipeline.topics.codec import Record, decode_json
from pipeline.topics.partition import partition_of
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
    while True:
        try:
            async for value in _records(kafka, node):
                backoff = _BACKOFF_SECONDS[0]
                try:
                    tell(reported_every_seconds(value))
                except RecordError as error:
                    metrics.ERRORS.labels("policy").inc()
                    log.warning("the record of this node cannot be read", why=error)
        except KafkaError as error:
            metrics.ERRORS.labels("policy").inc()
            if backoff == _BACKOFF_SECONDS[0]:
                log.warning("the policy is not followed for now", why=error)
        await clock.sleep(backoff)
        backoff = min(2 * backoff, _BACKOFF_SECONDS[1])


async def _records(kafka: KafkaSettings, node: str) -> AsyncIterator[bytes | None]:
    """The newest record of the node, then each new one."""
    tp = TopicPartition(NODES.full_name(kafka.topic_prefix), partition_of(node, kafka.partitions))
    wait = min(_WAIT_SECONDS, kafka.request_timeout_seconds / 2)
    with our_errors(kafka, "following the policy"):
        consumer = AIOKafkaConsumer(
            **client_options(kafka),
            **COMMITTED,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=round(1000 * wait),
            # Until so much has come the broker waits: one answer for many changes.
            fetch_min_bytes=MAX_RECORD_BYTES,
        )
        try:
            await consumer.start()
            consumer.assign([tp])
            end = (await consumer.end_offsets([tp]))[tp]
            key, newest, is_told = node.encode(), None, False
            while True:
                found = (await consumer.getmany(tp, timeout_ms=1000)).get(tp, [])
                own = [record.value for record in found if record.key == key]
                if own:
                    newest, is_told = own[-1], False
                if not is_told and await consumer.position(tp) >= end:
                    is_told = True
                    yield newest
        finally:
            await consumer.stop()
