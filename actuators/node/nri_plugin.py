"""The node actuator as a plugin of the container runtime: NRI, over the runtime's socket.

The runtime asks before it creates or updates a container. The answer has the limits that a round
would write a moment later, so that the container never runs without them. What cannot be answered
in time is answered with nothing: a round writes the limits then. A runtime that is absent, restarts
or breaks the protocol is asked again, with a pause; nothing it does ends the actuator.
"""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from actuators.node import node_metrics
from actuators.node.container_start import Answer, ContainerStart
from actuators.node.nri_messages import (
    PLUGIN_SERVICE,
    ContainerEvent,
    ContainerResources,
    check_response,
    decode_call,
    decode_event,
    decode_runtime,
    encode_configured,
    encode_created,
    encode_error,
    encode_register,
    encode_response,
    encode_synchronized,
    encode_updated,
)
from actuators.node.round_copy import RoundCopy
from actuators.node.runtime_values import RuntimeValues
from actuators.node.ttrpc_frames import REQUEST, RESPONSE, FrameReader, Message, encode_frames
from pipeline.clock import Clock
from pipeline.errors import ContainerRuntimeError
from pipeline.kafka.follow import Backoff
from pipeline.logs import get_logger
from pipeline.processors.node_qos.cgroup_values import text_of_value

NAME: Final = "springtide"
INDEX: Final = "90"
"""Plugins are called in this order; a later one sees what earlier ones adjusted."""
ANSWER_SECONDS: Final = 1.0
"""A runtime waits for two seconds, unless its configuration says otherwise."""
_SHARE_OF_TIMEOUT: Final = 0.5
STALL_SECONDS: Final = 10.0
"""Time until a message that has begun is complete, and until a runtime has called Configure."""
_BACKOFF_SECONDS: Final = (1.0, 30.0)
_READ_BYTES: Final = 1 << 16
_UNIMPLEMENTED: Final = 12
_PLUGIN_CONNECTION: Final = 1
"""The connection in which the runtime calls; in the other one it is called."""
_RUNTIME_CONNECTION: Final = 2

log = get_logger(__name__)

T = TypeVar("T")


