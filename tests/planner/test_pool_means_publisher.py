"""The means of node pools from node states to alerts: planner, join and detection in turn."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from actuators.planner import pool_means_publisher as module
from actuators.planner.pool_means_publisher import REPEAT_SECONDS, PoolMeansPublisher
from pipeline.clock import ManualClock
from pipeline.errors import BrokerUnavailableError
from pipeline.kafka.partition_log import LogRecord
from pipeline.kafka.producer import Keyed
from pipeline.table import Table
from pipeline.table.apply_records import apply
from pipeline.table.pool_usage import pool_usage
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.hot_node_policy import HotNodePolicy
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.pool_means import PoolMeansRecord, RuleMean, pool_key
from pipeline.topics.registry import NODE_STATE, NODES
from pipeline.topics.resource_amounts import Resources
from pipeline.topics.samples import SampleBatch, SampleHeader, encode_samples
from tests.agents.fakes import MemoryBroker
from tests.agents.hot_logs import published_alerts
from tests.agents.owners import Owner, content, undisturbed
from tests.metric_values import value_of
from tests.table.records import NOW, node_state, table_of

POLICY = HotNodePolicy(
    pool="gold", high_percent={"cpu": 20.0}, use_deviation_thresholds=True, span_seconds=30,
    open_windows=2, close_windows=2,
)  # fmt: skip
WINDOW_MS = 30_000


def put_node(table: Table, name: str, policy: HotNodePolicy | None) -> bytes:
    value = encode_json(
        NodeRecord(node=name, hot_nodes=policy, allocatable=Resources(cpu_millicores=10_000))
    )
    apply(table, NODES, name.encode(), value)
    return value


class Written:
    """A publisher over a table, and the records that it wrote."""

    def __init__(self, table: Table) -> None:
        self.records: list[Keyed] = []
        self.leads = self.delivers = True
        self.clock = ManualClock(NOW)
        self.table = table
        self.publisher = PoolMeansPublisher(table, self.clock, self._write, lambda: self.leads)

    async def _write(self, record: Keyed) -> None:
        if not self.delivers:
            raise BrokerUnavailableError("no broker")
        self.records.append(record)

    async def step(self) -> list[PoolMeansRecord | None]:
        """The records of one step; None is a tombstone."""
        self.records.clear()
        await self.publisher.step()
        return [
            None if value is None else decode_json(PoolMeansRecord, value)
            for _, value in self.records
        ]


def pool_of(*percents: float | None, **policy: Any) -> Written:
    """A pool of nodes of this usage of CPU in percent."""
    table = table_of()
    for number, percent in enumerate(percents):
        compared = {} if percent is None else {"node_cpu": percent}
        put_node(table, f"n{number}", msgspec.structs.replace(POLICY, **policy))
        table.put_state(node_state(f"n{number}", compared_percent=compared))
    return Written(table)


def use(table: Table, name: str, percent: float, age: float = 0.0) -> None:
    state = node_state(name, age=age, offset=1, compared_percent={"node_cpu": percent})
    assert table.put_state(state)


# -- the table


def test_usage_of_the_table_is_that_of_fresh_states_of_known_nodes() -> None:
    table = table_of(
        node_state("a", compared_percent={"node_cpu": 41.0, "prod_memory": 7.5, "new_rule": 1.0}),
        node_state("old", age=180.0, compared_percent={"node_cpu": 41.0}),
        node_state("no-node", compared_percent={"node_cpu": 41.0}),
    )
    for name in ("a", "old", "silent"):
        put_node(table, name, POLICY)
    put_node(table, "without-policy", None)
    put_node(table, "fixed", msgspec.structs.replace(POLICY, use_deviation_thresholds=False))
    usage = pool_usage(table, NOW, 180.0)
    assert usage.policies == [POLICY] * 3
    assert [[None if v != v else v for v in row] for row in usage.percents.tolist()] == [
        [41.0, None, None, 7.5], [None] * 4, [None] * 4,
    ]  # fmt: skip
    assert usage.end_ms.tolist() == [(int(NOW) - 10) * 1000, (int(NOW) - 180) * 1000, -1]
    assert pool_usage(Table(), NOW, 180.0).percents.shape == (0, 4)


# -- when it publishes


async def test_means_are_published_when_they_moved_and_every_minute() -> None:
    pool = pool_of(10.0, 20.0)
    (record,) = await pool.step()
    assert record == PoolMeansRecord(
        pool="gold", at="2023-11-14T22:13:10Z", nodes=2, span_seconds=30,
        means={"node_cpu": RuleMean(percent=15.0, known_nodes=2)},
    )  # fmt: skip
    assert pool.records[0].key == pool_key("gold")
    assert await pool.step() == []
    use(pool.table, "n0", 11.0)  # the mean moved by half a point
    assert await pool.step() == []
    use(pool.table, "n1", 20.02, age=-1.0)
    (record,) = await pool.step()
    assert record is not None
    assert record.means["node_cpu"].percent == 15.51
    await pool.clock.advance(REPEAT_SECONDS - 0.1)
    assert await pool.step() == []
    await pool.clock.advance(0.1)
    assert await pool.step() == [record]


async def test_an_unknown_mean_is_published_at_once_and_says_how_many_nodes_are_known() -> None:
    pool = pool_of(10.0, 20.0, 30.0)
    await pool.step()
    await pool.clock.advance(60.0)
    use(pool.table, "n0", 10.0, age=-60.0)
    await pool.step()
    await pool.clock.advance(115.0)  # the others stopped reporting
    (record,) = await pool.step()
    assert record is not None
    assert (record.nodes, record.means) == (3, {"node_cpu": RuleMean(known_nodes=1)})
    assert value_of(module.UNKNOWN) == 1
    assert await pool.step() == []


async def test_pools_with_fixed_thresholds_or_without_windows_have_no_record() -> None:
    assert await pool_of(10.0, use_deviation_thresholds=False).step() == []
    table = Table()
    put_node(table, "silent", POLICY)
    assert await Written(table).step() == []


async def test_a_pool_that_no_longer_needs_means_gets_a_tombstone() -> None:
    pool = pool_of(10.0, 20.0)
    await pool.step()
    put_node(pool.table, "n0", msgspec.structs.replace(POLICY, pool="silver"))
    first, second = await pool.step()
    assert first is not None
    assert second is not None
    assert (first.pool, first.nodes, second.pool, second.nodes) == ("gold", 1, "silver", 1)
    put_node(pool.table, "n1", None)
    assert await pool.step() == [None]
    assert pool.records[0].key == pool_key("gold")
    assert await pool.step() == []


async def test_what_is_not_delivered_is_written_again() -> None:
    pool = pool_of(10.0, 20.0)
    pool.delivers = False
    assert await pool.step() == []
    pool.delivers = True
    assert len(await pool.step()) == 1
    for name in ("n0", "n1"):
        put_node(pool.table, name, None)
    pool.delivers = False
    assert await pool.step() == []
    pool.delivers = True
    assert await pool.step() == [None]


async def test_nothing_is_published_without_the_lease() -> None:
    pool = pool_of(10.0, 20.0)
    pool.leads = False
    assert await pool.step() == []
    pool.leads = True
    assert len(await pool.step()) == 1


# -- with workers


class Fleet:
    """Nodes of one pool, a worker and planners, in event time."""

    def __init__(self, owner: Owner, broker: MemoryBroker, *nodes: str) -> None:
        self.owner, self.broker, self.nodes = owner, broker, nodes
        self.end_ms, self._samples, self._means = 1_700_000_010_000, 0, 0
        self._read = 0

    async def window(self, *cpu: float, planners: tuple[Written, ...] = ()) -> None:
        """A window of each node with this usage of CPU in percent, then a look of each planner."""
        self.end_ms += WINDOW_MS
        samples = [self._sample(*each) for each in zip(self.nodes, cpu, strict=True)]
        await self.owner.shard.join.process(samples)
        await self.owner.apply()
        for planner in planners:
            self.bring_up_to_date(planner)
            await self.publish(planner)

    def bring_up_to_date(self, planner: Written) -> None:
        for record in self.broker.records("t.node-state"):
            apply(planner.table, NODE_STATE, record.key, record.value)
        planner.clock.jump(self.end_ms / 1000 - planner.clock.now())

    async def publish(self, planner: Written) -> None:
        await planner.step()
        await planner.clock.advance(30.0)
        for record in planner.records:
            topic = self.owner.recovery.fleet
            await topic.apply(LogRecord(0, self._means, *record, self.end_ms))
            self._means += 1

    def _sample(self, node: str, cpu: float) -> LogRecord:
        header = SampleHeader(
            node=node, machine_id="m", boot_id="b", epoch=1, sequence=self._samples,
            window_start_ms=self.end_ms - WINDOW_MS, window_end_ms=self.end_ms,
        )  # fmt: skip
        row = {"kind": "node", "id": "", "coverage": 1.0, "cpu_cores_avg": cpu / 10}
        value = encode_samples(SampleBatch(header, [row]))
        self._samples += 1
        return LogRecord(0, self._samples - 1, node.encode(), value, self.end_ms)

    @property
    def transitions(self) -> list[tuple[str, str, float | None]]:
        """Node, transition and mean of each change of an alert."""
        return [
            (each.node, each.transition, each.evidence.pool_mean_percent)
            for each in published_alerts(self.broker)
        ]


def table_with(nodes: tuple[str, ...], policy: HotNodePolicy = POLICY) -> Table:
    table = Table()
    for name in nodes:
        put_node(table, name, policy)
    return table


async def fleet_of(*nodes: str, policy: HotNodePolicy = POLICY) -> Fleet:
    broker = MemoryBroker()
    for name in nodes:
        broker.put("t.nodes", 0, name.encode(), put_node(Table(), name, policy))
    return Fleet(await Owner(broker, "x").load(), broker, *nodes)


async def test_a_node_far_above_its_pool_is_hot_until_it_is_not() -> None:
    nodes = ("a", "b", "c", "d")
    fleet, planner = await fleet_of(*nodes), Written(table_with(nodes))
    usage = (80.0, 30.0, 30.0, 30.0)
    await fleet.window(*usage, planners=(planner,))
    assert fleet.transitions == []
    for _ in range(3):
        await fleet.window(*usage, planners=(planner,))
    assert fleet.transitions == [("a", "opened", 42.5)]
    # The whole pool is as busy: no node stands out.
    for _ in range(3):
        await fleet.window(80.0, 80.0, 80.0, 80.0, planners=(planner,))
    assert fleet.transitions[1:] == [("a", "closed", 80.0)]
    again = await Owner(fleet.broker, "y").load()
    assert content(again.model) == content(undisturbed(fleet.broker))


async def test_a_planner_that_is_down_neither_opens_nor_closes_alerts() -> None:
    nodes = ("a", "b", "c", "d")
    fleet, planner = await fleet_of(*nodes), Written(table_with(nodes))
    for _ in range(4):
        await fleet.window(80.0, 30.0, 30.0, 30.0, planners=(planner,))
    opened = [("a", "opened", 42.5)]
    for _ in range(21):  # the last mean is used for ten minutes
        await fleet.window(80.0, 30.0, 30.0, 30.0)
    for _ in range(20):
        await fleet.window(30.0, 99.0, 30.0, 30.0)
    assert fleet.transitions == opened
    for _ in range(3):
        await fleet.window(30.0, 99.0, 30.0, 30.0, planners=(planner,))
    assert sorted(fleet.transitions[1:]) == [("a", "closed", 47.25), ("b", "opened", 47.25)]


async def test_a_pool_of_one_node_is_never_hot() -> None:
    fleet, planner = await fleet_of("a"), Written(table_with(("a",)))
    for cpu in (10.0, 10.0, 99.0, 99.0, 99.0, 99.0):
        await fleet.window(cpu, planners=(planner,))
    # In the first hot window the mean is that of the window before, which one window is too short.
    assert fleet.transitions == []


async def test_a_paused_planner_does_not_bring_old_means_back() -> None:
    nodes = ("a", "b")
    fleet = await fleet_of(*nodes)
    first, second = (Written(table_with(nodes)) for _ in range(2))
    await fleet.window(10.0, 10.0, planners=(first, second))
    for _ in range(4):
        await fleet.window(50.0, 50.0, planners=(second,))
    known = fleet.owner.recovery.fleet.means["gold"]
    assert known.percent == {"node_cpu": 50.0}
    first.clock.jump(1000.0)
    await first.clock.advance(REPEAT_SECONDS)
    await fleet.publish(first)  # it still has the table of before
    assert len(first.records) == 1
    assert fleet.owner.recovery.fleet.means["gold"] == known
    for _ in range(3):
        await fleet.window(50.0, 50.0, planners=(first, second))
    assert fleet.transitions == []


@pytest.mark.parametrize("change", [lambda _: POLICY, lambda name: None if name == "a" else POLICY])
async def test_means_follow_the_records_of_nodes(
    change: Callable[[str], HotNodePolicy | None],
) -> None:
    """A pool whose policy is removed from a node has the mean of the others."""
    nodes = ("a", "b", "c")
    table = table_with(nodes)
    for name in nodes:
        put_node(table, name, change(name))
    fleet, planner = await fleet_of(*nodes), Written(table)
    await fleet.window(90.0, 30.0, 60.0, planners=(planner,))
    expected = 60.0 if change("a") else 45.0
    assert fleet.owner.recovery.fleet.means["gold"].percent == {"node_cpu": expected}
