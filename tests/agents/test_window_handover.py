"""Appended windows reach the models once and in order, also with other writers of the log."""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.agents import window_handover as module
from pipeline.agents.model_agent import ModelCursor
from pipeline.agents.ownership import Ownership
from pipeline.agents.window_handover import (
    BEHIND,
    CHECK_SECONDS,
    WindowHandover,
    feed_models,
    watch_log_ends,
)
from pipeline.clock import ManualClock
from pipeline.errors import BrokerUnavailableError, StateError
from pipeline.processors.model.bank import Bank
from pipeline.tasks import cancel_tasks
from pipeline.topics.windows import decode_window
from tests.agents.fakes import MemoryBroker, MemoryProducer
from tests.agents.logs import CONFIG, LogWriter, make_log
from tests.agents.owners import MODEL_RULES, content, published, settle, undisturbed
from tests.metric_values import value_of


def cursors_over(broker: MemoryBroker, count: int = 1) -> list[ModelCursor]:
    """Return models of `count` partitions that share columns."""
    output: Any = MemoryProducer(broker)
    bank = Bank(CONFIG)
    return [
        ModelCursor(Ownership(partition, 3), 0, bank.sibling(), output, MODEL_RULES)
        for partition in range(count)
    ]


class Feeding:
    """The loop that feeds models, over a log in memory."""

    def __init__(self, broker: MemoryBroker, max_records: int = 100) -> None:
        self.handover = WindowHandover(max_records, linger_seconds=0)
        self._task = asyncio.create_task(
            feed_models(self.handover, "t.windows", broker.open_reader)
        )

    async def __aenter__(self) -> "Feeding":
        return self

    async def __aexit__(self, *_: object) -> None:
        for _turn in range(50):
            await settle()
        failed = self._task.exception() if self._task.done() else None
        await cancel_tasks(self._task)
        if failed is not None:
            raise failed


def busy(broker: MemoryBroker, partition: int, *nodes: str) -> None:
    log = LogWriter(broker, partition=partition)
    log.windows(3, *nodes)
    log.depart(nodes[0])
    log.windows(2, *nodes)


async def test_partitions_applied_together_give_the_results_of_each_alone() -> None:
    together, alone = MemoryBroker(), MemoryBroker()
    for broker in (together, alone):
        busy(broker, 0, "a", "b")
        busy(broker, 1, "c", "d")
    cursors = cursors_over(together, 2)
    async with Feeding(together) as feeding:
        for cursor in cursors:
            records = together.records("t.windows", cursor.ownership.partition)
            await feeding.handover.put(cursor, records)
    for cursor in cursors:
        (other,) = cursors_over(alone)
        other.ownership.partition = cursor.ownership.partition
        await other.process(alone.records("t.windows", cursor.ownership.partition))
        assert content(cursor) == content(other)
        assert cursor.next_offset == other.next_offset
    written, expected = (
        {place: [record[:4] for record in log] for place, log in broker.logs.items()}
        for broker in (together, alone)
    )
    assert written == expected


@settings(max_examples=25, deadline=None)
@given(brought=st.lists(st.tuples(st.integers(0, 11), st.integers(1, 5)), max_size=8))
def test_each_record_is_applied_once_in_any_order_of_handover(
    brought: list[tuple[int, int]],
) -> None:
    """Late, twice, or with gaps, which are read from the log."""

    async def run() -> None:
        broker, _ = make_log(6, "a", "b")
        records = broker.records("t.windows")
        (cursor,) = cursors_over(broker)
        async with Feeding(broker) as feeding:
            for start, count in brought:
                await feeding.handover.put(cursor, records[start : start + count])
                await settle()
        expected = undisturbed(broker, cursor.next_offset)
        assert cursor.next_offset == max([0, *(min(s + n, 12) for s, n in brought)])
        assert content(cursor) == content(expected)

    asyncio.run(run())


async def test_a_revoked_partition_is_not_applied() -> None:
    broker, _ = make_log(3, "a")
    lost, held = cursors_over(broker, 2)
    LogWriter(broker, partition=1).windows(3, "b")
    lost.ownership.owned = False
    async with Feeding(broker) as feeding:
        await feeding.handover.put(lost, broker.records("t.windows"))
        await feeding.handover.put(held, broker.records("t.windows", 1))
    assert (lost.next_offset, held.next_offset) == (0, 3)
    assert set(published(broker, "t.node-state")) == set()
    assert {record.key for record in broker.records("t.node-state", 1)} == {b"b"}


