"""The log is extended by one record batch at a time, over a fake producer."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.errors import StateError
from pipeline.kafka.producer import Keyed, Output

FIRST_OFFSET = 7


class FakeBatch:
    """Takes records until their values fill it."""

    def __init__(self, room: int) -> None:
        self.values: list[bytes | None] = []
        self.closed = False
        self._room = room

    def append(self, *, key: bytes, value: bytes | None, timestamp: int | None) -> object | None:
        assert not self.closed
        if len(value or b"") > self._room:
            return None
        self._room -= len(value or b"")
        self.values.append(value)
        return object()

    def size(self) -> int:
        return sum(len(value or b"") for value in self.values)

    def close(self) -> None:
        self.closed = True


class FakeProducer:
    """Delivers batches a little later; `fails` says which (from 0) is not delivered, `repeats`
    of which the first answer is lost, so that the second does not say where it lies."""

    def __init__(
        self,
        room: int,
        fails: Callable[[int], bool] = lambda number: False,
        repeats: Callable[[int], bool] = lambda number: False,
    ) -> None:
        self.delivered: list[list[bytes | None]] = []
        self.most_in_flight = 0
        self._room, self._fails, self._repeats = room, fails, repeats
        self._in_flight, self._sent = 0, 0

    def create_batch(self) -> FakeBatch:
        return FakeBatch(self._room)

    async def send_batch(
        self, batch: FakeBatch, topic: str, *, partition: int
    ) -> "asyncio.Task[SimpleNamespace]":
        assert batch.closed
        assert (topic, partition) == ("t.windows", 3)
        number, self._sent = self._sent, self._sent + 1
        return asyncio.create_task(self._deliver(batch, number))

    async def _deliver(self, batch: FakeBatch, number: int) -> SimpleNamespace:
        self._in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self._in_flight)
        await asyncio.sleep(0.001)
        self._in_flight -= 1
        if self._fails(number):
            raise ConnectionError("not delivered")
        before = FIRST_OFFSET + sum(map(len, self.delivered))
        self.delivered.append(batch.values)
        return SimpleNamespace(offset=-1 if self._repeats(number) else before)


async def append(producer: Any, *values: bytes) -> list[int]:
    return await Output(producer).append("t.windows", 3, [Keyed(b"k", value) for value in values])


async def test_what_fits_one_batch_is_one_batch() -> None:
    producer = FakeProducer(room=10)
    await append(producer, b"aaa", b"bbb", b"cccc")
    assert producer.delivered == [[b"aaa", b"bbb", b"cccc"]]


async def test_what_does_not_fit_follows_when_the_first_is_delivered() -> None:
    producer = FakeProducer(room=10)
    offsets = await append(producer, b"aaaaaa", b"bbbbbb", b"cc", b"dddddddddd", b"e")
    assert offsets == [7, 8, 9, 10, 11]
    assert producer.delivered == [[b"aaaaaa"], [b"bbbbbb", b"cc"], [b"dddddddddd"], [b"e"]]
    assert producer.most_in_flight == 1


async def test_a_batch_that_holds_a_mebibyte_takes_no_more() -> None:
    producer = FakeProducer(room=1 << 30)
    sizes = [2 << 20, 1, (1 << 20) - 2, 1, 3]
    await append(producer, *(bytes(size) for size in sizes))
    found = [[len(value or b"") for value in batch] for batch in producer.delivered]
    assert found == [[2 << 20], [1, (1 << 20) - 2, 1], [3]]


async def test_after_a_failure_a_prefix_is_there_and_no_more() -> None:
    producer = FakeProducer(room=1, fails=lambda number: number == 1)
    with pytest.raises(ConnectionError):
        await append(producer, b"a", b"b", b"c")
    assert producer.delivered == [[b"a"]]


async def test_an_answer_that_does_not_say_where_records_lie_is_an_error() -> None:
    producer = FakeProducer(room=1, repeats=lambda number: number == 1)
    with pytest.raises(StateError, match=r"t\.windows\[3\]: the broker does not say"):
        await append(producer, b"a", b"b", b"c")
    assert producer.delivered == [[b"a"], [b"b"]]


async def test_a_record_that_fits_no_batch_is_an_error_and_not_an_endless_loop() -> None:
    producer = FakeProducer(room=4)
    with pytest.raises(ValueError, match="5 bytes"):
        await append(producer, b"a", b"12345")
    assert producer.delivered == [[b"a"]]


async def test_nothing_is_no_batch() -> None:
    producer = FakeProducer(room=4)
    assert await append(producer) == []
    assert producer.delivered == []
