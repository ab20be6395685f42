"""The overrides of Faust, and how its stream and signals reach a group member."""

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import OffsetResetStrategy
from aiokafka.errors import NodeNotReadyError
from faust import App
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer
from faust.types import TP, Message
from mode.utils.queues import FlowControlEvent, ThrowableQueue

from pipeline.agents import faust_host
from pipeline.agents.consumer_group import RecordSource
from pipeline.agents.faust_host import (
    BoundedQueue,
    FaustGroup,
    FaustWorker,
    RawSchema,
    StreamSource,
    UnpausedConsumer,
    create_app,
)
from pipeline.settings import Settings
from tests.processes import until

PARTITION = TP("springtide.samples", 3)


async def ignore(*_: Any) -> None:
    """A callback."""


@pytest.fixture
def app(tmp_path: Path) -> App:
    return create_app(Settings(), tmp_path)


@pytest.fixture
async def consumer(app: App) -> UnpausedConsumer:
    created = app.transport.create_consumer(
        ignore, on_partitions_revoked=ignore, on_partitions_assigned=ignore
    )
    assert isinstance(created, UnpausedConsumer)
    created._set_active_tps({PARTITION})
    created.loop = asyncio.get_running_loop()
    return created


def message(offset: int, partition: int = 3, value: bytes | None = b"value") -> Message:
    """A message from 1970-01-01T00:00:01.5Z."""
    topic = PARTITION.topic
    return Message(topic, partition, offset, 1.5, 1, [], b"\xffkey", value, None,
                   tp=TP(topic, partition))  # fmt: skip


# -- pauses, waits and fetches


async def test_a_full_queue_pauses_no_partition(consumer: UnpausedConsumer) -> None:
    consumer.on_buffer_full(PARTITION)
    assert consumer._get_active_partitions() == {PARTITION}
    Consumer.on_buffer_full(consumer, PARTITION)
    assert consumer._get_active_partitions() == set()
    Consumer.on_buffer_drop(consumer, PARTITION)
    consumer.on_buffer_drop(PARTITION)
    assert consumer._get_active_partitions() == {PARTITION}


class Delivery:
    """A delivery that waits for `rooms`, and notes each step."""

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


async def test_a_partition_without_a_position_is_no_failure(app: App, consumer: Any) -> None:
    """aiokafka has none until the broker answers where a truncated partition begins."""
    thread: Any = consumer._new_consumer_thread()
    client = thread._consumer = thread._create_worker_consumer(app.transport)
    thread.time_started = 0.0
    consumer._thread = thread
    client._subscription.assign_from_user([TopicPartition(*PARTITION)])
    client._fetcher = SimpleNamespace(_subscriptions=client._subscription)
    state = client._subscription.subscription.assignment.state_value(PARTITION)
    state.timestamp = 1000 * time.time()
    state.await_reset(OffsetResetStrategy.EARLIEST)
    assert consumer.assignment() == {PARTITION}
    await consumer.verify_all_partitions_active()
    client._fetcher = None
    await client.stop()


async def test_a_delivery_with_room_creates_no_task(consumer: UnpausedConsumer) -> None:
    delivery, ended = Delivery(), asyncio.Event()
    before = asyncio.all_tasks()
    waiting = consumer.wait_first(delivery.make(), ended.wait())
    with pytest.raises(StopIteration):
        waiting.send(None)
    assert (delivery.notes, asyncio.all_tasks()) == (["delivered"], before)


async def test_a_delivery_without_room_is_awaited(consumer: UnpausedConsumer) -> None:
    waits, ended = rooms(2), asyncio.Event()
    delivery = Delivery(*waits)
    filling = asyncio.create_task(consumer.wait_first(delivery.make(), ended.wait()))
    for number, room in enumerate(waits):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not filling.done()
        room.set_result(f"room {number}")
    await asyncio.wait_for(filling, 60)
    assert delivery.notes == ["room 0", "room 1", "delivered"]


async def test_a_waiting_delivery_is_cancelled_when_the_flow_ends(
    consumer: UnpausedConsumer,
) -> None:
    (room,), ended = rooms(1), asyncio.Event()
    delivery = Delivery(room)
    filling = asyncio.create_task(consumer.wait_first(delivery.make(), ended.wait()))
    await asyncio.sleep(0)
    ended.set()
    await asyncio.wait_for(filling, 60)
    await asyncio.sleep(0)
    assert delivery.notes == ["cut off"]


@pytest.mark.parametrize("must_wait", [False, True])
async def test_a_failed_delivery_raises(consumer: UnpausedConsumer, must_wait: bool) -> None:
    (room,), ended = rooms(1), asyncio.Event()

    async def failing() -> None:
        if must_wait:
            await room
        raise ConnectionError

    filling = asyncio.create_task(consumer.wait_first(failing(), ended.wait()))
    await asyncio.sleep(0)
    if not room.done():
        room.set_result("room")
    with pytest.raises(ConnectionError):
        await asyncio.wait_for(filling, 60)


