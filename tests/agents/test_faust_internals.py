"""The internals of Faust, mode and aiokafka that `faust_host` relies on.

A failure after an upgrade names the internal that changed and what depends on it. Read its new
code, adapt `pipeline/agents/faust_host.py`, run `tests/system`, and raise `TESTED_VERSIONS`.
"""

import asyncio
import gc
import inspect
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import faust
import pytest
from faust.agents.actor import Actor
from faust.tables.recovery import Recovery
from faust.transport.drivers.aiokafka import (
    AIOKafkaConsumerThread,
    Consumer,
    ConsumerRebalanceListener,
)
from faust.types import TP, Message
from faust.types.tuples import ConsumerMessage
from mode import CrashingSupervisor, Service
from mode.utils.queues import FlowControlEvent, ThrowableQueue

from pipeline.agents.faust_host import TESTED_VERSIONS, RawSchema, create_app
from pipeline.settings import Settings

pytestmark = pytest.mark.filterwarnings("ignore:Setting .* is deprecated")

PARTITION = TP("springtide.samples", 3)


@pytest.mark.parametrize("name", TESTED_VERSIONS)
def test_the_installed_version_is_the_tested_one(name: str) -> None:
    tested, installed = TESTED_VERSIONS[name], version(name)
    assert installed == tested, (
        f"faust_host was tested with {name} {tested}, not {installed}: run tests/system, then "
        "raise TESTED_VERSIONS"
    )


def test_faust_is_pinned_to_the_tested_version(project: Path) -> None:
    pin = f"faust-streaming=={TESTED_VERSIONS['faust-streaming']}"
    assert f'"{pin}"' in (project / "pyproject.toml").read_text()
    assert f"\n{pin} " in (project / "requirements-dev.lock").read_text()


# -- names and signatures


class Callee(NamedTuple):
    """A function that we call or override: `module:name`, its parameters, and what needs it."""

    path: str
    parameters: str
    needed_for: str


CALLEES = (
    # Overridden
    Callee("faust:Schema.compile",
           "self, app, *, on_key_decode_error, on_value_decode_error, default_propagate",
           "RawSchema replaces the decoder of messages"),
    Callee("faust.transport.drivers.aiokafka:AIOKafkaConsumerThread._create_worker_consumer",
           "self, transport", "PromptConsumerThread shortens the fetch wait"),
    Callee("faust.transport.drivers.aiokafka:AIOKafkaConsumerThread.on_thread_stop", "self",
           "PromptConsumerThread limits the time to disconnect"),
    Callee("faust.transport.drivers.aiokafka:Consumer._new_consumer_thread", "self",
           "UnpausedConsumer fetches with PromptConsumerThread"),
    Callee("faust.transport.drivers.aiokafka:Consumer.on_buffer_full", "self, tp",
           "UnpausedConsumer pauses no partition"),
    Callee("faust.transport.drivers.aiokafka:Consumer.on_buffer_drop", "self, tp",
           "UnpausedConsumer resumes no partition"),
    Callee("faust.transport.drivers.aiokafka:Consumer.wait_first", "self, *coros, timeout",
           "UnpausedConsumer creates no tasks per message"),
    Callee("faust.transport.drivers.aiokafka:Consumer.verify_all_partitions_active", "self",
           "UnpausedConsumer does not look for idle partitions"),
    Callee("faust.transport.drivers.aiokafka:Consumer.perform_seek", "self",
           "UnpausedConsumer seeks to the positions of the joins"),
    Callee("faust:Worker.stop", "self", "FaustWorker limits the time of a shutdown"),
    Callee("faust:Worker.crash", "self, reason", "FaustWorker limits the time after a crash"),
    # Called
    Callee("faust.transport.drivers.aiokafka:Consumer.seek", "self, partition, offset",
           "UnpausedConsumer seeks to the positions of the joins"),
    Callee("faust:Event", "app, key, value, headers, message", "RawSchema creates events"),
    Callee("faust:Event.ack", "self", "StreamDelivery acknowledges records"),
    Callee("faust.transport.drivers.aiokafka:AIOKafkaConsumerThread", "consumer, **kwargs",
           "UnpausedConsumer creates PromptConsumerThread"),
    Callee("mode.services:WaitResults", "done, results, stopped",
           "UnpausedConsumer returns it from wait_first"),
    Callee("mode.utils.queues:ThrowableQueue.get", "self", "StreamSource takes events"),
    Callee("mode.utils.queues:ThrowableQueue.get_nowait", "self", "StreamSource takes events"),
    Callee("faust:App.crash", "self, reason", "FaustGroup.crash stops the worker"),
    Callee("faust:App.add_future", "self, coro", "FaustGroup.crash runs App.crash"),
    Callee("faust:App.topic", "self, *topics, pattern, schema, key_type, value_type, "
           "key_serializer, value_serializer, partitions, retention, compacting, deleting, "
           "replicas, acks, internal, config, maxsize, allow_empty, has_prefix, loop",
           "FaustGroup reads samples with RawSchema"),
    Callee("faust:App.agent", "self, channel, *, name, concurrency, supervisor_strategy, sink, "
           "isolated_partitions, use_reply_headers, **kwargs", "FaustGroup runs the agent"),
    Callee("faust:SASLCredentials",
           "*, username, password, ssl_context, mechanism", "faust_credentials"),
    Callee("faust:SSLCredentials", "context, *, purpose, cafile, capath, cadata",
           "faust_credentials"),
    Callee("faust:Worker.execute_from_commandline", "self", "run_worker runs the app"),
)  # fmt: skip


