"""Follow the report interval that the policy sets for this node, on the topic `nodes`.

While the topic cannot be read, the last interval stays in force; before the first record, that of
the settings does. Every node has an exporter, so each fetches rarely and lets the broker wait long.
"""

from collections.abc import AsyncIterator, Callable
from typing import Final

import msgspec

from node_exporter import exporter_metrics
from pipeline.clock import Clock
from pipeline.errors import BrokerUnavailableError, KafkaError, RecordError
from pipeline.kafka.client import client_options
from pipeline.kafka.follow import (
    Backoff,
    Fetching,
    LostOffsetError,
    TopicPartition,
    open_follower,
)
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
    """The fields of a `NodeRecord` that the exporter reads."""

    node: str
    strategy: _Strategy | None = None


def reported_every_seconds(value: bytes | None) -> float | None:
    """The report interval in a record of the node; None in a tombstone, or if it sets none.

    Raises `RecordError` if the record cannot be read.
    """
    if value is None:
        return None
    strategy = decode_json(_Node, value).strategy
    return None if strategy is None else strategy.report_interval_seconds


async def follow(
    kafka: KafkaSettings, node: str, clock: Clock, tell: Callable[[float | None], None]
) -> None:
    """Call `tell` with each report interval that is in force for the node, for ever."""
    backoff = Backoff(*_BACKOFF_SECONDS, jitter=True)
    next_offset: int | None = None
    while True:
        try:
            async for end, values in _values(kafka, node, next_offset):
                next_offset = end
                backoff.reset()
                if values:
                    _tell(values[-1], tell)
        except LostOffsetError:
            next_offset = None  # the topic was recreated
        except KafkaError as error:
            exporter_metrics.ERRORS.labels("policy").inc()
            # That no broker answers is logged by the publisher of windows.
            write = log.debug if isinstance(error, BrokerUnavailableError) else log.warning
            if backoff.is_first:
                write("the policy cannot be read; the interval in force stays", why=error)
        await clock.sleep(backoff.pause())


def _tell(value: bytes | None, tell: Callable[[float | None], None]) -> None:
    try:
        tell(reported_every_seconds(value))
    except RecordError as error:
        exporter_metrics.ERRORS.labels("policy").inc()
        log.warning("the record of this node cannot be read", why=error)


async def _values(
    kafka: KafkaSettings, node: str, start: int | None
) -> AsyncIterator[tuple[int, list[bytes | None]]]:
    """The next offset, and the values of the node's records before it: once for everything from
    `start` (None: the first record) to the present end, then for what is appended, for ever."""
    tp = TopicPartition(NODES.full_name(kafka.topic_prefix), partition_of(node, kafka.partitions))
    client, key = client_options(kafka), node.encode()
    values: list[bytes | None] = []
    async with open_follower(client, [tp]) as follower:
        ends = await follower.ends()
        starts = await follower.beginnings() if start is None else {tp: start}
        if starts[tp] > ends[tp]:
            raise LostOffsetError(f"{tp.topic} ends before offset {starts[tp]}")
        follower.seek(starts, ends)
        async for records in follower.read_to_end():
            values += [record.value for record in records if record.key == key]
        end = follower.positions[tp]
    yield end, values
    # Until so much has come the broker waits: one answer for many changes.
    wait = min(_WAIT_SECONDS, kafka.request_timeout_seconds / 2)
    patient = Fetching(min_bytes=MAX_RECORD_BYTES, max_wait_ms=round(1000 * wait))
    async with open_follower(client, [tp], patient) as follower:
        follower.seek({tp: end}, {})
        while True:
            records = await follower.poll(timeout_seconds=1.0)
            own = [record.value for record in records if record.key == key]
            yield follower.positions[tp], own