class NriPlugin:
    """Answers the runtime behind `socket`. `copy` gives a copy of the last round, None before the
    first; `replaced` takes what the runtime would have written."""

    def __init__(
        self,
        socket: Path,
        starts: ContainerStart,
        copy: Callable[[], RoundCopy | None],
        replaced: RuntimeValues,
        clock: Clock,
    ) -> None:
        self._socket, self._starts, self._copy = socket, starts, copy
        self._replaced, self._clock = replaced, clock
        self._answer_seconds = ANSWER_SECONDS
        self._deciding: asyncio.Task[Answer | None] | None = None

    async def run(self) -> None:
        """Connect and answer until cancelled."""
        backoff, problem = Backoff(*_BACKOFF_SECONDS), ""
        while True:
            began = self._clock.monotonic()
            try:
                await self._connect()
            except (OSError, ContainerRuntimeError) as error:
                why = str(error)
            finally:
                node_metrics.NRI_CONNECTED.set(0)
            if self._clock.monotonic() - began > _BACKOFF_SECONDS[1]:
                backoff.reset()
                problem = ""
            if why != problem:
                log.warning("the container runtime does not ask, rounds write all limits", why=why,
                            socket=self._socket)  # fmt: skip
                problem = why
            await self._clock.sleep(backoff.pause())

    async def _connect(self) -> NoReturn:
        """Register, and answer until the connection ends. Raises OSError and
        `ContainerRuntimeError`."""
        connecting = asyncio.open_unix_connection(self._socket)
        reader, writer = await _within(STALL_SECONDS, connecting)
        try:
            register = encode_register(NAME, INDEX)
            await _send(writer, Message(_RUNTIME_CONNECTION, 1, REQUEST, register))
            await self._serve(reader, writer)
        finally:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> NoReturn:
        frames = FrameReader((_PLUGIN_CONNECTION, _RUNTIME_CONNECTION))
        is_configured = False
        while True:
            waits = is_configured and not frames.is_within_message
            data = await _within(None if waits else STALL_SECONDS, reader.read(_READ_BYTES))
            if not data:
                raise ContainerRuntimeError("the runtime closed the connection")
            for message in frames.feed(data):
                if message.connection == _RUNTIME_CONNECTION:
                    _check_registered(message)
                    continue
                answer = await self._answer(message)
                await _send(writer, message._replace(type=RESPONSE, payload=answer))
                is_configured = True

    async def _answer(self, message: Message) -> bytes:
        """The response to a message of the runtime."""
        if message.type != REQUEST:
            raise ContainerRuntimeError(f"a message of type {message.type}")
        call = decode_call(message.payload)
        if call.service != PLUGIN_SERVICE:
            return encode_error(_UNIMPLEMENTED, f"no service {call.service!r:.100}")
        match call.method:
            case "Configure":
                return encode_response(self._configure(call.payload))
            case "Synchronize":
                return encode_response(encode_synchronized(call.payload))
            case "CreateContainer" | "UpdateContainer":
                is_update = call.method == "UpdateContainer"
                event = decode_event(call.payload, is_update=is_update)
                resources = await self._resources(event, is_update=is_update)
                if resources == ContainerResources():
                    return encode_response(b"")
                if is_update:
                    return encode_response(encode_updated(event.id, resources))
                return encode_response(encode_created(resources))
            case "Shutdown":
                return encode_response(b"")
        return encode_error(_UNIMPLEMENTED, f"no method {call.method!r:.100}")

    def _configure(self, payload: bytes) -> bytes:
        runtime = decode_runtime(payload)
        self._answer_seconds = ANSWER_SECONDS
        if runtime.timeout_seconds > 0:
            share = runtime.timeout_seconds * _SHARE_OF_TIMEOUT
            self._answer_seconds = min(ANSWER_SECONDS, share)
        node_metrics.NRI_CONNECTED.set(1)
        log.info("the container runtime asks before containers start", runtime=runtime.name,
                 version=runtime.version)  # fmt: skip
        return encode_configured()

    async def _resources(self, event: ContainerEvent, *, is_update: bool) -> ContainerResources:
        """What to answer about a container: nothing if it cannot be decided in time."""
        try:
            answer = await self._decide(event, is_update=is_update)
        except TimeoutError:
            node_metrics.NRI_ANSWERS.labels("late").inc()
            log.warning("no limits in time, a round writes them", per="late", container=event.id)
            return ContainerResources()
        except ContainerRuntimeError:
            raise
        except Exception as error:
            node_metrics.NRI_ANSWERS.labels("failed").inc()
            log.exception("no limits before the start, a round writes them", per="nri", why=error)
            return ContainerResources()
        if answer is None:
            node_metrics.NRI_ANSWERS.labels("unknown").inc()
            return ContainerResources()
        self._log_observed(event, answer)
        resources = answer.adjustment.resources
        if resources == ContainerResources() or not self._replaced.add(answer.replaced):
            node_metrics.NRI_ANSWERS.labels("empty").inc()
            return ContainerResources()
        node_metrics.NRI_ANSWERS.labels("adjusted").inc()
        return resources

    async def _decide(self, event: ContainerEvent, *, is_update: bool) -> Answer | None:
        """Decide in a thread, one at a time. Raises `TimeoutError`."""
        if self._deciding is not None and not self._deciding.done():
            raise TimeoutError
        if (copy := self._copy()) is None:
            return None
        decision = asyncio.to_thread(self._starts.answer, event, copy, is_update=is_update)
        self._deciding = deciding = asyncio.create_task(decision)
        done, _ = await asyncio.wait({deciding}, timeout=self._answer_seconds)
        if not done:
            deciding.add_done_callback(lambda late: late.cancelled() or late.exception())
            raise TimeoutError
        return deciding.result()

    def _log_observed(self, event: ContainerEvent, answer: Answer) -> None:
        if answer.observed:
            limits = {str(p.knob): text_of_value(d.value) for p, d in answer.observed.items()}
            log.info("in mode act a container would start with", container=event.name,
                     pod=f"{event.pod_namespace}/{event.pod_name}", limits=limits)  # fmt: skip


def _check_registered(message: Message) -> None:
    if message.type != RESPONSE:
        raise ContainerRuntimeError(f"a message of type {message.type} in answer to a call")
    check_response(message.payload)


async def _send(writer: asyncio.StreamWriter, message: Message) -> None:
    writer.write(encode_frames(message))
    await _within(STALL_SECONDS, writer.drain())


async def _within(seconds: float | None, waiting: Coroutine[Any, Any, T]) -> T:
    try:
        async with asyncio.timeout(seconds):
            return await waiting
    except TimeoutError as error:
        raise ContainerRuntimeError(f"the runtime stalls for {seconds:g} s") from error
