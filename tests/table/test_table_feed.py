"""Records are applied one at a time; tests/integration has the feed with a broker."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.clock import Clock, SystemClock
from pipeline.errors import (
    BrokerUnavailableError,
    InvalidRecordError,
    KafkaError,
    KeyMismatchError,
    RecordError,
    TopicDeniedError,
)
from pipeline.kafka.follow import TopicPartition
from pipeline.table import Table, limits, table_feed
from pipeline.table.apply_records import Headers, apply
from pipeline.table.table_feed import NODE_TOPICS, Feed
from pipeline.tasks import cancel_tasks
from pipeline.topics.codec import encode_json
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.registry import HEARTBEATS, NODE_STATE, NODES, Topic
from tests.table.records import node_state, table_of


def test_each_topic_fills_its_part_of_the_row_and_its_tombstone_empties_it() -> None:
    table = Table()
    assert apply(table, NODE_STATE, b"a", encode_json(node_state("a")))
    assert apply(table, NODES, b"a", encode_json(NodeRecord(node="a", annotations={"zone": "1"})))
    row = table.snapshot("a")
    assert (row.state, row.node and row.node.annotations) == (node_state("a"), {"zone": "1"})
    assert apply(table, NODE_STATE, b"a", None)
    assert table.snapshot("a").state is None
    assert table.snapshot("a").node is not None
    assert apply(table, NODES, b"a", None)
    assert len(table) == 0


def test_an_older_result_is_reported_as_older() -> None:
    table = table_of(node_state("a", offset=3))
    assert not apply(table, NODE_STATE, b"a", encode_json(node_state("a", offset=2)))


@pytest.mark.parametrize("key", [None, b"", b"\xff"])
@pytest.mark.parametrize("value", [None, encode_json(node_state("a"))])
def test_a_record_without_a_readable_key_is_refused(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(InvalidRecordError, match="key"):
        apply(Table(), NODE_STATE, key, value)


@pytest.mark.parametrize(
    ("topic", "value"),
    [(NODE_STATE, encode_json(node_state("b"))), (NODES, encode_json(NodeRecord(node="b")))],
)
def test_a_payload_of_another_node_is_refused(topic: Topic, value: bytes) -> None:
    table = Table()
    with pytest.raises(KeyMismatchError, match="payload is about 'b', key about 'a'"):
        apply(table, topic, b"a", value)
    assert len(table) == 0


good = encode_json(node_state("a", offset=1))
damaged = st.one_of(
    st.binary(max_size=100),
    st.integers(0, len(good) - 1).map(lambda end: good[:end]),
    st.tuples(st.integers(0, len(good) - 1), st.binary(min_size=1, max_size=3)).map(
        lambda change: good[: change[0]] + change[1] + good[change[0] + 1 :]
    ),
)


@given(st.sampled_from(NODE_TOPICS), damaged)
def test_any_bytes_are_applied_or_raise_a_record_error(topic: Topic, value: bytes) -> None:
    table = table_of(node_state("a"))
    try:
        apply(table, topic, b"a", value)
    except RecordError as error:
        assert error.reason
        assert table.snapshot("a").state == node_state("a")
    assert list(table) == ["a"]


class FakeFollower:
    """Returns `records` of one partition from a position on, in one batch."""

    def __init__(self, records: Sequence[Any], topic_id: str) -> None:
        self._records = records
        self._topic_id = topic_id
        self.assigned = [PARTITION]
        self.is_stalled = False
        self.failure: KafkaError | None = None
        self.positions: dict[TopicPartition, int] = {}
        self.is_caught_up = True

    async def begin(self, _: Any) -> None:
        self.positions = {PARTITION: 0}

    def read_from(self, starts: Mapping[TopicPartition, int], _: Any) -> None:
        self.positions = dict(starts)

    async def topic_ids(self) -> dict[str, str]:
        return {PARTITION.topic: self._topic_id}

    async def ends(self) -> dict[TopicPartition, int]:
        return {PARTITION: len(self._records)}

    async def poll(self, **_: Any) -> list[Any]:
        if self.failure:
            raise self.failure
        if self.is_stalled:
            await asyncio.sleep(0.01)
            return []
        records = list(self._records[self.positions[PARTITION] :])
        self.positions = {PARTITION: len(self._records)}
        await asyncio.sleep(0.0 if records else 0.01)
        return records


PARTITION = TopicPartition("t.node-state", 0)


def offset_of(table: Table) -> int | None:
    state = table.snapshot("a").state
    return None if state is None else state.offset


async def until(condition: Callable[[], bool], pause_seconds: float = 0.0) -> None:
    async with asyncio.timeout(60):
        while True:
            if condition():
                return
            await asyncio.sleep(pause_seconds)


@dataclass
class FakeBroker:
    """One topic; feeds of it use the same snapshot."""

    folder: Path
    records: list[Any] = field(default_factory=list)
    topic_id: str = "1"
    existing: list[TopicPartition] = field(default_factory=lambda: [PARTITION])
    last_follower: "FakeFollower | None" = None
    is_away: bool = False

    def put(self, node: str, state: NodeStateRecord | None, headers: Headers = ()) -> None:
        """Append a state, or a tombstone without a position."""
        self.records.append(
            SimpleNamespace(
                topic=PARTITION.topic, partition=0, offset=len(self.records), key=node.encode(),
                value=None if state is None else encode_json(state), headers=headers,
            )
        )  # fmt: skip

    def recreate(self) -> None:
        self.records, self.topic_id = [], self.topic_id + "1"

    async def partitions(self, *_: Any) -> list[TopicPartition]:
        if self.is_away:
            raise BrokerUnavailableError("no broker answers")
        return [*self.existing]

    @asynccontextmanager
    async def follower(self, *_: Any) -> AsyncIterator[FakeFollower]:
        self.last_follower = FakeFollower(self.records, self.topic_id)
        yield self.last_follower

    @asynccontextmanager
    async def feed(
        self, *topics: Topic, clock: Clock | None = None, **more: Any
    ) -> AsyncIterator[Feed]:
        feed = Feed(
            Table(), client={}, prefix="t", clock=clock or SystemClock(),
            topics=topics or [NODE_STATE], snapshot=self.folder / "snapshot", **more,
        )  # fmt: skip
        running = asyncio.create_task(feed.run())
        try:
            yield feed
        finally:
            await cancel_tasks(running)


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeBroker:
    broker = FakeBroker(tmp_path)
    monkeypatch.setattr(table_feed, "existing_partitions", broker.partitions)
    monkeypatch.setattr(table_feed, "open_follower", broker.follower)
    return broker


async def test_a_snapshot_between_two_records_continues_at_the_second(broker: FakeBroker) -> None:
    """A tombstone that is in the table must not be read again without the result before it."""
    for state in (node_state("a", offset=5), None, node_state("a", offset=9)):
        broker.put("a", state)
    for offset in range(3, 40):
        broker.put(f"n{offset}", node_state(f"n{offset}", offset=offset))
    async with broker.feed() as feed:
        await until(lambda: offset_of(feed.table) == 9)
        assert len(feed.table) < 38
        await feed.save()
    async with broker.feed() as restarted:
        await until(lambda: "n39" in restarted.table, 0.01)
        assert offset_of(restarted.table) == 9


async def test_a_topic_recreated_during_an_absence_is_read_again(broker: FakeBroker) -> None:
    """It has more records than the former one, so offsets alone do not show it."""
    for offset in range(20):
        broker.put("a", node_state("a", offset=offset))
    async with broker.feed() as feed:
        await until(lambda: offset_of(feed.table) == 19, 0.01)
        await feed.save()
        broker.recreate()
        for offset in range(30):
            broker.put("b", node_state("b", offset=offset))
    async with broker.feed() as restarted:
        await until(lambda: "b" in restarted.table, 0.01)
        await until(lambda: list(restarted.table) == ["b"], 0.01)
        assert (restarted.state.rereads, restarted.state.caught_up) == (1, True)


async def test_an_optional_topic_is_read_once_it_exists(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older installations have no topic of heartbeats."""
    monkeypatch.setattr(limits, "PROBE_EVERY_SECONDS", 0.02)
    monkeypatch.setattr(limits, "MISSING_TOPIC_SECONDS", 0.0)
    broker.put("a", node_state("a"))
    async with broker.feed(NODE_STATE, HEARTBEATS) as feed:
        await until(lambda: feed.state.caught_up, 0.01)
        assert (feed.state.missing, feed.state.rereads) == (("t.heartbeats",), 0)
        broker.existing.append(TopicPartition("t.heartbeats", 0))
        await until(lambda: feed.state.rereads == 1 and feed.state.missing == (), 0.01)
        await until(lambda: [*feed.table] == ["a"], 0.01)
        assert feed.state.caught_up


