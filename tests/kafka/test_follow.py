"""What a follower returns and raises, and each workaround for aiokafka, without a broker.

Over a broker: tests/integration/test_follow.py.
"""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaConnectionError, TopicAuthorizationFailedError

from pipeline.errors import BrokerUnavailableError, KafkaError
from pipeline.kafka import follow
from pipeline.kafka.follow import (
    Backoff,
    Fetching,
    Follower,
    LostOffsetError,
    SilentTopicError,
    open_follower,
    topic_partitions,
)
from pipeline.settings import KafkaSettings
from pipeline.topics.registry import FLEET, NODES, PODS
from tests.kafka.fake_consumer import CLIENT, TP, FakeConsumer, FakeLog, install

OTHER = TopicPartition("t.pods", 0)

Install = Callable[[dict[TopicPartition, FakeLog]], FakeConsumer]


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> Install:
    return lambda logs: install(monkeypatch, logs)


async def values(follower: Follower) -> list[bytes | None]:
    """The values up to the end found at the beginning."""
    return [record.value async for records in follower.read_to_end() for record in records]


async def test_everything_is_read_from_the_first_record_to_the_end(logs: Install) -> None:
    logs({TP: FakeLog(range(3)), OTHER: FakeLog(range(7, 9), first=7)})
    async with open_follower(CLIENT, [TP, OTHER]) as follower:
        await follower.begin()
        assert not follower.is_caught_up
        assert await values(follower) == [b"0", b"1", b"2", b"7", b"8"]
        assert follower.is_caught_up
        assert follower.positions == {TP: 3, OTHER: 9}


async def test_an_empty_topic_is_caught_up_at_once(logs: Install) -> None:
    logs({TP: FakeLog(), OTHER: FakeLog(first=5, end=5)})
    async with open_follower(CLIENT, [TP, OTHER]) as follower:
        await follower.begin()
        assert follower.is_caught_up


async def test_a_topic_is_read_from_a_time_and_from_its_end_if_nothing_came_since(
    logs: Install,
) -> None:
    logs({TP: FakeLog(range(5)), OTHER: FakeLog(range(5))})
    async with open_follower(CLIENT, [TP, OTHER]) as follower:
        await follower.begin({TP.topic: 2500})
        assert follower.positions == {TP: 3, OTHER: 0}
        await follower.begin({TP.topic: 4500, OTHER.topic: 4000})
        assert follower.positions == {TP: 5, OTHER: 4}
        assert await values(follower) == [b"4"]


async def test_a_time_before_1970_reads_from_the_first_record(logs: Install) -> None:
    logs({TP: FakeLog(range(7, 9), first=7)})
    async with open_follower(CLIENT, [TP]) as follower:
        await follower.begin({TP.topic: -(10**20)})
        assert follower.positions == {TP: 7}


async def test_after_the_end_records_and_tombstones_follow(logs: Install) -> None:
    log = FakeLog(range(2))
    logs({TP: log})
    async with open_follower(CLIENT, [TP]) as follower:
        follower.read_from({TP: 2}, {})
        assert follower.is_caught_up
        assert await follower.poll() == []
        log.append(b"new")
        log.append(None)
        assert [record.value for record in await follower.poll()] == [b"new", None]


async def test_only_partitions_given_to_read_from_are_read(logs: Install) -> None:
    logs({TP: FakeLog(range(3)), OTHER: FakeLog(range(3))})
    async with open_follower(CLIENT, [TP, OTHER]) as follower:
        follower.read_from({OTHER: 1}, {OTHER: 3})
        assert await values(follower) == [b"1", b"2"]
        follower.read_from({TP: 2}, {TP: 3})
        assert await values(follower) == [b"2"]


