"""Read what former leaders did from springtide.actions, and how far back that is complete."""

from collections.abc import Callable

from pipeline.clock import Clock
from pipeline.errors import RecordError
from pipeline.kafka.client import client_options
from pipeline.kafka.follow import (
    ConsumerRecord,
    Follower,
    TopicPartition,
    open_follower,
    topic_partitions,
)
from pipeline.kafka.refused_records import refuse
from pipeline.logs import get_logger
from pipeline.settings import KafkaSettings
from pipeline.topics.actions import ActionRecord
from pipeline.topics.codec import decode_json
from pipeline.topics.registry import ACTIONS

log = get_logger(__name__)

Learn = Callable[[ActionRecord, float], None]
"""Takes an action, and when the broker appended it (Unix time). Raises ValueError if it is
invalid."""


async def read_former_actions(
    kafka: KafkaSettings, clock: Clock, seconds: float, learn: Learn
) -> float:
    """Pass the evictor's actions of the last `seconds` to `learn`; returns since when they are
    complete (monotonic). Raises `KafkaError`."""
    partitions = topic_partitions(kafka, ACTIONS)
    async with open_follower(client_options(kafka), partitions) as follower:
        return await read_actions(follower, clock, seconds, learn)


async def read_actions(follower: Follower, clock: Clock, seconds: float, learn: Learn) -> float:
    """The same, with a follower of all partitions of springtide.actions."""
    now, monotonic, learned = clock.now(), clock.monotonic(), 0
    since_ms = round((now - seconds) * 1000)
    ends, first = await follower.ends(), await follower.beginnings()
    starts = await follower.offsets_at(dict.fromkeys(follower.assigned, since_ms))
    # The last record before the look-back shows that none was deleted after it.
    expected = {tp: max(start - 1, 0) for tp, start in starts.items()}
    unseen = {tp for tp, start in starts.items() if start > 0}
    complete_at = now - seconds
    follower.read_from({tp: max(at, first[tp]) for tp, at in expected.items()}, ends)
    async for records in follower.read_to_end():
        for record in records:
            tp = TopicPartition(record.topic, record.partition)
            if record.offset != expected[tp]:
                # Retention or compaction deleted records of unknown times before this one.
                complete_at = max(complete_at, record.timestamp / 1000)
            expected[tp] = record.offset + 1
            unseen.discard(tp)
            learned += _learn(record, learn)
    if unseen:
        # Nothing is left, or nothing is known about the time at which the rest was deleted.
        complete_at = max(complete_at, now)
    known_seconds = min(max(now - complete_at, 0.0), seconds)
    log.info("limits are rebuilt from actions", evictor_actions=learned)
    if known_seconds < seconds:
        log.warning(
            "springtide.actions does not reach back far enough: limits in time wait",
            needed_seconds=round(seconds), known_seconds=round(known_seconds),
        )  # fmt: skip
    return monotonic - known_seconds


def _learn(record: ConsumerRecord, learn: Learn) -> bool:
    # Most actions are of the cluster actuator.
    if record.value is None or b'"evictor"' not in record.value:
        return False
    try:
        learn(decode_json(ActionRecord, record.value), record.timestamp / 1000)
    except (RecordError, ValueError) as error:
        refuse(record.topic, error, partition=record.partition, offset=record.offset)
        return False
    return True