class PausesClock(SystemClock):
    """Remembers pauses, and takes none."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)


async def test_an_optional_topic_that_is_denied_after_an_outage_does_not_stop_the_others_for_long(
    broker: FakeBroker,
) -> None:
    clock = PausesClock()
    broker.put("a", node_state("a"))
    broker.existing.append(TopicPartition("t.heartbeats", 0))
    async with broker.feed(NODE_STATE, HEARTBEATS, clock=clock) as feed:
        broker.is_away = True
        await until(lambda: len(clock.pauses) > 5)
        assert max(clock.pauses) > 2.0
        broker.is_away = False
        await until(lambda: feed.state.message == "following", 0.01)
        assert broker.last_follower is not None
        clock.pauses.clear()
        broker.last_follower.failure = TopicDeniedError("may not be read", "t.heartbeats")
        await until(lambda: feed.state.missing == ("t.heartbeats",), 0.01)
        assert clock.pauses[0] < 1.0
        broker.last_follower.failure = BrokerUnavailableError("no broker answers")
        await until(lambda: len(clock.pauses) > 1, 0.01)
        assert clock.pauses[1] < 1.0


async def test_a_tombstone_with_an_empty_header_does_not_stop_the_feed(broker: FakeBroker) -> None:
    broker.put("a", node_state("a"))
    broker.put("a", None, headers=[("trace-id", None)])
    broker.put("b", node_state("b"))
    async with broker.feed() as feed:
        await until(lambda: list(feed.table) == ["b"], 0.01)


async def test_the_log_says_that_a_feed_goes_on_after_an_outage(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    broker.put("a", node_state("a"))
    async with broker.feed() as feed:
        await until(lambda: feed.state.message == "following", 0.01)
        assert "fed again" not in caplog.text
        assert broker.last_follower is not None
        broker.last_follower.failure = BrokerUnavailableError("no broker answers")
        await until(lambda: "not fed" in caplog.text, 0.01)
        await until(lambda: caplog.text.count("fed again") == 1, 0.01)
        assert feed.state.message == "following"


async def test_a_feed_says_until_when_it_is_complete(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker may answer and send nothing."""
    monkeypatch.setattr(limits, "PROBE_EVERY_SECONDS", 0.02)
    broker.put("a", node_state("a"))
    async with broker.feed() as feed:
        await until(lambda: feed.state.complete_until is not None, 0.01)
        assert broker.last_follower is not None
        broker.last_follower.is_stalled = True
        broker.put("b", node_state("b"))
        await until(lambda: feed.state.lag_records == 1, 0.01)
        stalled, contact = feed.state.complete_until, feed.state.contact
        await until(lambda: feed.state.contact != contact, 0.01)
        assert feed.state.complete_until == stalled
        broker.last_follower.is_stalled = False
        await until(lambda: feed.state.complete_until != stalled, 0.01)
        assert "b" in feed.table


async def test_a_feed_of_something_else_than_a_table_gets_whole_records(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets them again if the topic was recreated."""
    monkeypatch.setattr(limits, "PROBE_EVERY_SECONDS", 0.02)
    taken: list[tuple[Topic, int, bytes | None]] = []

    def take(topic: Topic, record: Any) -> bool:
        taken.append((topic, record.offset, record.key))
        return True

    broker.put("a", node_state("a"))
    async with broker.feed(take_record=take) as feed:
        await until(lambda: len(taken) == 1, 0.01)
        broker.recreate()
        broker.put("b", node_state("b"))
        assert broker.last_follower is not None
        broker.last_follower._topic_id = broker.topic_id
        await until(lambda: feed.state.rereads == 1 and len(taken) == 2, 0.01)
    assert taken == [(NODE_STATE, 0, b"a"), (NODE_STATE, 0, b"b")]
    assert list(feed.table) == []
