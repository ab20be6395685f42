"""Publish the outcomes of calibrated peaks of node pools on `springtide.fleet`.

A pool is added up anew from what its nodes state in their newest predictions, every ten minutes. So
there is no state that a restart could lose, and two planners publish the same. Pools that a former
leader published, and that have no outcomes any more, get their tombstone.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from actuators.planner.pool_records import Write, written
from pipeline.clock import Clock
from pipeline.metrics import counter
from pipeline.processors.calibrated.pool_fold import StatedOutcomes, pool_outcomes
from pipeline.table import Table
from pipeline.table.node_histories import HistoryStore, pool_members
from pipeline.topics.pool_outcomes import OUTCOMES, PoolOutcomesRecord

RECORDS = counter(
    "planner_pool_outcomes",
    "Records of the outcomes of node pools: published, or lost (not delivered).",
    ["result"],
)

PUBLISH_SECONDS: Final = 600.0


class PoolOutcomesPublisher:
    """Publishes the outcomes of the nodes in `table` as `store` has them; both must have caught up.

    `may_publish` is asked before each record. `on_topic` are the pools that have a record.
    """

    def __init__(
        self,
        table: Table,
        store: HistoryStore,
        clock: Clock,
        write: Write,
        may_publish: Callable[[], bool],
    ) -> None:
        self.on_topic: set[str] = set()
        self._table, self._store, self._clock = table, store, clock
        self._write, self._may_publish = write, may_publish
        self._published: dict[str, PoolOutcomesRecord] = {}

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            await self.step()
            await self._clock.sleep(PUBLISH_SECONDS)

    async def step(self) -> None:
        """Publish outcomes that changed, and tombstones of pools that have none any more."""
        # Of thousands of nodes this takes a second.
        outcomes = await asyncio.to_thread(_added_up, self._stated())
        due: list[tuple[str, PoolOutcomesRecord | None]] = [
            (pool, record)
            for pool, record in outcomes.items()
            if self._published.get(pool) != record
        ]
        due += [(pool, None) for pool in sorted(self.on_topic - outcomes.keys())]
        records = written(due, OUTCOMES, self._write, self._may_publish, RECORDS)
        async for pool, record in records:
            if record is None:
                self.on_topic.discard(pool)
                self._published.pop(pool, None)
            else:
                self.on_topic.add(pool)
                self._published[pool] = record

    def _stated(self) -> dict[str, list[StatedOutcomes]]:
        names, now = self._table.rows()[0], self._clock.now()
        stated = {
            pool: [self._store.outcomes(names[row], now) for row in rows]
            for pool, rows in pool_members(self._table).items()
        }
        return {pool: [own for own in nodes if own is not None] for pool, nodes in stated.items()}


def _added_up(stated: Mapping[str, Sequence[StatedOutcomes]]) -> dict[str, PoolOutcomesRecord]:
    pools = {pool: pool_outcomes(pool, nodes) for pool, nodes in stated.items()}
    return {pool: record for pool, record in pools.items() if record is not None}
