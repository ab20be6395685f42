"""Everything that is Faust: the app, its settings, and each override of Faust's internals.

Faust hosts the consumer group, the assignment and one agent that reads `samples`. It decides
nothing that data depends on (docs/adr/0003-faust.md). No other module imports `faust` or `mode`.

`tests/agents/test_faust_internals.py` lists each name, signature, default and behaviour of Faust
that this module relies on. Before an upgrade, run it and `tests/system` with the new version, then
raise `TESTED_VERSIONS`.
"""

import asyncio
import os
import threading
from asyncio import iscoroutine
from collections.abc import Callable, Coroutine, Generator, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn, cast

import faust
from aiokafka import AIOKafkaConsumer
from faust import Event, Schema
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer, Transport
from faust.types import TP, AppT
from mode import CrashingSupervisor
from mode.services import WaitResults
from mode.utils.queues import ThrowableQueue

from pipeline.agents.consumer_group import ConsumerGroup, GroupMember
from pipeline.event_loop_lag import measure_event_loop_lag
from pipeline.kafka import record_batches
from pipeline.kafka.client import limit_connections, limit_metadata_requests, ssl_context
from pipeline.kafka.partition_log import LogRecord
from pipeline.logs import get_logger
from pipeline.settings import KafkaSettings, Settings
from pipeline.tasks import run_within
from pipeline.topics.registry import SAMPLES

log = get_logger(__name__)

TESTED_VERSIONS: Final = {
    "faust-streaming": "0.15.3",
    "mode-streaming": "0.7.1",
    "aiokafka": "0.14.0",
}
"""The versions with which all overrides in this module were tested."""

STOP_SECONDS: Final = 25.0
"""Time for a shutdown. Less than a supervisor waits before it kills the worker."""

# Faust requires a request time-out longer than the session. This survives a broker restart.
_REQUEST_TIMEOUT_MARGIN_SECONDS: Final = 10.0
# Enough to keep a worker busy until the next fetch: fetched records wait in memory. A larger batch
# is fetched all the same.
_FETCH_BYTES: Final = 2 * 1024 * 1024
_BUFFERED_MESSAGES: Final = 2048
_BUFFERED_BYTES: Final = 32 * 1024 * 1024
# Records of a fetch that become objects at once: small ones take many times their size.
_POLLED_RECORDS: Final = 500
# Nothing is fetched while partitions are loaded, and a rebuild from the log may take hours. The
# session time-out detects a dead worker.
_LONGEST_LOAD_SECONDS: Final = 7 * 86_400.0
# The broker gathers records, which then share requests to it and calls of the models.
_FETCH_WAIT_MS: Final = 300
_FETCH_MIN_BYTES: Final = 1024 * 1024
# Faust puts the records of a response into the queue one by one.
_LINGER_SECONDS: Final = 0.02
_LARGE_BATCH: Final = 100
_DISCONNECT_SECONDS: Final = 5.0


