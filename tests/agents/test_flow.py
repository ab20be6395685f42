"""What we took over from Faust's consumer is still what it is there."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer
from faust.types import TP, Message

from pipeline.agents.flow import AsItCame, WaitingConsumer
from pipeline.agents.partition_holder import create_app
from pipeline.clock import ManualClock
from pipeline.settings import Settings

PARTITION = TP("springtide.samples", 3)


async def ignore(*_: Any) -> None:
    """A callback."""


@pytest.fixture
async def consumer(tmp_path: Path) -> WaitingConsumer:
    app = create_app(Settings(), ManualClock(), tmp_path)
    made = app.transport.create_consumer(
        ignore, on_partitions_revoked=ignore, on_partitions_assigned=ignore
    )
    assert isinstance(made, WaitingConsumer)
    made._set_active_tps({PARTITION})
    made.loop = asyncio.get_running_loop()
    return made


async def test_a_full_queue_pauses_no_partition(consumer: WaitingConsumer) -> None:
    consumer.on_buffer_full(PARTITION)
    assert consumer._get_active_partitions() == {PARTITION}
    Consumer.on_buffer_full(consumer, PARTITION)
    assert consumer._get_active_partitions() == set()
    Consumer.on_buffer_drop(consumer, PARTITION)
    consumer.on_buffer_drop(PARTITION)
    assert consumer._get_active_partitions() == {PARTITION}


class Delivery:
    """A delivery that may have to wait for room, and notes what became of it."""

    def __init__(self, *rooms: "asyncio.Future[str]") -> None:
        self._rooms = rooms
        self.notes: list[str] = []

    async def make(self) -> None:
        try:
            for room in self._rooms:
                self.notes.append(await room)
            self.notes.append("delivered")
        except asyncio.CancelledError:
            self.notes.append("cut off")
            raise


def rooms(count: int) -> "list[asyncio.Future[str]]":
    return [asyncio.get_running_loop().create_future() for _ in range(count)]


async def test_a_delivery_that_need_not_wait_is_made_at_once(consumer: WaitingConsumer) -> None:
    delivery, ended = Delivery(), asyncio.Event()
    before = asyncio.all_tasks()
    waiting = consumer.wait_first(delivery.make(), ended.wait())
    with pytest.raises(StopIteration):
        waiting.send(None)
    assert (delivery.notes, asyncio.all_tasks()) == (["delivered"], before)


async def test_a_delivery_that_must_wait_is_waited_for(consumer: WaitingConsumer) -> None:
    waits, ended = rooms(2), asyncio.Event()
    delivery = Delivery(*waits)
    filling = asyncio.create_task(consumer.wait_first(delivery.make(), ended.wait()))
    for number, room in enumerate(waits):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not filling.done()
        room.set_result(f"room {number}")
    await asyncio.wait_for(filling, 5)
    assert delivery.notes == ["room 0", "room 1", "delivered"]


async def test_when_the_flow_ends_a_delivery_that_waits_is_given_up(
    consumer: WaitingConsumer,
) -> None:
    (room,), ended = rooms(1), asyncio.Event()
    delivery = Delivery(room)
    filling = asyncio.create_task(consumer.wait_first(delivery.make(), ended.wait()))
    await asyncio.sleep(0)
    ended.set()
    await asyncio.wait_for(filling, 5)
    await asyncio.sleep(0)
    assert delivery.notes == ["cut off"]


@pytest.mark.parametrize("waits", [False, True])
async def test_a_delivery_that_fails_is_told(consumer: WaitingConsumer, waits: bool) -> None:
    (room,), ended = rooms(1), asyncio.Event()

    async def failing() -> None:
        if waits:
            await room
        raise ConnectionError

    filling = asyncio.create_task(consumer.wait_first(failing(), ended.wait()))
    await asyncio.sleep(0)
    if not room.done():
        room.set_result("room")
    with pytest.raises(ConnectionError):
        await asyncio.wait_for(filling, 5)


async def test_whoever_waits_for_an_event_waits_as_before(consumer: WaitingConsumer) -> None:
    """Faust waits so for the end of a rebalance."""
    resumed = asyncio.Event()
    waiting = asyncio.create_task(consumer.wait(resumed))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    resumed.set()
    await asyncio.wait_for(waiting, 5)


@pytest.mark.filterwarnings("ignore:Setting .* is deprecated")
async def test_a_fetch_waits_in_the_broker_for_a_tenth_of_a_second(
    consumer: WaitingConsumer,
) -> None:
    ours = consumer._new_consumer_thread()
    theirs = AIOKafkaConsumerThread(consumer, loop=consumer.loop, beacon=consumer.beacon)
    clients = [each._create_worker_consumer(consumer.transport) for each in (ours, theirs)]
    try:
        assert [client._fetch_max_wait_ms for client in clients] == [100, 1500]
    finally:
        for client in clients:
            await client.stop()


@pytest.mark.parametrize("value", [b"\xff not a text", b"", None])
async def test_key_and_value_are_handed_on_as_they_came(
    consumer: WaitingConsumer, value: bytes | None
) -> None:
    message = Message(
        "samples", 0, 7, 0.0, 1, [], b"\xffkey", value, None, tp=TP("samples", 0)
    )  # fmt: skip
    event = await consumer.app.topic("samples", schema=AsItCame()).decode(message, propagate=True)
    assert (event.key, event.value, event.message) == (b"\xffkey", value, message)