async def test_a_partition_without_the_next_offset_raises(logs: Install) -> None:
    logs({TP: FakeLog(range(5, 8), first=5)})
    async with open_follower(CLIENT, [TP]) as follower:
        for offset in (4, 9):  # deleted by retention; recreated topic
            follower.read_from({TP: offset}, {})
            with pytest.raises(LostOffsetError, match=rf"t\.nodes\[0\] has no offset {offset}"):
                await follower.poll()


async def test_a_deleted_partition_raises_once_it_was_known(logs: Install) -> None:
    consumer = logs({OTHER: FakeLog()})
    async with open_follower(CLIENT, [TP]) as follower:
        follower.read_from({TP: 3}, {})
        assert await follower.poll() == []  # the broker has not yet sent metadata
        consumer.logs[TP] = FakeLog(range(4))
        assert len(await follower.poll()) == 1
        del consumer.logs[TP]
        with pytest.raises(LostOffsetError, match=r"t\.nodes\[0\] was deleted"):
            await follower.poll()


async def test_silence_before_the_end_raises_and_silence_after_it_does_not(
    logs: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "SILENCE_SECONDS", 1.0)
    log = FakeLog(range(3))
    consumer = logs({TP: log})
    async with open_follower(CLIENT, [TP]) as follower:
        await follower.begin()
        consumer.is_silent = True
        for _ in range(4):
            assert await follower.poll(timeout_seconds=0.25) == []
        with pytest.raises(SilentTopicError, match=r"t\.nodes\[0\]: .* offsets 0 to 3 for 1 s"):
            await follower.poll(timeout_seconds=0.25)
        consumer.is_silent = False
        follower.read_from({TP: 0}, {TP: 3})
        assert len(await follower.poll()) == 3
        for _ in range(20):
            assert await follower.poll(timeout_seconds=0.25) == []


@pytest.mark.parametrize(
    ("raised", "expected", "text"),
    [
        (KafkaConnectionError("x"), BrokerUnavailableError, "no broker answers at fake:9092"),
        (TopicAuthorizationFailedError("t"), KafkaError, "the broker at fake:9092 denied access"),
    ],
)
async def test_errors_of_the_client_are_translated(
    logs: Install, raised: Exception, expected: type[KafkaError], text: str
) -> None:
    consumer = logs({TP: FakeLog(range(3))})
    async with open_follower(CLIENT, [TP]) as follower:
        follower.read_from({TP: 0}, {TP: 3})
        consumer.fails = raised
        for question in (follower.poll, follower.ends):
            with pytest.raises(expected, match=rf"reading t\.nodes: {text}"):
                await question()
    assert consumer.is_stopped
    with pytest.raises(expected, match=f"connecting: {text}"):
        async with open_follower(CLIENT, [TP]):
            pass


@pytest.mark.parametrize(
    ("topics", "level"),
    [
        (["t.nodes"], "read_committed"),
        (["t.actions", "t.pods"], "read_committed"),
        (["t.actions", "t.eviction-plans"], "read_uncommitted"),
    ],
)
async def test_topics_without_transactions_are_read_whatever_others_leave_open(
    logs: Install, topics: list[str], level: str
) -> None:
    assigned = [TopicPartition(topic, 0) for topic in topics]
    consumer = logs({tp: FakeLog() for tp in assigned})
    async with open_follower(CLIENT, assigned, Fetching(1000, 20, 30)):
        assert consumer.options == {
            "bootstrap_servers": "fake:9092", "group_id": None, "enable_auto_commit": False,
            "auto_offset_reset": "none", "isolation_level": level,
            "max_partition_fetch_bytes": 1000, "fetch_min_bytes": 20, "fetch_max_wait_ms": 30,
            "consumer_timeout_ms": 30,
        }  # fmt: skip


def test_partitions_of_topics_follow_the_settings() -> None:
    kafka = KafkaSettings(topic_prefix="x", partitions=2)
    expected = [("x.nodes", 0), ("x.nodes", 1), ("x.pods", 0), ("x.pods", 1)]
    assert topic_partitions(kafka, NODES, PODS) == expected
    assert topic_partitions(kafka, FLEET) == [("x.fleet", 0)]