def run_worker(
    settings: Settings, data_dir: Path, create_member: Callable[[ConsumerGroup], GroupMember]
) -> NoReturn:
    """Run the member in a consumer group until a signal or an error stops this process."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    app = create_app(settings, data_dir)
    group = FaustGroup(app, SAMPLES.full_name(settings.kafka.topic_prefix))
    group.connect(create_member(group))
    # Faust would replace the log handlers and mangle the output.
    worker = FaustWorker(
        app, loop=loop, quiet=True, override_logging=False, redirect_stdouts=False
    )  # fmt: skip
    worker.spinner = None
    loop.call_soon(measure_event_loop_lag)
    worker.execute_from_commandline()


def create_app(settings: Settings, data_dir: Path) -> faust.App:
    """Create the Faust app of a worker.

    docs/adr/0003-faust.md has the reason of each setting that differs from Faust's default.
    """
    kafka, worker = settings.kafka, settings.worker
    app = BoundedApp(
        settings.worker_group,
        broker=[f"kafka://{server}" for server in kafka.bootstrap_servers.split(",")],
        broker_credentials=faust_credentials(kafka),
        key_serializer="raw",
        value_serializer="raw",
        topic_partitions=kafka.partitions,
        topic_allow_declare=False,
        topic_disable_leader=True,
        table_standby_replicas=1,
        consumer_auto_offset_reset="earliest",
        consumer_group_instance_id=worker.instance_id,
        consumer_max_fetch_size=_FETCH_BYTES,
        stream_buffer_maxsize=_BUFFERED_MESSAGES,
        broker_max_poll_records=_POLLED_RECORDS,
        stream_wait_empty=False,
        stream_recovery_delay=0,
        broker_commit_interval=1.0,
        broker_session_timeout=worker.session_timeout_seconds,
        broker_max_poll_interval=_LONGEST_LOAD_SECONDS,
        broker_heartbeat_interval=worker.session_timeout_seconds / 4,
        broker_request_timeout=max(
            kafka.request_timeout_seconds,
            worker.session_timeout_seconds + _REQUEST_TIMEOUT_MARGIN_SECONDS,
        ),
        agent_supervisor=CrashingSupervisor,
        web_enabled=False,
        datadir=data_dir,
    )
    app.transport = UnpausedTransport(app.conf.broker_consumer, app)
    return app


def faust_credentials(kafka: KafkaSettings) -> Any:
    """Return `broker_credentials` for a Faust app, None for a plain connection."""
    context = ssl_context(kafka)
    if kafka.security_protocol.startswith("SASL"):
        return faust.SASLCredentials(
            username=kafka.sasl_username,
            password=kafka.sasl_password.reveal() if kafka.sasl_password else None,
            mechanism=kafka.sasl_mechanism,
            ssl_context=context,
        )
    return None if context is None else faust.SSLCredentials(context=context)


class FaustGroup:
    """The consumer group of a Faust app that reads one topic."""

    def __init__(self, app: faust.App, topic: str) -> None:
        self._app = app
        self._topic = topic

    @property
    def generation(self) -> int:
        """The generation of the newest assignment."""
        return int(self._app.consumer_generation_id)

    def crash(self, error: BaseException) -> None:
        """Stop the worker because of `error`."""
        self._app.add_future(self._app.crash(error))

    def connect(self, member: GroupMember) -> None:
        """Forward the events of the group, and the records of its topic, to `member`."""

        async def revoked(*_: object, **__: object) -> None:
            await member.revoked()

        # `on_partitions_assigned` would run before heartbeats begin: a long load would get the
        # worker expelled from the group. Faust awaits this one before streams resume.
        async def assigned(*_: object, **__: object) -> None:
            await member.assigned(
                {tp.partition for tp in self._app.consumer.assignment() if tp.topic == self._topic}
            )

        async def shut_down(*_: object, **__: object) -> None:
            await member.shut_down()

        async def consume(stream: Any) -> None:
            await member.consume(StreamSource(stream))

        transport: Any = self._app.transport
        transport.positions = lambda: {
            TP(self._topic, partition): offset for partition, offset in member.positions().items()
        }
        self._app.on_partitions_revoked.connect(revoked)
        self._app.on_rebalance_complete.connect(assigned)
        self._app.on_before_shutdown.connect(shut_down)
        self._app.agent(self._app.topic(self._topic, schema=RawSchema()), name=self._topic)(consume)


class StreamDelivery:
    """An event of a Faust stream."""

    __slots__ = ("_event", "record")

    def __init__(self, event: Any) -> None:
        self._event = event
        message = event.message
        self.record = LogRecord(
            message.partition,
            message.offset,
            message.key,
            message.value,
            round(message.timestamp * 1000),  # Faust's timestamps are seconds
        )

    def acknowledge(self) -> None:
        """Allow Faust to commit this record."""
        self._event.ack()


class StreamSource:
    """Takes raw events out of the queue of a Faust stream.

    Iterating over the stream costs more per event than the join of a small window. `take()` of the
    stream commits a batch that raised an exception, and stops a partition at an undecodable record.
    """

    def __init__(self, stream: Any, linger_seconds: float = _LINGER_SECONDS) -> None:
        self._stream = stream
        self._linger_seconds = linger_seconds

    async def take(self, limit: int) -> list[StreamDelivery]:
        """Wait for the next records, up to `limit`; an empty list is the end of the stream.

        Fewer than a hundred records wait a moment for more, unless the queue is full.
        """
        queue = self._stream.channel.queue
        try:
            events = [await queue.get()]
            if 1 + queue.qsize() < min(limit, _LARGE_BATCH) and not queue.full():
                await asyncio.sleep(self._linger_seconds)
            while len(events) < limit and not queue.empty():
                events.append(queue.get_nowait())
        except StopAsyncIteration:  # Faust throws it into the queue of a stopped stream
            return []
        return [StreamDelivery(event) for event in events]


class BoundedQueue(ThrowableQueue[Event]):
    """A queue of events that is also full when their values have 32 MiB.

    Faust counts messages only, and a sample may have 2 MiB, an unreadable batch 8.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.bytes = 0
        super().__init__(*arguments, **options)

    def full(self) -> bool:
        return super().full() or self.bytes >= _BUFFERED_BYTES

    def clear(self) -> None:
        super().clear()
        self.bytes = 0

    def _put(self, item: Event) -> None:
        self.bytes += len(item.message.value or b"")
        super()._put(item)

    def _get(self) -> Event:
        item: Event = super()._get()
        self.bytes -= len(item.message.value or b"")
        return item


class BoundedApp(faust.App):
    """A Faust app whose streams have bounded queues."""

    def FlowControlQueue(  # noqa: N802  (Faust's name)
        self, maxsize: int | None = None, *, clear_on_resume: bool = False
    ) -> ThrowableQueue[Event]:
        return BoundedQueue(
            maxsize=maxsize, flow_control=self.flow_control, clear_on_resume=clear_on_resume
        )


