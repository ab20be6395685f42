"""Keep a record in each partition of springtide.actions, so that the next leader knows how far back
the log is complete.

A partition that retention emptied, as one without actions for a month, says nothing about the time
at which its last records were deleted: a new leader would take the whole look-back for unknown, and
limits in time would wait for an hour after each start. What follows a record is complete.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from actuators.eviction.plan_limits import EVICTOR
from pipeline.clock import Clock
from pipeline.errors import KafkaError
from pipeline.kafka.client import client_options
from pipeline.kafka.follow import open_follower, topic_partitions
from pipeline.logs import get_logger
from pipeline.settings import KafkaSettings
from pipeline.times import format_time
from pipeline.topics.actions import ActionRecord
from pipeline.topics.registry import ACTIONS

log = get_logger(__name__)

MARK: Final = "mark the log"
"""`action` of these records."""
EVERY_SECONDS: Final = 86_400.0
_AGAIN_SECONDS: Final = 60.0

Emptied = Callable[[], Awaitable[list[int]]]
"""The partitions from which records were deleted, and that have none. Raises `KafkaError`."""
Write = Callable[[ActionRecord, int], Awaitable[object]]
"""Writes a record to a partition, and awaits its delivery. Raises `KafkaError`."""


async def emptied_partitions(kafka: KafkaSettings) -> list[int]:
    """The partitions of springtide.actions from which records were deleted, and that have none."""
    async with open_follower(client_options(kafka), topic_partitions(kafka, ACTIONS)) as follower:
        first, ends = await follower.beginnings(), await follower.ends()
    return sorted(tp.partition for tp, end in ends.items() if 0 < end == first[tp])


async def keep_marks(partitions: int, clock: Clock, emptied: Emptied, write: Write) -> None:
    """Write a record to each emptied partition now, and to each partition every day: retention is
    longer. Runs until cancelled."""
    left: list[int] | None = None
    while True:
        try:
            left = await emptied() if left is None else left
            while left:
                await write(mark(clock.now()), left[0])
                del left[0]
        except KafkaError as error:
            log.warning("springtide.actions is not marked, trying again", why=error.message)
            await clock.sleep(_AGAIN_SECONDS)
        else:
            await clock.sleep(EVERY_SECONDS)
            left = [*range(partitions)]


def mark(now: float) -> ActionRecord:
    """A record that no decision depends on."""
    return ActionRecord(
        node="", at=format_time(now), actuator=EVICTOR, action=MARK, outcome="done",
        why="actions since this record are complete",
    )  # fmt: skip
