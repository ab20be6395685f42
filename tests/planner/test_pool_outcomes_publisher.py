"""Outcomes of node pools from predictions to records, by planners that restart or fail."""

import asyncio
import re

import msgspec
import pytest

from actuators.planner import pool_outcomes_publisher as module
from actuators.planner.pool_outcomes_publisher import PUBLISH_SECONDS, PoolOutcomesPublisher
from pipeline.clock import ManualClock
from pipeline.errors import BrokerUnavailableError
from pipeline.kafka.producer import Keyed
from pipeline.kafka.refused_records import REFUSED
from pipeline.table.limits import AHEAD_SECONDS
from pipeline.table.node_histories import HistoryStore
from pipeline.topics.codec import decode_json
from pipeline.topics.hot_node_policy import DEFAULT_POOL, HotNodePolicy
from pipeline.topics.pool_means import pool_key
from pipeline.topics.pool_outcomes import (
    OUTCOMES,
    PROBABILITIES,
    NodeOutcomes,
    OutcomeQuantiles,
    PoolOutcomesRecord,
    ResourceOutcomes,
)
from tests.metric_values import sum_of, value_of
from tests.planner.test_pool_means_publisher import put_node
from tests.table.records import NOW, node_state, table_of
from tests.table.test_node_histories import prediction

GOLD = HotNodePolicy(pool="gold", high_percent={"cpu": 65.0})


def stated(z: float = 0.0) -> NodeOutcomes:
    distribution = OutcomeQuantiles(weight=1.0, quantiles=(z,) * len(PROBABILITIES))
    cpu = ResourceOutcomes(distribution=distribution, judged_days=1.0)
    return NodeOutcomes(horizon_seconds=86_400, risk=0.02, cpu=cpu)


class Pools:
    """A publisher of nodes that state outcomes, and the records that it wrote."""

    def __init__(self, pools: dict[str, HotNodePolicy | None]) -> None:
        self.records: list[Keyed] = []
        self.written = asyncio.Event()
        self.leads = self.delivers = True
        self.table, self.store = table_of(), HistoryStore()
        for name, policy in pools.items():
            put_node(self.table, name, policy)
            self.table.put_state(node_state(name))
            self.predict(name, stated())
        self.publisher = self.new_publisher()

    def new_publisher(self) -> PoolOutcomesPublisher:
        clock = ManualClock(NOW)
        return PoolOutcomesPublisher(self.table, self.store, clock, self._write, lambda: self.leads)

    def predict(
        self, node: str, outcomes: NodeOutcomes | None, offset: int = 1, age: float = 10.0
    ) -> None:
        value = prediction(node, offset=offset, age=age, outcomes=outcomes)
        assert self.store.apply(node.encode(), value)

    async def _write(self, record: Keyed) -> None:
        if not self.delivers:
            raise BrokerUnavailableError("no broker")
        self.records.append(record)
        self.written.set()

    async def step(self) -> dict[str, PoolOutcomesRecord | None]:
        """The records of one step by key; None is a tombstone."""
        self.records.clear()
        await self.publisher.step()
        return {
            key.decode(): None if value is None else decode_json(PoolOutcomesRecord, value)
            for key, value in self.records
        }


def key(pool: str) -> str:
    return pool_key(pool, OUTCOMES).decode()


async def test_each_pool_has_the_outcomes_of_its_nodes() -> None:
    pools = Pools({"a": GOLD, "b": GOLD, "c": None, "d": None, "e": None})
    records = await pools.step()
    assert {name: record and record.nodes for name, record in records.items()} == {
        key("gold"): 2, key(DEFAULT_POOL): 3,
    }  # fmt: skip
    gold = records[key("gold")]
    assert gold is not None
    assert gold.cpu.distribution is not None
    assert (gold.pool, gold.at, gold.cpu.distribution.weight) == (
        "gold", "2023-11-14T22:13:10Z", 1.0,
    )  # fmt: skip
    assert await pools.step() == {}


async def test_a_prediction_of_an_absurd_time_does_not_count() -> None:
    pools = Pools({"a": GOLD, "b": GOLD})
    for name in ("a", "b"):
        value = prediction(name, offset=2, outcomes=stated())
        absurd = re.sub(rb'"as_of":"[^"]+"', b'"as_of":"0001-01-01T00:00:00Z"', value)
        assert pools.store.apply(name.encode(), absurd)
    assert await pools.step() == {}


async def test_a_node_that_changes_its_pool_takes_its_outcomes_along() -> None:
    pools = Pools({"a": GOLD, "b": GOLD, "c": GOLD, "d": None, "e": None})
    await pools.step()
    put_node(pools.table, "c", None)
    records = await pools.step()
    assert {name: record and record.nodes for name, record in records.items()} == {
        key("gold"): 2, key(DEFAULT_POOL): 3,
    }  # fmt: skip


