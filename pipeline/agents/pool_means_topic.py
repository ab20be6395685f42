"""The means of node pools, read from the topic `fleet`; all partitions of a worker share them."""

from typing import Final

from pipeline.agents.refusals import Refuse
from pipeline.errors import KeyMismatchError, RecordError
from pipeline.kafka.partition_log import LogReader, LogRecord
from pipeline.metrics import counter
from pipeline.processors.join.pool_means import PoolMeans, pool_means
from pipeline.topics.codec import check_readable, decode_json
from pipeline.topics.pool_means import PoolMeansRecord, check_pool_means, pool_of_key
from pipeline.topics.registry import FLEET

OLDER: Final = counter(
    "worker_older_pool_means",
    "Records of node pools that were ignored because a newer one had been applied.",
)

MAX_POOLS: Final = 1000
"""Limit of remembered pools, the last changed ones: names cost nothing."""
FLEET_PARTITION: Final = 0
"""The only partition of `fleet`."""


class PoolMeansTopic:
    """The newest means of each pool, `means`, and the position in `fleet`.

    A record dated more than `ahead_seconds` after its append time is refused.
    """

    def __init__(self, prefix: str, refuse: Refuse, ahead_seconds: float) -> None:
        self.name = FLEET.full_name(prefix)
        self.means: dict[str, PoolMeans] = {}
        self.next_offset = 0
        self._topic_id: str | None = None
        self._refuse = refuse
        self._ahead_seconds = ahead_seconds

    async def load(self, reader: LogReader) -> None:
        """Read from the position to the present end; all if the topic was recreated or cut."""
        topic_id = (await reader.topic_ids()).get(self.name)
        first, end = await reader.bounds(self.name, FLEET_PARTITION)
        if topic_id != self._topic_id or end < self.next_offset:
            self.means.clear()
            self.next_offset = first
        self._topic_id = topic_id
        start = max(first, self.next_offset)
        async for records in reader.read(self.name, FLEET_PARTITION, start, end):
            for record in records:
                await self.apply(record)
        self.next_offset = end

    async def apply(self, record: LogRecord) -> None:
        """Apply a record; write a dead letter for an invalid one."""
        try:
            self._apply(record)
        except RecordError as error:
            await self._refuse(self.name, [(record, error)])
        self.next_offset = record.offset + 1

    def _apply(self, record: LogRecord) -> None:
        check_readable(record.value)
        pool = pool_of_key(record.key)
        if pool is None:  # a newer planner may write records of other kinds
            return
        if record.value is None:
            self.means.pop(pool, None)
            return
        decoded = decode_json(PoolMeansRecord, record.value)
        if decoded.pool != pool:
            raise KeyMismatchError(f"means of pool {decoded.pool!r:.80} have the key {pool!r:.80}")
        check_pool_means(decoded, record.appended_ms, self._ahead_seconds)
        means, known = pool_means(decoded), self.means.get(pool)
        if known is not None and means.at_ms < known.at_ms:
            OLDER.inc()  # of two planners, or of one that was paused
            return
        self.means.pop(pool, None)
        self.means[pool] = means
        if len(self.means) > MAX_POOLS:
            del self.means[next(iter(self.means))]
