"""Follow the report interval that the policy sets for this node, on the topic `nodes`.

While the topic cannot be read, the last interval stays in force; before the first record the
interval of the settings applies. Every node has an exporter, so each fetches rarely and lets the
broker wait long.
"""

from collections.abc import AsyncIterator, Callable
from typing import Final

import msgspec

from node_exporter import exporter_metrics
from pipeline.clock import Clock
from pipeline.errors import BrokerUnavailableError, KafkaError, RecordError
from pipeline.kafka.client import client_options
from pipeline.kafka.follow import Backoff, Fetching, LostOffsetError, TopicPartition, open_follower
from pipeline.kafka.partition import partition_of
from pipeline.logs import get_logger
from pipeline.settings import KafkaSettings
from pipeline.topics.codec import Record, decode_json
from pipeline.topics.registry import MAX_RECORD_BYTES, NODES

_FETCH_WAIT_SECONDS: Final = 10.0
_BACKOFF_SECONDS: Final = (5.0, 60.0)

log = get_logger(__name__)


class _Strategy(msgspec.Struct, frozen=True):
    report_interval_seconds: float | None = None


class _Node(Record, frozen=True, kw_only=True):
    """The fields of `NodeRecord` that the exporter reads."""

    node: str
    strategy: _Strategy | None = None


def report_interval_seconds(value: bytes | None) -> float | None:
    """Report interval in the value of a node's record; None for a tombstone or without a policy.
    Raises `RecordError` if the record cannot be decoded."""
    if value is None:
        return None
    strategy = decode_json(_Node, value).strategy
    return None if strategy is None else strategy.report_interval_seconds


async def follow(
    kafka: KafkaSettings, node: str, clock: Clock, apply: Callable[[float | None], None]
) -> None:
    """Call `apply` with each report interval of the node, until cancelled."""
    backoff = Backoff(*_BACKOFF_SECONDS, jitter=True)
    next_offset: int | None = None
    while True:
        try:
            async for end, values in _values(kafka, node, next_offset):
                next_offset = end
                backoff.reset()
                if values:
                    _apply(values[-1], apply)
        except LostOffsetError:
            next_offset = None  # the topic was recreated
        except KafkaError as error:
            exporter_metrics.ERRORS.labels("policy").inc()
            # The publisher of windows logs an unavailable broker.
            write = log.debug if isinstance(error, BrokerUnavailableError) else log.warning
            if backoff.is_first:
                write("cannot read the policy, the report interval stays", why=error)
        await clock.sleep(backoff.pause())


def _apply(value: bytes | None, apply: Callable[[float | None], None]) -> None:
    try:
        apply(report_interval_seconds(value))
    except RecordError as error:
        exporter_metrics.ERRORS.labels("policy").inc()
        log.warning("cannot decode the record of this node", why=error)


async def _values(
    kafka: KafkaSettings, node: str, start: int | None
) -> AsyncIterator[tuple[int, list[bytes | None]]]:
    """Yield (next offset, values of the node's records before it), until cancelled.

    The first pair covers the records from `start` (None: the first record) to the present end, each
    later pair newly appended records.
    """
    tp = TopicPartition(NODES.full_name(kafka.topic_prefix), partition_of(node, kafka.partitions))
    client, key = client_options(kafka), node.encode()
    values: list[bytes | None] = []
    async with open_follower(client, [tp]) as follower:
        ends = await follower.ends()
        starts = await follower.beginnings() if start is None else {tp: start}
        if starts[tp] > ends[tp]:
            raise LostOffsetError(f"{tp.topic} ends before offset {starts[tp]}")
        follower.read_from(starts, ends)
        async for records in follower.read_to_end():
            values += [record.value for record in records if record.key == key]
        end = follower.positions[tp]
    yield end, values
    # The broker waits for this many bytes: one response for many changes.
    wait = min(_FETCH_WAIT_SECONDS, kafka.request_timeout_seconds / 2)
    patient = Fetching(min_bytes=MAX_RECORD_BYTES, max_wait_ms=round(1000 * wait))
    async with open_follower(client, [tp], patient) as follower:
        follower.read_from({tp: end}, {})
        while True:
            records = await follower.poll(timeout_seconds=1.0)
            own = [record.value for record in records if record.key == key]
            yield follower.positions[tp], own