async def test_a_pool_without_outcomes_gets_a_tombstone_also_from_the_next_leader() -> None:
    pools = Pools({"a": GOLD, "b": GOLD})
    await pools.step()
    pools.predict("b", None, offset=2)  # the predictor was removed
    assert await pools.step() == {key("gold"): None}
    assert await pools.step() == {}
    pools.publisher = pools.new_publisher()
    pools.publisher.on_topic = {"gone"}
    assert await pools.step() == {key("gone"): None}


async def test_a_planner_that_restarts_publishes_the_same() -> None:
    pools = Pools({"a": GOLD, "b": GOLD})
    first = await pools.step()
    pools.publisher = pools.new_publisher()
    assert await pools.step() == first
    pools.publisher = pools.new_publisher()
    pools.predict("a", stated(1.0), offset=2)
    assert await pools.step() != first


async def test_outcomes_that_come_repeated_or_late_change_nothing() -> None:
    pools = Pools({"a": GOLD, "b": GOLD})
    pools.predict("a", stated(1.0), offset=5)
    first = await pools.step()
    pools.predict("a", stated(1.0), offset=5)
    late = prediction("a", offset=4, outcomes=stated(-1.0))
    assert not pools.store.apply(b"a", late)
    pools.publisher = pools.new_publisher()
    assert await pools.step() == first


async def test_a_node_whose_clock_is_ahead_does_not_outdate_its_pool() -> None:
    pools = Pools({"a": GOLD, "b": GOLD, "c": GOLD})
    pools.predict("c", stated(), offset=2, age=-AHEAD_SECONDS - 1)
    (record,) = (await pools.step()).values()
    assert record is not None
    assert record.nodes == 2


async def test_nodes_that_departed_do_not_count() -> None:
    pools = Pools({"a": GOLD, "b": GOLD, "c": GOLD})
    pools.predict("unknown", stated())
    assert pools.store.apply(b"c", None)
    (record,) = (await pools.step()).values()
    assert record is not None
    assert record.nodes == 2


async def test_a_record_that_is_lost_is_written_again() -> None:
    pools, lost = Pools({"a": GOLD, "b": GOLD}), value_of(module.RECORDS.labels("lost"))
    pools.delivers = False
    assert await pools.step() == {}
    assert value_of(module.RECORDS.labels("lost")) - lost == 1
    pools.delivers, pools.leads = True, False
    assert await pools.step() == {}
    pools.leads = True
    assert [*await pools.step()] == [key("gold")]


async def test_it_publishes_every_ten_minutes() -> None:
    pools, clock = Pools({"a": GOLD, "b": GOLD}), ManualClock(NOW)
    publisher = PoolOutcomesPublisher(
        pools.table, pools.store, clock, pools._write, lambda: True
    )  # fmt: skip
    task = asyncio.create_task(publisher.run())

    await pools.written.wait()
    pools.written.clear()
    pools.predict("a", stated(0.5), offset=2)
    await clock.advance(PUBLISH_SECONDS)
    await pools.written.wait()
    task.cancel()
    assert len(pools.records) == 2


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"weight":1.0', b'"weight":1e300'), (b'"judged_days":1.0', b'"judged_days":1e300'),
        (b'"outcomes":{', b'"outcomes":7,"later":{'),
    ],
)  # fmt: skip
async def test_invalid_outcomes_cost_nothing_else_of_their_prediction(
    old: bytes, new: bytes
) -> None:
    pools = Pools({"a": GOLD, "b": GOLD, "c": GOLD})
    before = sum_of(REFUSED, source="outcomes")
    value = prediction("a", offset=2, outcomes=stated())
    assert old in value
    assert pools.store.apply(b"a", value.replace(old, new, 1))
    assert sum_of(REFUSED, source="outcomes") == before + 1
    assert pools.store.values("a", NOW)[0, 0] == 2.0
    (record,) = (await pools.step()).values()
    assert record is not None
    assert record.nodes == 2


def test_a_store_does_not_keep_the_prediction_of_outcomes() -> None:
    """Else 5,000 predictions of 100 KB would stay in memory."""
    store = HistoryStore()
    store.apply(b"a", prediction("a", outcomes=stated()))
    (kept,) = store._by_node.values()
    assert len(kept.outcomes) < 400
    own = store.outcomes("a", NOW)
    assert own is not None
    assert msgspec.structs.asdict(own.outcomes) == msgspec.structs.asdict(stated())
