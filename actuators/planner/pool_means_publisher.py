"""Publish the means of node pools on `springtide.fleet`, for thresholds that are distances from
them.

A mean is published when it moved, and every minute: workers forget means after ten minutes. A
record that is not delivered is written again with the next look. Pools that a former leader
published, and that no longer exist, get their tombstone from the next one.
"""

from collections.abc import Callable
from typing import Final

from actuators.planner.pool_records import Write, written
from pipeline.clock import Clock
from pipeline.metrics import counter, gauge
from pipeline.processors.hot_nodes.pool_means import has_moved, pool_means
from pipeline.table import Table
from pipeline.table.pool_usage import pool_usage
from pipeline.topics.pool_means import MEANS, PoolMeansRecord

RECORDS = counter(
    "planner_pool_means", "Records of the means of node pools: published, or lost (not delivered).",
    ["result"],
)  # fmt: skip
POOLS = gauge("planner_pools", "Node pools whose thresholds are distances from their mean.")
UNKNOWN = gauge(
    "planner_unknown_pools", "Of these, pools with a mean that is unknown: the usage of fewer than "
    "half of their nodes is known.",
)  # fmt: skip

LOOK_SECONDS: Final = 5.0
REPEAT_SECONDS: Final = 60.0


class PoolMeansPublisher:
    """Publishes the means of the nodes in `table`, which must have caught up.

    Usage older than `expiration_seconds` is unknown. `may_publish` is asked before each record.
    `on_topic` are the pools that have a record.
    """

    def __init__(
        self, table: Table, clock: Clock, write: Write, may_publish: Callable[[], bool]
    ) -> None:
        self.expiration_seconds = 180.0
        self.on_topic: set[str] = set()
        self._table, self._clock = table, clock
        self._write, self._may_publish = write, may_publish
        self._published: dict[str, tuple[float, PoolMeansRecord]] = {}

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            await self.step()
            await self._clock.sleep(LOOK_SECONDS)

    async def step(self) -> None:
        """Publish the means that are due, and tombstones of pools that no longer need any."""
        usage = pool_usage(self._table, self._clock.now(), self.expiration_seconds)
        means = {record.pool: record for record in pool_means(*usage)}
        POOLS.set(len(means))
        UNKNOWN.set(
            sum(any(m.percent is None for m in each.means.values()) for each in means.values())
        )
        due: list[tuple[str, PoolMeansRecord | None]] = [
            (pool, record) for pool, record in means.items() if self._is_due(record)
        ]
        due += [(pool, None) for pool in sorted(self.on_topic - means.keys())]
        records = written(due, MEANS, self._write, self._may_publish, RECORDS)
        async for pool, record in records:
            if record is None:
                self.on_topic.discard(pool)
                self._published.pop(pool, None)
            else:
                self.on_topic.add(pool)
                self._published[pool] = self._clock.monotonic(), record

    def _is_due(self, record: PoolMeansRecord) -> bool:
        if record.pool not in self._published:
            return True
        published_at, before = self._published[record.pool]
        is_old = self._clock.monotonic() - published_at >= REPEAT_SECONDS
        return is_old or has_moved(before, record)