# ---- workarounds


async def test_no_partition_is_ever_reset_by_the_client(logs: Install) -> None:
    consumer = logs({TP: FakeLog(range(3)), OTHER: FakeLog()})
    async with open_follower(CLIENT, [TP, OTHER]) as follower:
        await asyncio.sleep(0)
        follower.read_from({TP: 1}, {TP: 3})
        assert await values(follower) == [b"1", b"2"]
    assert consumer.resets == []


async def test_an_error_right_after_the_start_is_not_replaced_by_a_cancellation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def bootstrap(_: AIOKafkaClient) -> None:
        return None

    monkeypatch.setattr(AIOKafkaClient, "bootstrap", bootstrap)
    consumer = AIOKafkaConsumer(group_id=None)
    await consumer.start()
    with pytest.raises(asyncio.CancelledError):
        await consumer.stop()  # else this workaround is not needed any more

    with pytest.raises(ZeroDivisionError):
        async with open_follower({"bootstrap_servers": "127.0.0.1:1"}, []):
            raise ZeroDivisionError


async def _hang() -> None:
    await asyncio.Event().wait()


async def _cancel_itself() -> None:
    raise asyncio.CancelledError


async def _break() -> None:
    raise KafkaConnectionError("away")


@pytest.mark.parametrize("stop", [_hang, _cancel_itself, _break])
async def test_a_client_that_cannot_be_stopped_delays_its_caller_briefly(
    logs: Install, monkeypatch: pytest.MonkeyPatch, stop: Any
) -> None:
    monkeypatch.setattr(follow, "STOP_SECONDS", 0.05)
    consumer = logs({TP: FakeLog()})
    monkeypatch.setattr(consumer, "stop", stop)
    async with open_follower(CLIENT, [TP]) as follower:
        follower.read_from({TP: 0}, {})
    assert consumer.is_closed


async def test_a_cancellation_while_the_client_stops_is_not_swallowed(
    logs: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopping = asyncio.Event()

    async def stop() -> None:
        stopping.set()
        inner = asyncio.ensure_future(_swallow())
        await inner

    async def _swallow() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)

    consumer = logs({TP: FakeLog()})
    monkeypatch.setattr(consumer, "stop", stop)

    async def work() -> None:
        async with open_follower(CLIENT, [TP]):
            pass
        await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await stopping.wait()
    task.cancel()
    await asyncio.wait({task}, timeout=30)
    assert task.cancelled()
    assert consumer.is_closed


async def test_other_tasks_run_between_buffered_records(logs: Install) -> None:
    logs({TP: FakeLog(range(100))})
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    async with open_follower(CLIENT, [TP]) as follower:
        await follower.begin()
        before = turns
        for _ in range(10):
            assert len(await follower.poll(max_records=10)) == 10
        assert turns >= before + 10
    task.cancel()


async def test_offsets_without_a_record_count_as_read(logs: Install) -> None:
    logs({TP: FakeLog([0, 4], end=9)})
    async with open_follower(CLIENT, [TP]) as follower:
        await follower.begin()
        assert await values(follower) == [b"0", b"4"]
        assert follower.positions == {TP: 9}


# ---- pauses between attempts


def test_pauses_double_up_to_the_longest_and_begin_again_after_a_success(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(random, "random", lambda: 0.5)
    backoff = Backoff(1.0, 5.0)
    assert backoff.is_first
    assert [backoff.pause() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert not backoff.is_first
    backoff.reset()
    assert backoff.pause() == 1.0


def test_jitter_spreads_pauses_around_their_length() -> None:
    pauses = [Backoff(10.0, 60.0).pause() for _ in range(200)]
    assert 5.0 <= min(pauses) < 8.0
    assert 12.0 < max(pauses) <= 15.0