class FaustWorker(faust.Worker):
    """A worker whose shutdown cannot hang: Faust waits without an end for threads and tasks."""

    async def stop(self) -> None:
        self._exit_later()
        await super().stop()

    async def crash(self, reason: BaseException) -> None:
        self._exit_later()
        await super().crash(reason)

    def _exit_later(self) -> None:
        timer = threading.Timer(STOP_SECONDS, self._exit)
        timer.daemon = True
        timer.start()

    def _exit(self) -> None:
        failed = self.crash_reason is not None or self.app.crash_reason is not None
        log.error("worker did not stop in time, exiting", seconds=STOP_SECONDS)
        os._exit(1 if failed else 0)


class RawSchema(Schema[bytes, bytes]):
    """Creates events with the raw bytes of records.

    Faust's own schema looks up the codecs of key and value for each message, even raw ones.
    """

    def compile(self, app: AppT, **_: Any) -> Any:
        async def decode(message: Any, *, propagate: bool = False) -> Event:
            return Event(app, message.key, message.value, message.headers, message)

        return decode


class PromptConsumerThread(AIOKafkaConsumerThread):
    """The fetching thread; its fetches wait `_FETCH_WAIT_MS` in the broker unless they are large.

    Faust hard-codes 1.5 s, and the end of the wait at the first record.
    """

    def _create_worker_consumer(self, transport: Transport) -> AIOKafkaConsumer:
        record_batches.install()
        consumer = super()._create_worker_consumer(transport)
        consumer._fetch_max_wait_ms = _FETCH_WAIT_MS
        limit_metadata_requests(consumer._client)
        limit_connections(consumer._client)
        consumer._fetch_min_bytes = _FETCH_MIN_BYTES
        return consumer

    async def on_thread_stop(self) -> None:
        """Disconnect, within a few seconds.

        If the broker is away, aiokafka waits for it, or raises the cancellation of its own tasks.
        The latter would end this thread before it reports its end, for which Faust waits for ever.
        """
        try:
            await run_within(_DISCONNECT_SECONDS, super().on_thread_stop())
        except Exception as error:
            log.warning("consumer did not disconnect", why=error)


class UnpausedConsumer(Consumer):
    """Faust's consumer without pauses, tasks per message and livelock detector.

    Faust pauses a partition whose queue is nearly full, and resumes paused partitions only between
    two fetches: a worker with a backlog stands still meanwhile. Here the task that fills a full
    queue waits for room instead.
    """

    async def perform_seek(self) -> None:
        """Seek to the positions of the member, which Faust's commits may be before or behind.

        Faust calls it after each load, and again while no records may be delivered.
        """
        await super().perform_seek()
        assignment = self.assignment()
        for tp, offset in cast(UnpausedTransport, self.transport).positions().items():
            if tp in assignment:
                await self.seek(tp, offset)

    def _new_consumer_thread(self) -> AIOKafkaConsumerThread:
        return PromptConsumerThread(self, loop=self.loop, beacon=self.beacon)

    def on_buffer_full(self, tp: TP) -> None:
        """Do not pause the partition."""

    def on_buffer_drop(self, tp: TP) -> None:
        """Do nothing: no partition was paused."""

    async def verify_all_partitions_active(self) -> None:
        """Do not look for idle partitions.

        Faust only logs them, and fails on a partition whose position aiokafka does not know at the
        moment: that of a truncated log. Lag is in our own metrics.
        """

    async def wait_first(self, *coros: Any, timeout: Any = None) -> WaitResults:
        """Wait until the first of `coros` is done, or the consumer stops.

        Faust creates four tasks for each message, although most deliveries need not wait. Here the
        first coroutine starts at once. If it ends without waiting, the others never start.
        """
        first, *others = coros
        if not (others and iscoroutine(first)):
            return await super().wait_first(*coros, timeout=timeout)
        try:
            awaited = first.send(None)
        except BaseException as end:
            for other in others:
                other.close()
            if isinstance(end, StopIteration):
                return WaitResults([first], [end.value], False)
            raise
        return await super().wait_first(_Started(first, awaited), *others, timeout=timeout)


class _Started:
    """The rest of a started coroutine, which waits for `awaited`."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], awaited: Any) -> None:
        self._coroutine = coroutine
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, Any]:
        awaited = self._awaited
        while True:
            step: Callable[[Any], Any]
            try:
                value = yield awaited
            except GeneratorExit:
                self._coroutine.close()
                raise
            except BaseException as error:
                step, value = self._coroutine.throw, error
            else:
                step = self._coroutine.send
            try:
                awaited = step(value)
            except StopIteration as end:
                return end.value


class UnpausedTransport(Transport):
    """Faust's transport with `UnpausedConsumer`. `positions` returns the offset of the next record
    to be delivered, by partition."""

    Consumer = UnpausedConsumer
    positions: Callable[[], Mapping[TP, int]] = staticmethod(dict)