@pytest.mark.parametrize("callee", CALLEES, ids=lambda callee: callee.path)
def test_a_function_has_the_parameters_that_we_use(callee: Callee) -> None:
    module, _, name = callee.path.partition(":")
    target: Any = import_module(module)
    for part in name.split("."):
        assert hasattr(target, part), f"{callee.path} is missing. Needed for: {callee.needed_for}"
        target = getattr(target, part)
    parameters = _parameters(target)
    assert parameters == callee.parameters, (
        f"{callee.path} takes ({parameters}), not ({callee.parameters}). "
        f"Needed for: {callee.needed_for}"
    )


def _parameters(function: Any) -> str:
    signature = inspect.signature(function)
    bare = [p.replace(annotation=p.empty, default=p.empty) for p in signature.parameters.values()]
    return str(inspect.Signature(bare)).strip("()")


# -- defaults

DEFAULTS = {
    "agent_supervisor": "OneForOneSupervisor", "broker_commit_interval": 2.8,
    "broker_heartbeat_interval": 3.0, "broker_max_poll_interval": 1000.0,
    "broker_max_poll_records": None,
    "broker_request_timeout": 90.0, "broker_session_timeout": 60.0,
    "consumer_auto_offset_reset": "earliest", "consumer_group_instance_id": None,
    "consumer_max_fetch_size": 1024**2, "key_serializer": "raw", "stream_buffer_maxsize": 4096,
    "stream_recovery_delay": 0.0, "stream_wait_empty": True, "table_standby_replicas": 1,
    "topic_allow_declare": True, "topic_disable_leader": False, "topic_partitions": 8,
    "value_serializer": "json", "web_enabled": True,
}  # fmt: skip


@pytest.mark.parametrize("setting", DEFAULTS)
def test_a_default_is_as_the_decision_record_says(setting: str) -> None:
    default = getattr(faust.App("any").conf, setting)
    default = getattr(default, "__name__", default)
    assert default == DEFAULTS[setting], (
        f"Faust's default of {setting} changed: check the reason of our value in "
        "docs/adr/0003-faust.md"
    )


# -- behaviour: fetching


@pytest.fixture
def app(tmp_path: Path) -> Any:
    return create_app(Settings(), tmp_path)


