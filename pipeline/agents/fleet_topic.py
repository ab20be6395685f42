"""The means and the outcomes of node pools and the histories of workloads, read from the topic
`fleet`; all partitions of a worker share them."""

from collections.abc import Hashable
from typing import Final, Protocol, TypeVar

from pipeline.agents.refusals import Refuse
from pipeline.errors import KeyMismatchError, RecordError
from pipeline.kafka.partition_log import LogReader, LogRecord
from pipeline.metrics import counter
from pipeline.processors.join.pool_means import PoolMeans, pool_means
from pipeline.topics.codec import check_readable, decode_json
from pipeline.topics.pool_means import (
    MEANS,
    PoolMeansRecord,
    check_date,
    check_pool_means,
    pool_of_key,
)
from pipeline.topics.pool_outcomes import OUTCOMES, PoolOutcomesRecord
from pipeline.topics.registry import FLEET
from pipeline.topics.workload_histories import (
    WorkloadHistoryRecord,
    check_history,
    workload_of_key,
)
from pipeline.topics.workloads import Workload

OLDER: Final = counter(
    "worker_older_pool_means",
    "Records of node pools and workloads that were ignored because a newer one had been applied.",
)

MAX_POOLS: Final = 1000
"""Limit of remembered pools, the last changed ones: names cost nothing."""
MAX_HISTORIES: Final = 25_000
"""Limit of remembered histories of workloads, more than are published; they take 20 MB."""
FLEET_PARTITION: Final = 0
"""The only partition of `fleet`."""


class _Dated(Protocol):
    @property
    def at_ms(self) -> int: ...


_Key = TypeVar("_Key", bound=Hashable)
_Known = TypeVar("_Known", bound=_Dated)


class FleetTopic:
    """The newest `means` and `outcomes` of each pool, the newest `histories` of workloads, and the
    position in `fleet`.

    A record dated more than `ahead_seconds` after its append time is refused.
    """

    def __init__(self, prefix: str, refuse: Refuse, ahead_seconds: float) -> None:
        self.name = FLEET.full_name(prefix)
        self.means: dict[str, PoolMeans] = {}
        self.outcomes: dict[str, PoolOutcomesRecord] = {}
        self.histories: dict[Workload, WorkloadHistoryRecord] = {}
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
            self.outcomes.clear()
            self.histories.clear()
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
        if (pool := pool_of_key(record.key, MEANS)) is not None:
            means = None if record.value is None else self._means(record.value, pool, record)
            _replace(self.means, pool, means, MAX_POOLS)
        elif (pool := pool_of_key(record.key, OUTCOMES)) is not None:
            outcomes = None if record.value is None else self._outcomes(record.value, pool, record)
            _replace(self.outcomes, pool, outcomes, MAX_POOLS)
        elif (workload := workload_of_key(record.key)) is not None:
            history = (
                None if record.value is None else self._history(record.value, workload, record)
            )
            _replace(self.histories, workload, history, MAX_HISTORIES)
        # A newer planner may write records of other kinds.

    def _means(self, value: bytes, pool: str, record: LogRecord) -> PoolMeans:
        means = decode_json(PoolMeansRecord, value)
        _check_pool(means.pool, pool)
        check_pool_means(means, record.appended_ms, self._ahead_seconds)
        return pool_means(means)

    def _outcomes(self, value: bytes, pool: str, record: LogRecord) -> PoolOutcomesRecord:
        outcomes = decode_json(PoolOutcomesRecord, value)
        _check_pool(outcomes.pool, pool)
        check_date(pool, outcomes.at, record.appended_ms, self._ahead_seconds)
        return outcomes

    def _history(
        self, value: bytes, workload: Workload, record: LogRecord
    ) -> WorkloadHistoryRecord:
        history = decode_json(WorkloadHistoryRecord, value)
        check_history(history, workload, record.appended_ms, self._ahead_seconds)
        return history


def _replace(known: dict[_Key, _Known], key: _Key, new: _Known | None, most: int) -> None:
    """Replace what is known of a pool or workload, unless that is newer. The `most` that changed
    last stay."""
    if new is None:
        known.pop(key, None)
        return
    old = known.get(key)
    if old is not None and new.at_ms < old.at_ms:
        OLDER.inc()  # of two planners, or of one that was paused
        return
    known.pop(key, None)
    known[key] = new
    if len(known) > most:
        del known[next(iter(known))]


def _check_pool(stated: str, pool: str) -> None:
    if stated != pool:
        raise KeyMismatchError(f"a record of pool {stated!r:.80} has the key of {pool!r:.80}")
