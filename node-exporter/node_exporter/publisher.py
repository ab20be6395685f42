"""From the buffer to the topic `samples`, in order, each window once; away and back with Kafka.

One idempotent producer with `acks=all` and one record in flight. While Kafka is away the record in
flight is repeated by the producer under its sequence number, so that an answer that was lost makes
no duplicate. Trouble is said once and then at a limited rate; nothing here ends the exporter.
"""

import asyncio
from contextlib import suppress
from typing import Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    UnknownTopicOrPartitionError,
)

from node_exporter import exporter_metrics
from node_exporter.window_buffer import EncodedWindow, WindowBuffer
from pipeline.clock import Clock
from pipeline.errors import BrokerUnavailableError, KafkaError, TopicDriftError
from pipeline.kafka.client import client_options, our_errors
from pipeline.kafka.partition import partition_of
from pipeline.logs import get_logger
from pipeline.settings import KafkaSettings
from pipeline.topics.registry import SAMPLES

_BACKOFF_SECONDS: Final = (1.0, 10.0)
_SAY_AFTER_SECONDS: Final = 5.0
_SAY_AGAIN_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 5.0
_TOO_LARGE: Final = (MessageSizeTooLargeError, RecordListTooLargeError)

log = get_logger(__name__)


class Publisher:
    """Sends what the buffer holds, until it is cancelled."""

    def __init__(
        self, buffer: WindowBuffer, settings: KafkaSettings, node: str, clock: Clock
    ) -> None:
        """Raises `SettingsError` for TLS files that cannot be used."""
        self._buffer = buffer
        self._settings = settings
        self._node = node
        self._clock = clock
        self._topic = SAMPLES.full_name(settings.topic_prefix)
        self._partition = partition_of(node, settings.partitions)
        self._options = client_options(settings)
        self._said: float | None = None

    async def run(self) -> None:
        """Connect, send, and begin anew after every failure."""
        backoff = _BACKOFF_SECONDS[0]
        while True:
            producer = self._producer()
            try:
                with our_errors(self._settings, "publishing windows"):
                    await producer.start()
                    await self._check_topic(producer)
                    while True:
                        await self._send(producer, await self._buffer.first())
                        backoff = _BACKOFF_SECONDS[0]
            except KafkaError as error:
                exporter_metrics.ERRORS.labels("kafka").inc()
                self._say(error)
            finally:
                await _stop(producer)
            await self._clock.sleep(backoff)
            backoff = min(2 * backoff, _BACKOFF_SECONDS[1])

    async def _check_topic(self, producer: AIOKafkaProducer) -> None:
        try:
            found = len(await producer.partitions_for(self._topic))
        except UnknownTopicOrPartitionError:
            raise TopicDriftError(f"the topic {self._topic} does not exist") from None
        if found != self._settings.partitions:
            raise TopicDriftError(
                f"{self._topic} has {found} partitions and kafka.partitions is "
                f"{self._settings.partitions}: the windows would lie where nobody looks for them"
            )

    async def _send(self, producer: AIOKafkaProducer, window: EncodedWindow) -> None:
        sending = asyncio.ensure_future(
            producer.send_and_wait(
                self._topic, window.value, key=self._node.encode(), partition=self._partition
            )
        )
        try:
            # The producer repeats a record by itself for as long as it takes, and says nothing.
            while not (await asyncio.wait({sending}, timeout=_SAY_AFTER_SECONDS))[0]:
                servers = self._settings.bootstrap_servers
                self._say(BrokerUnavailableError(f"the broker at {servers} takes no window"))
            await sending
        except _TOO_LARGE as error:
            exporter_metrics.WINDOWS_DROPPED.labels("too_large").inc()
            log.error("a window is larger than the topic takes", bytes=len(window.value), why=error)
        else:
            exporter_metrics.WINDOWS.inc()
        finally:
            sending.cancel()
        self._buffer.remove_first()
        if self._said is not None:
            log.info("kafka takes windows again", waiting=len(self._buffer))
            self._said = None

    def _producer(self) -> AIOKafkaProducer:
        return AIOKafkaProducer(
            **self._options,
            client_id=f"springtide-exporter-{self._node}"[:200],
            enable_idempotence=True,
            acks="all",
            linger_ms=0,
            max_request_size=SAMPLES.max_bytes,
        )

    def _say(self, error: KafkaError) -> None:
        now = self._clock.monotonic()
        if self._said is None or now - self._said >= _SAY_AGAIN_SECONDS:
            self._said = now
            log.warning("windows wait for kafka", waiting=len(self._buffer), why=error)


async def _stop(producer: AIOKafkaProducer) -> None:
    with suppress(Exception):  # it is on its way out, and may never have been in
        async with asyncio.timeout(_STOP_SECONDS):
            await producer.stop()