async def test_waiting_for_an_event_works_as_in_faust(consumer: UnpausedConsumer) -> None:
    """Faust waits for the end of a rebalance in this way."""
    resumed: Any = asyncio.Event()
    waiting = asyncio.create_task(consumer.wait(resumed))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    resumed.set()
    await asyncio.wait_for(waiting, 60)


@pytest.mark.filterwarnings("ignore:Setting .* is deprecated")
async def test_a_fetch_gathers_records_in_the_broker_and_requests_are_limited(
    consumer: UnpausedConsumer,
) -> None:
    ours = consumer._new_consumer_thread()
    theirs = AIOKafkaConsumerThread(consumer, loop=consumer.loop, beacon=consumer.beacon)
    transport: Any = consumer.transport
    clients = [each._create_worker_consumer(transport) for each in (ours, theirs)]
    try:
        assert [client._fetch_max_wait_ms for client in clients] == [300, 1500]
        assert [client._fetch_min_bytes for client in clients] == [1 << 20, 1]
        limited = {"_get_conn", "_metadata_update"}
        assert [limited <= vars(client._client).keys() for client in clients] == [True, False]
    finally:
        for client in clients:
            await client.stop()


@pytest.mark.parametrize("value", [b"\xff not a text", b"", None])
async def test_events_have_the_raw_key_and_value(app: App, value: bytes | None) -> None:
    sent = message(7, value=value)
    event = await app.topic("samples", schema=RawSchema()).decode(sent, propagate=True)
    assert (event.key, event.value, event.message) == (b"\xffkey", value, sent)


# -- streams


class FakeStream:
    """A stream with Faust's own queue, which notes acknowledged offsets."""

    def __init__(self, size: int = 0) -> None:
        flow = FlowControlEvent(initially_suspended=False)
        self.queue: Any = ThrowableQueue(size, flow_control=flow)
        self.channel = SimpleNamespace(queue=self.queue)
        self.acknowledged: list[int] = []

    def put(self, *offsets: int) -> None:
        for offset in offsets:
            acknowledge = partial(self.acknowledged.append, offset)
            self.queue.put_nowait(SimpleNamespace(message=message(offset), ack=acknowledge))


def offsets(deliveries: Sequence[Any]) -> list[int]:
    return [delivery.record.offset for delivery in deliveries]


async def test_a_delivery_has_our_units_and_acknowledges_its_event() -> None:
    stream = FakeStream()
    stream.put(7)
    [delivery] = await StreamSource(stream, linger_seconds=0).take(100)
    assert delivery.record == (3, 7, b"\xffkey", b"value", 1500, None)
    assert stream.acknowledged == []
    delivery.acknowledge()
    assert stream.acknowledged == [7]


async def test_a_batch_takes_up_to_the_limit_from_the_queue() -> None:
    stream = FakeStream()
    stream.put(*range(10))
    source = StreamSource(stream, linger_seconds=0)
    assert [offsets(await source.take(4)) for _ in range(3)] == [
        [0, 1, 2, 3], [4, 5, 6, 7], [8, 9]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("present", "linger_seconds"),
    [
        (2, 0.2),  # a record that arrives soon joins the batch
        (3, 0.0),
        (4, 60.0),  # a whole batch does not wait
    ],
)
async def test_a_batch_lingers_only_if_it_can_grow(present: int, linger_seconds: float) -> None:
    stream = FakeStream()
    stream.put(*range(present))
    taking = asyncio.create_task(StreamSource(stream, linger_seconds).take(4))
    if present < 3:
        await asyncio.sleep(0)
        stream.put(present)
    async with asyncio.timeout(30):
        assert offsets(await taking) == list(range(max(present, 3)))


async def test_a_full_queue_does_not_linger() -> None:
    stream = FakeStream(size=2)
    stream.put(0, 1)
    taking = asyncio.create_task(StreamSource(stream, linger_seconds=600).take(100))
    stream.queue.full = lambda: True
    async with asyncio.timeout(30):
        assert offsets(await taking) == [0, 1]


async def test_the_queue_of_a_stream_is_bounded_in_bytes(
    app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faust_host, "_BUFFERED_BYTES", 100)
    app._consumer = app.transport.create_consumer(
        ignore, on_partitions_revoked=ignore, on_partitions_assigned=ignore
    )
    app.flow_control.resume()
    channel = app.topic(PARTITION.topic, schema=RawSchema()).clone(is_iterator=True)
    deliver = app.topics._compiler.build(app.topics, PARTITION, {channel})

    async def fill() -> None:
        for offset, size in enumerate((60, 60, 0, 1, 99, 100)):
            await deliver(message(offset, value=bytes(size) if size else None))

    filling = asyncio.create_task(fill())
    source = StreamSource(SimpleNamespace(channel=channel), linger_seconds=0)
    queue: Any = channel.queue
    sizes = []
    for offset in range(6):
        for _ in range(20):
            await asyncio.sleep(0)
        sizes.append(queue.bytes)
        assert offsets(await source.take(1)) == [offset]
    # A delivery to a queue of 100 bytes or more waits.
    assert sizes == [120, 160, 100, 100, 199, 100]
    assert (queue.bytes, filling.done()) == (0, True)