@pytest.fixture
def consumer(app: Any) -> Any:
    """The consumer of Faust's app, not started."""
    app._consumer = app.transport.create_consumer(
        _ignore, on_partitions_revoked=_ignore, on_partitions_assigned=_ignore
    )
    return app._consumer


@pytest.fixture
async def client(app: Any, consumer: Any) -> Any:
    """The aiokafka consumer of a worker, not started."""
    thread = AIOKafkaConsumerThread(consumer, loop=consumer.loop, beacon=consumer.beacon)
    created = thread._create_worker_consumer(app.transport)
    yield SimpleNamespace(thread=thread, aiokafka=created)
    await created.stop()


async def _ignore(*_: Any) -> None:
    """A callback."""


async def test_faust_hard_codes_the_fetch_wait(client: Any) -> None:
    fetching = client.aiokafka._fetch_max_wait_ms, client.aiokafka._fetch_min_bytes
    assert fetching == (1500, 1), (
        "PromptConsumerThread overrides a wait of 1.5 s for a byte; if they became settings, set "
        "them"
    )


async def test_aiokafka_reads_the_fetch_wait_when_it_starts(client: Any) -> None:
    source = inspect.getsource(type(client.aiokafka).start)
    for name in ("fetch_max_wait_ms", "fetch_min_bytes"):
        assert f"{name}=self._{name}" in source, (
            f"PromptConsumerThread sets _{name} between creation and start"
        )


async def test_standby_replicas_select_the_assignor_of_faust(app: Any, client: Any) -> None:
    assert client.thread._assignor is app.assignor, (
        "table_standby_replicas=1 selects Faust's assignor, which moves few partitions"
    )


async def test_a_nearly_full_queue_calls_the_consumer() -> None:
    """So `UnpausedConsumer` can leave out the pause."""
    queue: Any = ThrowableQueue(5, flow_control=FlowControlEvent(initially_suspended=False))
    calls: list[str] = []
    for event in range(5):
        queue.put_nowait_enhanced(
            event,
            on_pressure_high=lambda: calls.append("full"),
            on_pressure_drop=lambda: calls.append("drop"),
        )
    assert calls == ["full"]
    while not queue.empty():
        queue.get_nowait()
    assert calls == ["full", "drop"]


@pytest.mark.usefixtures("consumer")
async def test_the_delivery_to_a_full_queue_waits_for_room(app: Any) -> None:
    """Without pauses this limits the buffered messages."""
    app.flow_control.resume()
    channel = app.topic(PARTITION.topic, schema=RawSchema()).clone(is_iterator=True)
    channel.queue._maxsize = 1
    deliver = app.topics._compiler.build(app.topics, PARTITION, {channel})
    await deliver(_message(0))
    waiting = asyncio.create_task(deliver(_message(1)))
    await asyncio.sleep(0.01)
    assert not waiting.done(), "a delivery to a full queue must wait: nothing else limits it"
    assert [(await channel.queue.get()).message.offset for _ in range(2)] == [0, 1]
    await asyncio.wait_for(waiting, 60)


async def test_each_delivery_is_awaited_by_wait_first(consumer: Any) -> None:
    calls: list[int] = []

    async def one_message(timeout: float) -> Any:
        yield PARTITION, _message(7)
        consumer._stopped.set()

    async def wait_first(*coros: Any, timeout: Any = None) -> None:
        calls.append(len(coros))
        for coro in coros:
            coro.close()

    consumer.getmany, consumer.wait_first = one_message, wait_first
    await consumer._drain_messages(Service())
    assert calls == [2], (
        "UnpausedConsumer.wait_first gets the delivery, then the wait for the end of the flow"
    )


def _message(offset: int, kind: type[Message] = Message) -> Message:
    message = kind(*PARTITION, offset, 1.5, 1, [], b"key", b"value", None, tp=PARTITION)
    message.incref()
    return message


# -- behaviour: streams


