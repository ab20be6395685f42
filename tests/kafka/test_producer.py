"""One producer for every writer, over a fake client. Over a broker: tests/integration."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.cluster import ClusterMetadata
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    ProducerFenced,
)

from pipeline.errors import BrokerUnavailableError, KafkaError, StateError
from pipeline.kafka import producer as module
from pipeline.kafka.producer import (
    LOG,
    Keyed,
    Producer,
    RecordTooLargeError,
    is_fenced,
    log_producer,
)

FIRST_OFFSET = 7
CLIENT = {"bootstrap_servers": "fake:9092"}


class FakeBatch:
    """Takes records until their values fill it; an empty one takes any."""

    def __init__(self, room: int) -> None:
        self.values: list[bytes | None] = []
        self.closed = False
        self._room = room

    def append(
        self, *, key: bytes, value: bytes | None, timestamp: int | None, headers: Any
    ) -> object | None:
        assert not self.closed
        assert isinstance(headers, list)
        if self.values and len(value or b"") > self._room:
            self.closed = True
            return None
        self._room -= len(value or b"")
        self.values.append(value)
        return object()

    def record_count(self) -> int:
        return len(self.values)

    def close(self) -> None:
        self.closed = True


class FakeClient:
    """Delivers a little later. `fails` says which batch (from 0) is not delivered, `repeats` of
    which the first answer is lost, so that the second has no offset."""

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}
        self.delivered: list[list[bytes | None]] = []
        self.records: list[tuple[str, bytes | None, bytes | None, int | None]] = []
        self.most_in_flight = self.starts = self.stops = 0
        self.room = 10
        self.written = SimpleNamespace(timestamp=5_000, timestamp_type=1)
        self.fails: Callable[[int], bool] = lambda number: False
        self.repeats: Callable[[int], bool] = lambda number: False
        self.start_error: BaseException | None = None
        self.record_error: BaseException | None = None
        self._in_flight = self._sent = 0
        self.client = SimpleNamespace(_metadata_update=self._find, _get_conn=None)
        self._sender = self._message_accumulator = SimpleNamespace()

    async def start(self) -> None:
        limited = self.client._metadata_update != self._find, self.client._get_conn is not None
        assert all(limited)
        self.starts += 1
        await asyncio.sleep(0)
        if self.start_error:
            raise self.start_error

    async def stop(self) -> None:
        self.stops += 1

    def create_batch(self) -> FakeBatch:
        return FakeBatch(self.room)

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
        if self.fails(number):
            raise KafkaTimeoutError("not delivered")
        before = FIRST_OFFSET + sum(map(len, self.delivered))
        self.delivered.append(batch.values)
        return SimpleNamespace(offset=-1 if self.repeats(number) else before)

    async def send(
        self, topic: str, value: Any, *, key: Any, partition: int | None, headers: Any
    ) -> "asyncio.Future[Any]":
        delivery: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.record_error is None:
            self.records.append((topic, key, value, partition))
            delivery.set_result(self.written)
        else:
            delivery.set_exception(self.record_error)
        return delivery

    async def send_and_wait(self, topic: str, value: Any, **options: Any) -> Any:
        return await (await self.send(topic, value, **options))

    async def _find(self, found: ClusterMetadata, topics: list[str]) -> bool:
        (topic,) = topics
        if topic == "t":
            found._partitions[topic] = dict.fromkeys(range(3))
        if topic == "forbidden":
            found.unauthorized_topics.add(topic)
        return topic != "away"


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    """The client of every producer that a test makes."""
    fake = FakeClient()

    def make(**options: Any) -> FakeClient:
        fake.options = options
        return fake

    monkeypatch.setattr(module, "AIOKafkaProducer", make)
    return fake


async def append(*values: bytes) -> list[int]:
    return await log_producer(CLIENT).append("t.windows", 3, [Keyed(b"k", v) for v in values])


# ---- appending to a log


@pytest.mark.parametrize(
    ("room", "batches"),
    [
        (10, []),
        (10, [[b"aaa", b"bbb", b"cccc"]]),
        (10, [[b"aaaaaa"], [b"bbbbbb", b"cc"], [b"dddddddddd"], [b"e"]]),
        # A large record is a batch of its own.
        (4, [[b"a"], [b"12345"], [b"b"]]),
    ],
)
async def test_records_fill_batches_of_which_each_follows_the_delivery_of_the_one_before(
    client: FakeClient, room: int, batches: list[list[bytes]]
) -> None:
    client.room = room
    values = [value for batch in batches for value in batch]
    assert await append(*values) == [*range(FIRST_OFFSET, FIRST_OFFSET + len(values))]
    assert client.delivered == batches
    assert client.most_in_flight == min(len(batches), 1)


async def test_after_a_failure_a_prefix_is_there_and_no_more(client: FakeClient) -> None:
    client.room, client.fails = 1, lambda number: number == 1
    with pytest.raises(BrokerUnavailableError, match=r"writing to t\.windows\[3\]"):
        await append(b"a", b"b", b"c")
    assert client.delivered == [[b"a"]]


async def test_a_delivery_without_an_offset_is_an_error(client: FakeClient) -> None:
    client.room, client.repeats = 1, lambda number: number == 1
    with pytest.raises(StateError, match=r"t\.windows\[3\]: the broker returned no offset"):
        await append(b"a", b"b", b"c")
    assert client.delivered == [[b"a"], [b"b"]]


@pytest.mark.parametrize(
    ("timestamp_type", "timestamp", "appended_at"),
    [(1, 5_250, 5.25), (0, 5_250, None), (1, -1, None), (1, None, None)],
)
async def test_a_delivery_says_when_the_broker_appended_the_record(
    client: FakeClient, timestamp_type: int, timestamp: int | None, appended_at: float | None
) -> None:
    client.written = SimpleNamespace(timestamp=timestamp, timestamp_type=timestamp_type)
    assert await Producer(CLIENT).deliver("t.actions", value=b"v", key=b"k") == appended_at


# ---- many records in flight


async def test_an_append_below_an_earlier_record_is_an_error(
    client: FakeClient,
) -> None:
    producer = log_producer(CLIENT)
    records = [Keyed(b"k", b"a"), Keyed(b"k", b"b")]
    assert await producer.append("t.windows", 3, records) == [7, 8]
    client.delivered.pop()  # truncated
    with pytest.raises(StateError, match=r"t\.windows\[3\]: a record has offset 7 after offset 8"):
        await producer.append("t.windows", 3, records)


async def _write_append(producer: Producer) -> None:
    await producer.append("t.windows", 3, [Keyed(b"k", b"v")])


async def _write_deliver(producer: Producer) -> None:
    await producer.deliver("t", value=b"v", key=b"k")


async def _write_send(producer: Producer) -> None:
    await producer.send("t", value=b"v", key=b"k")


async def _write_batches(producer: Producer) -> None:
    await producer.send_batches("t.windows", 3, [Keyed(b"k", b"v")])


async def _count(producer: Producer) -> None:
    await producer.partition_count("t")


async def _commit(producer: Producer) -> None:
    await producer.start()
    async with producer.transaction():
        pass


@pytest.mark.parametrize(
    "wait", [_write_append, _write_deliver, _write_send, _write_batches, _count, _commit]
)
async def test_nothing_waits_longer_than_the_time_limit(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch, wait: Any
) -> None:
    async def hang(*_: Any, **__: Any) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(module, "DELIVERY_SECONDS", 0.02)
    for name in ("send_batch", "send", "send_and_wait"):
        monkeypatch.setattr(client, name, hang)
    monkeypatch.setattr(client.client, "_metadata_update", hang)
    transaction = SimpleNamespace(__aenter__=client.start, __aexit__=hang)
    monkeypatch.setattr(client, "transaction", lambda: transaction, raising=False)
    async with asyncio.timeout(30):
        with pytest.raises(BrokerUnavailableError, match="TimeoutError"):
            await wait(Producer(CLIENT))


async def test_batches_are_in_flight_together_and_in_order(client: FakeClient) -> None:
    client.room = 2
    headers = [("source", b"test")]
    records = [Keyed(b"k", value) for value in (b"a", b"b", None, b"cc")]
    deliveries = await Producer(CLIENT).send_batches("t.windows", 3, records, headers)
    await asyncio.gather(*deliveries)
    assert client.delivered == [[b"a", b"b", None], [b"cc"]]
    assert client.most_in_flight == 2


async def test_deliveries_that_nobody_awaits_do_not_complain(client: FakeClient) -> None:
    complaints: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    client.fails, client.record_error = lambda number: True, KafkaTimeoutError("late")
    producer = Producer(CLIENT)
    await producer.send("t.nodes", value=b"v", key=b"k")
    await producer.send_batches("t.windows", 3, [Keyed(b"k", b"v")])
    await asyncio.sleep(0.01)
    assert complaints == []


# ---- single records


async def test_the_first_record_starts_the_client_once(client: FakeClient) -> None:
    producer = Producer(CLIENT)
    assert client.starts == 0
    await asyncio.gather(*(producer.deliver("t", value=b"%d" % i, key=b"k") for i in range(5)))
    assert client.starts == 1
    assert [record[2] for record in client.records] == [b"0", b"1", b"2", b"3", b"4"]
    await producer.stop()
    await producer.stop()
    assert client.stops == 1


async def test_a_record_that_is_too_large_has_an_error_of_its_own(client: FakeClient) -> None:
    client.record_error = MessageSizeTooLargeError("9 bytes")
    with pytest.raises(RecordTooLargeError, match=r"t: .*9 bytes"):
        await Producer(CLIENT).deliver("t", value=b"v", key=b"k")


async def test_an_offer_that_fails_is_counted_and_the_next_one_may_succeed(
    client: FakeClient,
) -> None:
    producer = Producer(CLIENT)
    client.start_error = KafkaConnectionError("away")
    await producer.offer("t", value=b"lost", key=None)
    assert (producer.lost, client.stops) == (1, 1)
    client.start_error = None
    await producer.offer("t", value=b"there", key=None)
    assert producer.lost == 1
    assert client.records == [("t", None, b"there", None)]


async def test_an_offer_gives_up_after_its_time_limit(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(*_: Any, **__: Any) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(module, "OFFER_SECONDS", 0.02)
    monkeypatch.setattr(client, "send_and_wait", hang)
    producer = Producer(CLIENT)
    await producer.offer("t", value=b"lost", key=None)
    assert producer.lost == 1


async def test_partitions_of_a_topic_are_counted(client: FakeClient) -> None:
    producer = Producer(CLIENT)
    assert await producer.partition_count("t") == 3
    assert await producer.partition_count("none") == 0
    with pytest.raises(KafkaError, match="denied access"):
        await producer.partition_count("forbidden")
    with pytest.raises(BrokerUnavailableError, match="looking at away: no broker answers"):
        await producer.partition_count("away")


# ---- the client


async def test_every_producer_is_idempotent_and_waits_for_all_replicas(client: FakeClient) -> None:
    producer = Producer(
        CLIENT, LOG, client_id="me", max_record_bytes=1000, sole_writer="the-watcher"
    )
    async with producer:
        assert client.options == {
            "bootstrap_servers": "fake:9092", "acks": "all", "enable_idempotence": True,
            "linger_ms": 2, "max_batch_size": 1024 * 1024, "compression_type": "snappy",
            "client_id": "me", "max_request_size": 1000, "transactional_id": "the-watcher",
        }  # fmt: skip


@pytest.mark.parametrize("error", [KafkaConnectionError("away"), asyncio.CancelledError()])
async def test_a_client_that_did_not_start_is_stopped(
    client: FakeClient, error: BaseException
) -> None:
    client.start_error = error
    with suppress(BrokerUnavailableError, asyncio.CancelledError):
        await Producer(CLIENT).start()
    assert (client.starts, client.stops) == (1, 1)


async def test_a_client_that_cannot_flush_is_closed_and_deliveries_fail(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    failed: list[Exception] = []

    async def hang() -> None:
        await asyncio.sleep(60)

    async def close(part: str) -> None:
        closed.append(part)

    monkeypatch.setattr(client, "stop", hang)
    client.client.close = lambda: close("connections")
    client._sender = SimpleNamespace(close=lambda: close("sender"))
    client._message_accumulator = SimpleNamespace(
        fail_all=failed.append, _batches={}, _pending_batches=set()
    )
    async with asyncio.timeout(30):
        producer = Producer(CLIENT)
        await producer.start()
        await producer.stop(0.02)
    assert closed == ["connections", "sender"]
    assert [type(error) for error in failed] == [KafkaConnectionError]


def test_a_fenced_producer_is_recognized_behind_the_errors_that_follow() -> None:
    fenced, while_cleaning_up, translated = (
        ProducerFenced(), KafkaTimeoutError(), BrokerUnavailableError("x"),
    )  # fmt: skip
    while_cleaning_up.__context__ = fenced
    translated.__cause__ = while_cleaning_up
    errors = (fenced, while_cleaning_up, translated, KafkaTimeoutError(), None)
    assert [is_fenced(error) for error in errors] == [True, True, True, False, False]