async def test_a_cleared_queue_has_room(app: App) -> None:
    queue = app.FlowControlQueue(maxsize=5)
    assert isinstance(queue, BoundedQueue)
    queue.force_put_nowait(SimpleNamespace(message=message(0)))
    assert queue.bytes == 5
    queue.clear()
    assert queue.bytes == 0


async def test_a_stopped_stream_ends_the_source() -> None:
    stream = FakeStream()
    taking = asyncio.create_task(StreamSource(stream, linger_seconds=0).take(100))
    await asyncio.sleep(0)
    await stream.queue.throw(StopAsyncIteration())
    assert await taking == []


# -- the group


class FakeMember:
    """Notes its calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    async def assigned(self, partitions: AbstractSet[int]) -> None:
        await asyncio.sleep(0)
        self.calls.append(partitions)

    def positions(self) -> Mapping[int, int]:
        return {3: 70, 4: 5}

    async def revoked(self) -> None:
        await asyncio.sleep(0)
        self.calls.append("revoked")

    async def shut_down(self) -> None:
        await asyncio.sleep(0)
        self.calls.append("shut down")

    async def consume(self, source: RecordSource) -> None:
        self.calls.append(source)


async def test_signals_of_the_app_are_awaited_calls_of_the_member(app: App) -> None:
    member, group = FakeMember(), FaustGroup(app, PARTITION.topic)
    others = {TP("springtide.others", 7), TP(PARTITION.topic, 1)}
    assigned: Any = SimpleNamespace(assignment=lambda: {PARTITION, *others})
    app._consumer = assigned
    group.connect(member)
    await app.on_rebalance_complete.send()
    await app.on_partitions_revoked.send({PARTITION})
    await app.on_before_shutdown.send()
    assert member.calls == [{1, 3}, "revoked", "shut down"]


@pytest.mark.parametrize("committed", [None, 7, 900])
async def test_reading_begins_at_the_position_of_the_member(
    app: App,
    consumer: UnpausedConsumer,
    committed: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Records before it would be fetched in vain, and records missed by a later commit be read
    from the log by another client."""
    FaustGroup(app, PARTITION.topic).connect(FakeMember())
    positions: dict[TP, int | None] = {}

    async def seek_to_committed(_: object) -> dict[TP, int | None]:
        positions[PARTITION] = committed
        return positions

    async def seek(_: object, tp: TP, offset: int) -> None:
        positions[tp] = offset

    monkeypatch.setattr(UnpausedConsumer, "seek_to_committed", seek_to_committed)
    monkeypatch.setattr(UnpausedConsumer, "_seek", seek)
    monkeypatch.setattr(UnpausedConsumer, "assignment", lambda _: {PARTITION})
    await consumer.perform_seek()
    assert positions == {PARTITION: 70}


async def test_the_member_consumes_the_stream_of_the_topic(app: App) -> None:
    member = FakeMember()
    FaustGroup(app, PARTITION.topic).connect(member)
    agent = app.agents[PARTITION.topic]
    assert agent.channel.get_topic_name() == PARTITION.topic
    assert isinstance(agent.channel.schema, RawSchema)
    await agent.fun(FakeStream())
    assert [type(call) for call in member.calls] == [StreamSource]


async def test_the_generation_is_that_of_the_newest_assignment(app: App) -> None:
    app.consumer_generation_id = 7
    assert FaustGroup(app, PARTITION.topic).generation == 7


async def test_a_crash_of_the_group_crashes_the_app(app: App) -> None:
    error = ValueError("broken")
    FaustGroup(app, PARTITION.topic).crash(error)
    await until(lambda: app.crash_reason is error)


@pytest.mark.parametrize("ending", ["cancelled", "waits", "raises"])
async def test_the_consumer_thread_ends_without_its_broker(
    consumer: UnpausedConsumer, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    async def stop() -> None:
        if ending == "cancelled":  # as aiokafka raises it from its own tasks
            raise asyncio.CancelledError
        if ending == "raises":
            raise NodeNotReadyError
        await asyncio.Event().wait()

    monkeypatch.setattr(faust_host, "_DISCONNECT_SECONDS", 0.05)
    thread = consumer._new_consumer_thread()
    thread._consumer = SimpleNamespace(stop=stop)
    await asyncio.wait_for(thread.on_thread_stop(), 60)


@pytest.mark.parametrize(("error", "code"), [(None, 0), (ValueError("broken"), 1)])
async def test_a_shutdown_that_hangs_exits_the_process(
    app: App, monkeypatch: pytest.MonkeyPatch, error: Exception | None, code: int
) -> None:
    codes = list[int]()
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setattr(faust_host, "STOP_SECONDS", 0.01)
    worker = FaustWorker(app, loop=asyncio.get_running_loop(), quiet=True, override_logging=False)
    monkeypatch.setattr(worker, "_stopped", SimpleNamespace(is_set=lambda: True))
    if error is None:
        await worker.stop()
    else:
        await worker.crash(error)
    await until(lambda: codes)
    assert codes == [code]