@pytest.mark.parametrize(("revoked", "taken"), [(False, [3]), (True, [])])
async def test_put_waits_while_the_handover_is_full_unless_its_partition_is_revoked(
    revoked: bool, taken: list[int]
) -> None:
    broker, _ = make_log(6, "a")
    (cursor,) = cursors_over(broker)
    handover, records = WindowHandover(max_records=2), broker.records("t.windows")
    await handover.put(cursor, records[:3])  # what comes at once is not cut
    waits = asyncio.create_task(handover.put(cursor, records[3:]))
    await settle()
    assert not waits.done()
    if revoked:
        cursor.ownership.owned = False
        await handover.wake()
        await asyncio.wait_for(waits, 60)
    assert [len(waiting.records) for waiting in (await handover.take()).values()] == [3]
    await waits
    assert [len(waiting.records) for waiting in handover.pending.values()] == taken


class Log:
    """A log whose ends can be read, except now and then."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker = broker
        self.away = False

    async def ends(self, partitions: Collection[int]) -> dict[int, int]:
        if self.away:
            raise BrokerUnavailableError("away")
        return {number: len(self.broker.records("t.windows", number)) for number in partitions}


async def test_records_of_another_writer_are_read_from_the_log() -> None:
    (broker, _), clock = make_log(3, "a"), ManualClock()
    cursors, log = cursors_over(broker), Log(broker)
    async with Feeding(broker) as feeding:
        looking = asyncio.create_task(watch_log_ends(feeding.handover, cursors, log.ends, clock))
        log.away = True
        for _ in range(2):
            await settle()
            await clock.advance(CHECK_SECONDS)
        log.away = False
        assert cursors[0].next_offset == 0
        for _ in range(4):
            await settle()
            await clock.advance(CHECK_SECONDS)
        await settle()
        assert cursors[0].next_offset == 3
        assert not looking.done()
        await cancel_tasks(looking)
    assert content(cursors[0]) == content(undisturbed(broker))


async def test_a_model_that_advances_does_not_read_the_log() -> None:
    """Handed over records are in the log already."""
    (broker, writer), clock = make_log(0), ManualClock()
    cursors, handover = cursors_over(broker), WindowHandover()
    looking = asyncio.create_task(watch_log_ends(handover, cursors, Log(broker).ends, clock))
    for offset in range(4):
        writer.windows(2, "a")
        await settle()
        await clock.advance(CHECK_SECONDS)
        await settle()
        cursors[0].next_offset = offset + 1
    assert handover.pending == {}
    await cancel_tasks(looking)


async def test_pending_records_are_limited_in_bytes_and_a_decoded_window_counts_thrice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker, _ = make_log(2, "a")
    (cursor,) = cursors_over(broker)
    plain = broker.records("t.windows")
    size = sum(len(record.value or b"") for record in plain)
    monkeypatch.setattr(module, "MAX_BYTES", 2 * size)
    with_window = [record._replace(window=decode_window(record.value or b"")) for record in plain]
    for records, waits in ((plain, False), (with_window, True)):
        handover = WindowHandover()
        await handover.put(cursor, records)
        more = asyncio.create_task(handover.put(cursor, plain))
        await settle()
        assert more.done() is not waits
        await handover.take()
        await more


async def test_a_gap_of_one_partition_does_not_delay_the_others() -> None:
    broker, _ = make_log(3, "a")
    LogWriter(broker, partition=1).windows(3, "b")
    gap, complete = cursors_over(broker, 2)
    reading = asyncio.Event()

    @asynccontextmanager
    async def slow(partitions: Any) -> AsyncIterator[Any]:
        await reading.wait()
        async with broker.open_reader(partitions) as reader:
            yield reader

    handover = WindowHandover(linger_seconds=0)
    await handover.put(gap, broker.records("t.windows")[2:])
    await handover.put(complete, broker.records("t.windows", 1))
    feeding = asyncio.create_task(feed_models(handover, "t.windows", slow))
    for _ in range(10):
        await settle()
    assert (gap.next_offset, complete.next_offset) == (0, 3)
    reading.set()
    for _ in range(20):
        await settle()
    assert gap.next_offset == 3
    await cancel_tasks(feeding)


async def test_an_unrequested_cancellation_of_a_reader_raises() -> None:
    broker, _ = make_log(3, "a")
    (cursor,) = cursors_over(broker)

    @asynccontextmanager
    async def escaping(partitions: Any) -> AsyncIterator[Any]:
        raise asyncio.CancelledError
        yield

    handover = WindowHandover(linger_seconds=0)
    await handover.put(cursor, broker.records("t.windows")[2:])
    with pytest.raises(StateError, match="cancelled without a request"):
        await asyncio.wait_for(feed_models(handover, "t.windows", escaping), 60)


async def test_the_lag_of_a_model_is_a_metric() -> None:
    (broker, _), clock = make_log(3, "a"), ManualClock()
    cursors = cursors_over(broker)
    looking = asyncio.create_task(
        watch_log_ends(WindowHandover(), cursors, Log(broker).ends, clock)
    )
    await settle()
    await clock.advance(CHECK_SECONDS)
    await settle()
    assert value_of(BEHIND.labels("0")) == 3
    await cancel_tasks(looking)
