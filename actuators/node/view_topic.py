"""Follow the view of this node on the topic `springtide.node-views`.

A partition has the views of many nodes, and each of their actuators fetches all of them: in a
cluster of thousands of nodes, poll an extender instead (`view_poll`). At the start the partition is
read from its end backwards until the node's view is found.
"""

import math
from typing import Final

from actuators.node.newest_view import NewestView
from pipeline.clock import Clock
from pipeline.errors import KafkaError
from pipeline.kafka.client import client_options
from pipeline.kafka.follow import (
    Backoff,
    Fetching,
    Follower,
    LostOffsetError,
    TopicPartition,
    open_follower,
)
from pipeline.kafka.newest import newest
from pipeline.kafka.partition import partition_of
from pipeline.logs import get_logger
from pipeline.settings import KafkaSettings
from pipeline.topics.registry import MAX_RECORD_BYTES, NODE_VIEWS

# One response for many changes, and none is much later than a round.
_FETCHING: Final = Fetching(min_bytes=MAX_RECORD_BYTES, max_wait_ms=2000)
CONFIRM_SECONDS: Final = 10.0
_BACKOFF_SECONDS: Final = (1.0, 30.0)

log = get_logger(__name__)


async def follow_topic(kafka: KafkaSettings, view: NewestView, clock: Clock) -> None:
    """Fill `view` from the topic, until cancelled."""
    topic = NODE_VIEWS.full_name(kafka.topic_prefix)
    tp = TopicPartition(topic, partition_of(view.node, kafka.partitions))
    following = _Following(kafka, tp, view, clock)
    backoff = Backoff(*_BACKOFF_SECONDS)
    while True:
        try:
            async with open_follower(client_options(kafka), [tp], _FETCHING) as follower:
                await following.read(follower, backoff)
        except LostOffsetError:
            following.start_again()
        except KafkaError as error:
            if backoff.is_first:
                log.warning("cannot read the view, the last one stays", why=error)
        await clock.sleep(backoff.pause())


class _Following:
    """The place in the partition up to which views were read."""

    def __init__(
        self, kafka: KafkaSettings, tp: TopicPartition, view: NewestView, clock: Clock
    ) -> None:
        self._kafka, self._tp, self._view, self._clock = kafka, tp, view, clock
        self._next_offset: int | None = None
        self._topic_ids: dict[str, str] = {}

    def start_again(self) -> None:
        """The topic was recreated."""
        self._next_offset, self._topic_ids = None, {}
        self._view.restart()

    async def read(self, follower: Follower, backoff: Backoff) -> None:
        """Receive views until the topic cannot be read. Raises `KafkaError`."""
        await self._check_topic(follower)
        if self._next_offset is None:
            asked_at = self._clock.monotonic()
            end = (await follower.ends())[self._tp]
            found = await newest(self._kafka, NODE_VIEWS, self._view.node)
            if found is not None and self._view.receive(found.value):
                self._view.confirm(asked_at)
            self._next_offset = end
        follower.read_from({self._tp: self._next_offset}, {})
        asked_at, target = -math.inf, math.inf
        while True:
            # Before it asks again: a partition that gets views all the time is always behind.
            if self._next_offset >= target:
                self._view.confirm(asked_at)
                backoff.reset()
            if self._clock.monotonic() >= asked_at + CONFIRM_SECONDS:
                await self._check_topic(follower)
                asked_at, target = self._clock.monotonic(), (await follower.ends())[self._tp]
                if target < self._next_offset:
                    raise LostOffsetError(f"{self._tp.topic} ends before {self._next_offset}")
            for record in await follower.poll(timeout_seconds=1.0):
                # A tombstone: the Node was deleted. Its pods still run here.
                if record.key == self._view.node.encode() and record.value is not None:
                    self._view.receive(record.value, record.headers)
            self._next_offset = follower.positions[self._tp]

    async def _check_topic(self, follower: Follower) -> None:
        """Raise `LostOffsetError` if the topic is another one than before."""
        ids = await follower.topic_ids()
        if ids and self._topic_ids and ids != self._topic_ids:
            raise LostOffsetError(f"{self._tp.topic} was recreated")
        self._topic_ids = ids or self._topic_ids
