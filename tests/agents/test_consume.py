"""The one safe loop, over a fake stream and a log in memory."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.agents import consume as module
from pipeline.agents.consume import advance, consume
from pipeline.errors import StateError
from pipeline.kafka.partition_log import LogRecord
from tests.agents.fakes import FakeStream, MemoryBroker, event

TOPIC = "t.samples"


@dataclass
class FakeCursor:
    """Notes what it processes; fails at, or is let go in the middle of, an offset."""

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


def events(broker: MemoryBroker, offsets: Sequence[int], partition: int = 0) -> list[Any]:
    log = broker.logs[TOPIC, partition]
    return [event(log[offset]) for offset in offsets]


async def run(
    stream: FakeStream, cursors: dict[int, Any], broker: MemoryBroker, batch_size: int = 100
) -> None:
    await consume(
        stream, TOPIC, cursors, broker.open_reader, batch_size=batch_size, linger_seconds=0
    )


def counted(metric: Any) -> float:
    return float(metric.labels(TOPIC)._value.get())


async def test_records_are_processed_in_order_and_then_acknowledged_in_order() -> None:
    broker, cursor = make_log(6), FakeCursor()
    stream = FakeStream(events(broker, [0, 1, 2]), events(broker, [3]), events(broker, [4, 5]))
    seen_at_ack: list[int] = []
    stream.before_ack = lambda: seen_at_ack.append(len(cursor.seen))
    await run(stream, {0: cursor}, broker)
    assert cursor.seen == [0, 1, 2, 3, 4, 5]
    assert stream.acknowledged == [(0, offset) for offset in range(6)]
    # A whole batch is processed before the first of it is acknowledged.
    assert seen_at_ack == [3, 3, 3, 4, 6, 6]


async def test_a_partition_without_a_cursor_is_neither_processed_nor_acknowledged() -> None:
    broker, cursor = make_log(2, partitions=2), FakeCursor()
    stream = FakeStream([*events(broker, [0, 1], 1), *events(broker, [0, 1], 0)])
    await run(stream, {0: cursor}, broker)
    assert cursor.seen == [0, 1]
    assert stream.acknowledged == [(0, 0), (0, 1)]


async def test_a_partition_that_was_let_go_is_neither_processed_nor_acknowledged() -> None:
    broker, cursor = make_log(2), FakeCursor(owned=False)
    stream = FakeStream(events(broker, [0, 1]))
    await run(stream, {0: cursor}, broker)
    assert (cursor.seen, stream.acknowledged) == ([], [])


async def test_below_the_cursor_is_acknowledged_and_dropped() -> None:
    broker, cursor = make_log(5), FakeCursor(next_offset=3)
    stream, before = FakeStream(events(broker, [0, 1, 2, 3, 4])), counted(module.SKIPPED)
    await run(stream, {0: cursor}, broker)
    assert cursor.seen == [3, 4]
    assert stream.acknowledged == [(0, offset) for offset in range(5)]
    assert counted(module.SKIPPED) - before == 3


async def test_above_the_cursor_the_gap_is_read_from_the_log_first() -> None:
    broker, cursor = make_log(12), FakeCursor(next_offset=2)
    stream, before = FakeStream(events(broker, [9, 10, 11])), counted(module.GAPS)
    await run(stream, {0: cursor}, broker)
    assert cursor.seen == list(range(2, 12))
    # What was read from the log is not Faust's to acknowledge.
    assert stream.acknowledged == [(0, 9), (0, 10), (0, 11)]
    assert counted(module.GAPS) - before == 7


async def test_gaps_inside_a_batch_are_filled() -> None:
    broker, cursor = make_log(10), FakeCursor()
    await run(FakeStream(events(broker, [0, 1, 4, 5, 9])), {0: cursor}, broker)
    assert cursor.seen == list(range(10))


async def test_a_batch_out_of_order_is_put_in_order() -> None:
    broker, cursor = make_log(4), FakeCursor()
    stream = FakeStream(events(broker, [2, 0, 3, 1]))
    await run(stream, {0: cursor}, broker)
    assert cursor.seen == [0, 1, 2, 3]
    assert stream.acknowledged == [(0, 0), (0, 1), (0, 2), (0, 3)]


async def test_a_record_that_comes_twice_is_processed_once() -> None:
    broker, cursor = make_log(3), FakeCursor()
    stream = FakeStream(events(broker, [0, 1, 1, 2]), events(broker, [1, 2]))
    await run(stream, {0: cursor}, broker)
    assert cursor.seen == [0, 1, 2]


@pytest.mark.parametrize("fail_at", [1, 4, 8])
async def test_an_exception_goes_up_and_nothing_after_it_is_acknowledged(fail_at: int) -> None:
    broker = make_log(10, partitions=2)
    failing, other = FakeCursor(fail_at=fail_at), FakeCursor()
    # Offset 4 lies in the gap, 8 behind it; the other partition's batch is its own.
    stream = FakeStream([*events(broker, [0, 1, 2, 8], 0), *events(broker, [0], 1)])
    with pytest.raises(RuntimeError, match="broken"):
        await run(stream, {0: failing, 1: other}, broker)
    assert stream.acknowledged in ([], [(1, 0)])
    assert failing.next_offset <= fail_at


async def test_an_exception_leaves_earlier_batches_acknowledged() -> None:
    broker, cursor = make_log(4), FakeCursor(fail_at=3)
    stream = FakeStream(events(broker, [0, 1]), events(broker, [2, 3]), events(broker, [3]))
    with pytest.raises(RuntimeError):
        await run(stream, {0: cursor}, broker)
    assert stream.acknowledged == [(0, 0), (0, 1)]


async def test_a_log_that_cannot_be_read_goes_up_too() -> None:
    broker, cursor = make_log(4), FakeCursor()

    def refuse(partitions: object) -> Any:
        raise ConnectionError("no broker")

    stream = FakeStream(events(broker, [3]))
    with pytest.raises(ConnectionError):
        await consume(stream, TOPIC, {0: cursor}, refuse, batch_size=100, linger_seconds=0)
    assert stream.acknowledged == []


@pytest.mark.parametrize("revoke_at", [0, 1, 4, 6])
async def test_what_is_let_go_meanwhile_is_not_acknowledged_and_not_gone_on_with(
    revoke_at: int,
) -> None:
    broker, cursor = make_log(8), FakeCursor(revoke_at=revoke_at)
    stream = FakeStream(events(broker, [0, 1, 6]), events(broker, [7]))
    await run(stream, {0: cursor}, broker)
    assert stream.acknowledged == []
    assert 7 not in cursor.seen
    # What `process` had in hand it may finish; no further call follows.
    assert len(cursor.seen) <= revoke_at + 3


async def test_a_new_cursor_for_the_partition_is_found_by_the_next_batch() -> None:
    broker, first, second = make_log(4), FakeCursor(revoke_at=1), FakeCursor(next_offset=1)
    cursors = {0: first}
    stream = FakeStream(events(broker, [0, 1]), events(broker, [2, 3]))
    original = first.process

    async def process(records: Sequence[LogRecord]) -> None:
        await original(records)
        cursors[0] = second

    first.process = process  # type: ignore[method-assign]
    await run(stream, cursors, broker)
    assert (first.seen, second.seen) == ([0, 1], [1, 2, 3])
    assert stream.acknowledged == [(0, 2), (0, 3)]


async def test_what_retention_took_from_a_gap_is_counted_and_skipped() -> None:
    broker, cursor = make_log(10), FakeCursor(next_offset=2)
    broker.trim(TOPIC, 0, 6)
    stream, before = FakeStream(events(broker, [8, 9])), counted(module.LOST)
    await run(stream, {0: cursor}, broker)
    assert cursor.seen == [6, 7, 8, 9]
    assert counted(module.LOST) - before == 4


async def test_a_gap_that_retention_took_whole_is_counted_up_to_the_record() -> None:
    broker, cursor = make_log(10), FakeCursor(next_offset=2)
    stream, before = FakeStream(events(broker, [7, 8])), counted(module.LOST)
    broker.trim(TOPIC, 0, 9)
    await run(stream, {0: cursor}, broker)
    assert cursor.seen == [7, 8]
    assert counted(module.LOST) - before == 5


async def test_a_gap_that_holds_no_records_is_passed() -> None:
    # Offsets of a log need not follow each other: aborted transactions and markers have some.
    broker, cursor = make_log(6), FakeCursor()
    broker.logs[TOPIC, 0] = [r for r in broker.logs[TOPIC, 0] if r.offset not in (1, 2, 3)]
    records = broker.logs[TOPIC, 0]
    await advance(cursor, TOPIC, records, broker.open_reader)
    assert cursor.seen == [0, 4, 5]
    assert cursor.next_offset == 6


@given(
    start=st.integers(0, 12),
    batches=st.lists(st.lists(st.integers(0, 19), max_size=8), max_size=6),
)
def test_whatever_comes_each_record_is_processed_once_and_in_order(
    start: int, batches: list[list[int]]
) -> None:
    broker, cursor = make_log(20), FakeCursor(next_offset=start)
    stream = FakeStream(*(events(broker, batch) for batch in batches))
    asyncio.run(run(stream, {0: cursor}, broker))
    highest = max((offset for batch in batches for offset in batch), default=-1)
    assert cursor.seen == list(range(start, highest + 1))
    assert sorted(stream.acknowledged) == sorted((0, o) for batch in batches for o in batch)


async def test_a_cursor_lost_while_a_gap_is_read_stays_where_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.agents.fakes._AT_A_TIME", 3)
    broker, cursor = make_log(12), FakeCursor(revoke_at=2)
    stream = FakeStream(events(broker, [10, 11]))
    await run(stream, {0: cursor}, broker)
    assert (cursor.seen, cursor.next_offset) == ([0, 1, 2], 3)
    assert stream.acknowledged == []


async def test_partitions_do_not_wait_for_one_another() -> None:
    broker = make_log(2, partitions=2)
    cursors = {0: FakeCursor(), 1: FakeCursor()}
    both = asyncio.Barrier(2)
    for cursor in cursors.values():
        cursor.process = _meeting(cursor.process, both)  # type: ignore[method-assign]
    stream = FakeStream([*events(broker, [0, 1], 0), *events(broker, [0, 1], 1)])
    async with asyncio.timeout(5):
        await run(stream, dict(cursors), broker)
    assert [cursor.seen for cursor in cursors.values()] == [[0, 1], [0, 1]]
    assert sorted(stream.acknowledged) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def _meeting(process: Any, place: asyncio.Barrier) -> Any:
    async def meet(records: Sequence[LogRecord]) -> None:
        await place.wait()
        await process(records)

    return meet


async def test_when_an_exception_has_gone_up_no_partition_is_worked_on_any_more() -> None:
    broker = make_log(2, partitions=2)
    failing, slow = FakeCursor(fail_at=0), FakeCursor()
    ended: list[str] = []

    async def never(records: Sequence[LogRecord]) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("cut off")

    slow.process = never  # type: ignore[method-assign]
    stream = FakeStream([*events(broker, [0], 1), *events(broker, [0], 0)])
    with pytest.raises(RuntimeError, match="broken"):
        await run(stream, {0: failing, 1: slow}, broker)
    assert ended == ["cut off"]
    assert stream.acknowledged == []


async def test_a_cancellation_that_nobody_asked_for_goes_up_too() -> None:
    # A client that is closed while its broker is away may raise that of its own tasks.
    broker, cursor = make_log(2), FakeCursor()

    async def cut_off(records: Sequence[LogRecord]) -> None:
        raise asyncio.CancelledError

    cursor.process = cut_off  # type: ignore[method-assign]
    stream = FakeStream(events(broker, [0, 1]))
    with pytest.raises(StateError, match="cancelled without a request"):
        await run(stream, {0: cursor}, broker)
    assert stream.acknowledged == []


async def test_of_what_lies_in_the_queue_a_batch_takes_no_more_than_it_may() -> None:
    broker, cursor = make_log(10), FakeCursor()
    sizes: list[int] = []
    original = cursor.process

    async def process(records: Sequence[LogRecord]) -> None:
        sizes.append(len(records))
        await original(records)

    cursor.process = process  # type: ignore[method-assign]
    await run(FakeStream(events(broker, range(10))), {0: cursor}, broker, batch_size=4)
    assert cursor.seen == list(range(10))
    assert sizes == [4, 4, 2]


@pytest.mark.parametrize(
    ("at_once", "linger_seconds", "expected"),
    [
        (2, 0.2, [3]),  # what comes soon after goes with it
        (3, 0.0, [3]),
        (4, 60.0, [4]),  # a queue that holds a whole batch is not waited for
    ],
)
async def test_a_batch_lingers_only_if_it_could_grow(
    at_once: int, linger_seconds: float, expected: list[int]
) -> None:
    broker, cursor = make_log(5), FakeCursor()
    stream, queue = FakeStream(), asyncio.Queue[Any]()
    stream.channel.queue = queue
    sizes: list[int] = []
    processed = asyncio.Event()

    async def process(records: Sequence[LogRecord]) -> None:
        sizes.append(len(records))
        cursor.next_offset = records[-1].offset + 1
        processed.set()

    cursor.process = process  # type: ignore[method-assign]
    for each in events(broker, range(at_once)):
        each.ack = lambda: None
        queue.put_nowait(each)
    eating = asyncio.create_task(
        consume(
            stream,
            TOPIC,
            {0: cursor},
            broker.open_reader,
            batch_size=4,
            linger_seconds=linger_seconds,
        )
    )
    if at_once < 3:
        await asyncio.sleep(0)
        late = events(broker, [at_once])[0]
        late.ack = lambda: None
        queue.put_nowait(late)
    async with asyncio.timeout(30):
        await processed.wait()
    eating.cancel()
    await asyncio.wait({eating})
    assert sizes == expected


async def test_a_queue_that_can_hold_no_more_is_not_waited_for() -> None:
    broker, cursor = make_log(3), FakeCursor()
    stream = FakeStream(events(broker, [0, 1, 2]))
    stream.full = lambda: True  # type: ignore[method-assign]
    async with asyncio.timeout(30):
        await consume(
            stream, TOPIC, {0: cursor}, broker.open_reader, batch_size=100, linger_seconds=600
        )
    assert cursor.seen == [0, 1, 2]


async def test_faust_is_told_which_partitions_are_worked_on() -> None:
    broker = make_log(3, partitions=2)
    stream = FakeStream([*events(broker, [0, 1, 2], 0), *events(broker, [1], 1)])
    await run(stream, {0: FakeCursor()}, broker)
    assert stream.worked_on == [(0, 2)]