async def test_a_stopped_agent_throws_stop_async_iteration_into_the_queue() -> None:
    queue: Any = ThrowableQueue(flow_control=FlowControlEvent(initially_suspended=False))
    channel = SimpleNamespace(_throw=queue._throw)
    actor: Any = SimpleNamespace(stream=SimpleNamespace(channel=channel))
    Actor.cancel(actor)
    with pytest.raises(StopAsyncIteration):
        await queue.get()


async def test_a_message_timestamp_is_in_seconds() -> None:
    source = inspect.getsource(Consumer._to_message)
    assert "timestamp / 1000.0" in source, "StreamDelivery multiplies timestamps by 1000"


async def test_acknowledged_records_are_committed_up_to_the_first_gap(
    app: Any, consumer: Any
) -> None:
    app.topics._acking_topics.add(PARTITION.topic)
    consumer._committed_offset[PARTITION] = None
    for offset in (0, 1, 3):
        message = _message(offset, ConsumerMessage)
        consumer.track_message(message)
        assert faust.Event(app, b"", b"", None, message).ack()
    assert consumer._new_offset(PARTITION) == 2


# -- behaviour: the group


async def test_a_signal_awaits_a_handler_that_nothing_else_references(app: Any) -> None:
    calls: list[Any] = []

    def connect() -> None:
        async def handler(*_: Any, **__: Any) -> None:
            await asyncio.sleep(0)
            calls.append("called")

        app.on_rebalance_complete.connect(handler)

    connect()
    gc.collect()
    await app.on_rebalance_complete.send()
    assert calls == ["called"], "FaustGroup.connect connects local functions"


class Order(NamedTuple):
    """`first` happens before `then` in `function`, and what needs it."""

    function: Any
    first: str
    then: str
    needed_for: str


ORDERS = (
    Order(Recovery._resume_streams, "await app.on_rebalance_complete.send()", "resume_partitions",
          "partitions are loaded before records are delivered"),
    Order(Recovery.on_recovery_completed, "await self.app.on_rebalance_complete.send()",
          "resume_partitions", "partitions are loaded before records are delivered"),
    Order(faust.App._on_partitions_revoked, "self.flow_control.clear",
          "await T(self.on_partitions_revoked.send)(revoked)",
          "no record of a revoked partition is delivered after its release"),
    Order(faust.App.on_stop, "await self._stop_consumer()", "await self.on_before_shutdown.send()",
          "no record is delivered after the shutdown of the member"),
    Order(ConsumerRebalanceListener.on_partitions_assigned, "consumer_generation_id = generation",
          "thread.on_partitions_assigned", "FaustGroup.generation is that of the assignment"),
)  # fmt: skip


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.function.__qualname__)
def test_faust_calls_in_the_order_that_we_need(order: Order) -> None:
    source = inspect.getsource(order.function)
    message = (
        f"{order.function.__qualname__} must contain {order.first!r} before {order.then!r}. "
        f"Needed because {order.needed_for}"
    )
    assert order.first in source, message
    assert order.then in source.partition(order.first)[2], message


async def test_an_exception_of_the_agent_is_not_handled_by_a_supervisor() -> None:
    service = Service()
    CrashingSupervisor().add(service)
    assert service.supervisor is None, (
        "with a supervisor, an agent that raised would restart and skip its unacknowledged batch"
    )


async def test_a_worker_has_the_state_that_its_exit_code_needs(app: Any) -> None:
    worker = faust.Worker(app, loop=asyncio.get_running_loop(), override_logging=False)
    assert (worker.app, worker.crash_reason, app.crash_reason) == (app, None, None)
    assert hasattr(worker, "spinner")


async def test_streams_that_stop_do_not_wait_for_unacknowledged_messages(app: Any) -> None:
    async def wait_empty() -> None:
        raise AssertionError("stream_wait_empty=False must not wait")

    await app._consumer_wait_empty(SimpleNamespace(wait_empty=wait_empty), None)
