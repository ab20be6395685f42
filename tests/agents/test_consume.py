"""Feeding records to cursors, over a fake source and a log in memory."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.agents import consume as module
from pipeline.agents.consume import advance, consume, fill
from pipeline.errors import StateError
from pipeline.kafka.partition_log import LogRecord
from tests.agents.fakes import FakeSource, MemoryBroker
from tests.metric_values import value_of

TOPIC = "t.samples"


@dataclass
class FakeCursor:
    """Notes the offsets it processes; raises at `fail_at`, loses its partition at `revoke_at`."""

    next_offset: int = 0
    owned: bool = True
    fail_at: int | None = None
    revoke_at: int | None = None
    seen: list[int] = field(default_factory=list)

    async def process(self, records: Sequence[LogRecord]) -> None:
        await asyncio.sleep(0)
        assert self.owned
        for record in records:
            assert record.value == b"%d" % record.offset
            if record.offset == self.fail_at:
                raise RuntimeError("broken")
            if record.offset == self.revoke_at:
                self.owned = False
            self.seen.append(record.offset)
        self.next_offset = records[-1].offset + 1


def make_log(count: int, partitions: int = 1) -> MemoryBroker:
    broker = MemoryBroker()
    for partition in range(partitions):
        for offset in range(count):
            broker.put(TOPIC, partition, None, b"%d" % offset)
    return broker


def pick(broker: MemoryBroker, offsets: Sequence[int], partition: int = 0) -> list[LogRecord]:
    return [broker.logs[TOPIC, partition][offset] for offset in offsets]


async def run(
    source: FakeSource, cursors: dict[int, Any], broker: MemoryBroker, batch_size: int = 100
) -> None:
    await consume(source, TOPIC, cursors.get, broker.open_reader, batch_size=batch_size)


def counted(metric: Any) -> float:
    return value_of(metric.labels(TOPIC))


async def test_records_are_processed_and_then_acknowledged_in_order() -> None:
    broker, cursor = make_log(6), FakeCursor()
    source = FakeSource(pick(broker, [0, 1, 2]), pick(broker, [3]), pick(broker, [4, 5]))
    seen_at_ack: list[int] = []
    source.before_acknowledge = lambda: seen_at_ack.append(len(cursor.seen))
    await run(source, {0: cursor}, broker)
    assert (cursor.seen, source.acknowledged) == ([*range(6)], [(0, o) for o in range(6)])
    # A whole batch is processed before the first of it is acknowledged.
    assert seen_at_ack == [3, 3, 3, 4, 6, 6]


async def test_a_partition_without_a_cursor_is_neither_processed_nor_acknowledged() -> None:
    broker, cursor = make_log(2, partitions=2), FakeCursor()
    source = FakeSource([*pick(broker, [0, 1], 1), *pick(broker, [0, 1], 0)])
    await run(source, {0: cursor}, broker)
    assert (cursor.seen, source.acknowledged) == ([0, 1], [(0, 0), (0, 1)])


async def test_a_revoked_partition_is_neither_processed_nor_acknowledged() -> None:
    broker, cursor = make_log(2), FakeCursor(owned=False)
    source = FakeSource(pick(broker, [0, 1]))
    await run(source, {0: cursor}, broker)
    assert (cursor.seen, source.acknowledged) == ([], [])


async def test_records_below_the_cursor_are_acknowledged_and_dropped() -> None:
    broker, cursor = make_log(5), FakeCursor(next_offset=3)
    source, before = FakeSource(pick(broker, [0, 1, 2, 3, 4])), counted(module.SKIPPED)
    await run(source, {0: cursor}, broker)
    assert (cursor.seen, source.acknowledged) == ([3, 4], [(0, o) for o in range(5)])
    assert counted(module.SKIPPED) - before == 3


async def test_a_gap_above_the_cursor_is_read_from_the_log_first() -> None:
    broker, cursor = make_log(12), FakeCursor(next_offset=2)
    source, before = FakeSource(pick(broker, [9, 10, 11])), counted(module.GAPS)
    await run(source, {0: cursor}, broker)
    assert cursor.seen == list(range(2, 12))
    # Only delivered records are acknowledged.
    assert source.acknowledged == [(0, 9), (0, 10), (0, 11)]
    assert counted(module.GAPS) - before == 7


@pytest.mark.parametrize("fail_at", [1, 4, 8])
async def test_an_exception_is_raised_and_nothing_after_it_is_acknowledged(fail_at: int) -> None:
    broker = make_log(10, partitions=2)
    failing, other = FakeCursor(fail_at=fail_at), FakeCursor()
    # Offset 4 is in the gap, 8 is above it. The other partition has a batch of its own.
    source = FakeSource([*pick(broker, [0, 1, 2, 8], 0), *pick(broker, [0], 1)])
    with pytest.raises(RuntimeError, match="broken"):
        await run(source, {0: failing, 1: other}, broker)
    assert source.acknowledged in ([], [(1, 0)])
    assert failing.next_offset <= fail_at


async def test_an_exception_leaves_earlier_batches_acknowledged() -> None:
    broker, cursor = make_log(4), FakeCursor(fail_at=3)
    source = FakeSource(pick(broker, [0, 1]), pick(broker, [2, 3]), pick(broker, [3]))
    with pytest.raises(RuntimeError):
        await run(source, {0: cursor}, broker)
    assert source.acknowledged == [(0, 0), (0, 1)]


async def test_an_unreadable_log_raises() -> None:
    broker, cursor = make_log(4), FakeCursor()

    def refuse(partitions: object) -> Any:
        raise ConnectionError("no broker")

    source = FakeSource(pick(broker, [3]))
    with pytest.raises(ConnectionError):
        await consume(source, TOPIC, {0: cursor}.get, refuse, batch_size=100)
    assert source.acknowledged == []


@pytest.mark.parametrize("revoke_at", [0, 1, 4, 6])
async def test_a_partition_revoked_during_a_batch_is_not_acknowledged_or_continued(
    revoke_at: int,
) -> None:
    broker, cursor = make_log(8), FakeCursor(revoke_at=revoke_at)
    source = FakeSource(pick(broker, [0, 1, 6]), pick(broker, [7]))
    await run(source, {0: cursor}, broker)
    assert source.acknowledged == []
    assert 7 not in cursor.seen
    # A call of `process` that has started may finish; no further call follows.
    assert len(cursor.seen) <= revoke_at + 3


async def test_the_next_batch_uses_a_new_cursor_of_the_partition() -> None:
    broker, first, second = make_log(4), FakeCursor(revoke_at=1), FakeCursor(next_offset=1)
    cursors = {0: first}
    source = FakeSource(pick(broker, [0, 1]), pick(broker, [2, 3]))

    async def process(records: Sequence[LogRecord]) -> None:
        await FakeCursor.process(first, records)
        cursors[0] = second

    first.process = process  # type: ignore[method-assign]
    await run(source, cursors, broker)
    assert (first.seen, second.seen) == ([0, 1], [1, 2, 3])
    assert source.acknowledged == [(0, 2), (0, 3)]


@pytest.mark.parametrize(
    ("first", "delivered", "seen", "lost"),
    [(6, [8, 9], [6, 7, 8, 9], 4), (9, [7, 8], [7, 8], 5)],
    ids=["a part", "the whole"],
)
async def test_records_of_a_gap_removed_by_retention_are_counted_and_skipped(
    first: int, delivered: list[int], seen: list[int], lost: int
) -> None:
    broker, cursor = make_log(10), FakeCursor(next_offset=2)
    source, before = FakeSource(pick(broker, delivered)), counted(module.LOST)
    broker.trim(TOPIC, 0, first)
    await run(source, {0: cursor}, broker)
    assert cursor.seen == seen
    assert counted(module.LOST) - before == lost


@pytest.mark.parametrize("owned", [True, False])
async def test_a_gap_that_retention_removed_is_passed_only_by_an_owner(owned: bool) -> None:
    """A shard that was revoked meanwhile may be kept, and must read the gap when it returns."""
    broker, cursor = make_log(10), FakeCursor(next_offset=2, owned=owned)
    broker.trim(TOPIC, 0, 8)
    await fill(cursor, TOPIC, 0, 6, broker.open_reader)
    assert cursor.next_offset == (6 if owned else 2)


async def test_a_gap_without_records_is_passed() -> None:
    # A log may skip offsets: aborted transactions and markers have some.
    broker, cursor = make_log(6), FakeCursor()
    broker.logs[TOPIC, 0] = [r for r in broker.logs[TOPIC, 0] if r.offset not in (1, 2, 3)]
    await advance(cursor, TOPIC, broker.logs[TOPIC, 0], broker.open_reader)
    assert (cursor.seen, cursor.next_offset) == ([0, 4, 5], 6)


@given(
    start=st.integers(0, 12), batches=st.lists(st.lists(st.integers(0, 19), max_size=8), max_size=6)
)
def test_each_record_of_any_deliveries_is_processed_once_and_in_order(
    start: int, batches: list[list[int]]
) -> None:
    broker, cursor = make_log(20), FakeCursor(next_offset=start)
    source = FakeSource(*(pick(broker, batch) for batch in batches))
    asyncio.run(run(source, {0: cursor}, broker))
    highest = max((offset for batch in batches for offset in batch), default=-1)
    assert cursor.seen == list(range(start, highest + 1))
    assert sorted(source.acknowledged) == sorted((0, o) for batch in batches for o in batch)


async def test_a_cursor_lost_while_a_gap_is_read_keeps_its_position(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.agents.fakes.READ_SIZE", 3)
    broker, cursor = make_log(12), FakeCursor(revoke_at=2)
    source = FakeSource(pick(broker, [10, 11]))
    await run(source, {0: cursor}, broker)
    assert (cursor.seen, cursor.next_offset) == ([0, 1, 2], 3)
    assert source.acknowledged == []


async def test_partitions_do_not_wait_for_one_another() -> None:
    broker = make_log(2, partitions=2)
    cursors = {0: FakeCursor(), 1: FakeCursor()}
    both = asyncio.Barrier(2)

    async def meet(cursor: FakeCursor, records: Sequence[LogRecord]) -> None:
        await both.wait()
        await FakeCursor.process(cursor, records)

    for cursor in cursors.values():
        cursor.process = partial(meet, cursor)  # type: ignore[method-assign]
    source = FakeSource([*pick(broker, [0, 1], 0), *pick(broker, [0, 1], 1)])
    async with asyncio.timeout(60):
        await run(source, dict(cursors), broker)
    assert [cursor.seen for cursor in cursors.values()] == [[0, 1], [0, 1]]
    assert sorted(source.acknowledged) == [(0, 0), (0, 1), (1, 0), (1, 1)]


async def test_an_exception_cancels_the_work_on_other_partitions() -> None:
    broker = make_log(2, partitions=2)
    failing, slow = FakeCursor(fail_at=0), FakeCursor()
    ended: list[str] = []

    async def never(records: Sequence[LogRecord]) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("cut off")

    slow.process = never  # type: ignore[method-assign]
    source = FakeSource([*pick(broker, [0], 1), *pick(broker, [0], 0)])
    with pytest.raises(RuntimeError, match="broken"):
        await run(source, {0: failing, 1: slow}, broker)
    assert (ended, source.acknowledged) == (["cut off"], [])


async def test_an_unrequested_cancellation_raises() -> None:
    # A client that is closed while its broker is away may raise the cancellation of its tasks.
    broker, cursor = make_log(2), FakeCursor()

    async def cut_off(records: Sequence[LogRecord]) -> None:
        raise asyncio.CancelledError

    cursor.process = cut_off  # type: ignore[method-assign]
    source = FakeSource(pick(broker, [0, 1]))
    with pytest.raises(StateError, match="cancelled without a request"):
        await run(source, {0: cursor}, broker)
    assert source.acknowledged == []


async def test_a_batch_is_limited_to_the_batch_size() -> None:
    broker, cursor = make_log(10), FakeCursor()
    sizes: list[int] = []

    async def process(records: Sequence[LogRecord]) -> None:
        sizes.append(len(records))
        await FakeCursor.process(cursor, records)

    cursor.process = process  # type: ignore[method-assign]
    await run(FakeSource(pick(broker, range(10))), {0: cursor}, broker, batch_size=4)
    assert (cursor.seen, sizes) == ([*range(10)], [4, 4, 2])
