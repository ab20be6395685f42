"""From the buffer to the topic `samples`, in order, each window once; away and back with Kafka.

One idempotent producer with `acks=all` and one record in flight. While Kafka is away the record in
flight is repeated by the producer under its sequence number, so that an answer that was lost makes
no duplicate. Trouble is said once and then at a limited rate; nothing here ends the exporter.
"""

import asyncio
import ssl
from contextlib import suppress
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError as ClientError
from aiokafka.errors import (
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from aiokafka.helpers import create_ssl_context

from node_exporter import metrics
from node_exporter.buffer import EncodedWindow, WindowBuffer
from pipeline.clock import Clock
from pipeline.errors import BrokerUnavailableError, KafkaError, SettingsError, TopicDriftError
from pipeline.logs import get_logger
from pipeline.settings import KafkaSettings
from pipeline.topics.partition import partition_of
from pipeline.topics.registry import MAX_RECORD_BYTES, SAMPLES

_BACKOFF_SECONDS: Final = (1.0, 30.0)
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
                await producer.start()
                await self._check_topic(producer)
                while True:
                    await self._send(producer, await self._buffer.first())
                    backoff = _BACKOFF_SECONDS[0]
            except (ClientError, KafkaError, OSError) as error:
                metrics.ERRORS.labels("kafka").inc()
                self._say(error)
            finally:
                await _stop(producer)
            await self._clock.sleep(backoff)
            backoff = min(2 * backoff, _BACKOFF_SECONDS[1])

    async def _check_topic(self, producer: AIOKafkaProducer) -> None:
        found = len(await producer.partitions_for(self._topic))
        if found != self._settings.partitions:
            raise TopicDriftError(
                f"{self._topic} has {found} partitions, kafka.partitions is "
                f"{self._settings.partitions}: the records of a node would lie elsewhere"
            )
        if self._said is not None:
            log.info("kafka is back", buffered=len(self._buffer))
            self._said = None

    async def _send(self, producer: AIOKafkaProducer, window: EncodedWindow) -> None:
        try:
            await producer.send_and_wait(
                self._topic, window.value, key=self._node.encode(), partition=self._partition
            )
        except _TOO_LARGE as error:
            metrics.WINDOWS_DROPPED.labels("too_large").inc()
            log.error("a window is larger than the topic takes", bytes=len(window.value), why=error)
        else:
            metrics.WINDOWS.inc()
        self._buffer.remove_first()

    def _producer(self) -> AIOKafkaProducer:
        return AIOKafkaProducer(
            client_id=f"springtide-exporter-{self._node}"[:200],
            enable_idempotence=True,
            acks="all",
            linger_ms=0,
            max_request_size=MAX_RECORD_BYTES,
            request_timeout_ms=round(self._settings.request_timeout_seconds * 1000),
            **self._options,
        )

    def _say(self, error: Exception) -> None:
        now = self._clock.monotonic()
        if self._said is None or now - self._said >= _SAY_AGAIN_SECONDS:
            self._said = now
            why = error if isinstance(error, KafkaError) else _explained(error, self._topic)
            log.warning(
                "windows wait in the buffer",
                servers=self._settings.bootstrap_servers,
                buffered=len(self._buffer),
                why=why,
            )


def _explained(error: Exception, topic: str) -> KafkaError:
    if isinstance(error, UnknownTopicOrPartitionError):
        return TopicDriftError(f"the topic {topic} does not exist")
    if isinstance(error, TopicAuthorizationFailedError):
        return KafkaError(f"no right to write to {topic}", hint="add an ACL for this user")
    return BrokerUnavailableError(f"{type(error).__name__}: {error}")


def client_options(settings: KafkaSettings) -> dict[str, Any]:
    """How to reach the broker, as arguments of an aiokafka client."""
    options: dict[str, Any] = {
        "bootstrap_servers": settings.bootstrap_servers.split(","),
        "security_protocol": settings.security_protocol,
    }
    if settings.security_protocol.startswith("SASL"):
        assert settings.sasl_password is not None  # the settings saw to it
        options["sasl_mechanism"] = settings.sasl_mechanism
        options["sasl_plain_username"] = settings.sasl_username
        options["sasl_plain_password"] = settings.sasl_password.reveal()
    if settings.security_protocol.endswith("SSL"):
        options["ssl_context"] = _ssl_context(settings)
    return options


def _ssl_context(settings: KafkaSettings) -> ssl.SSLContext:
    def text(path: object) -> str | None:
        return None if path is None else str(path)

    try:
        context: ssl.SSLContext = create_ssl_context(
            cafile=text(settings.ssl_ca_file),
            certfile=text(settings.ssl_cert_file),
            keyfile=text(settings.ssl_key_file),
        )
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(
            f"the TLS files cannot be used: {error}",
            key="kafka.ssl_ca_file, kafka.ssl_cert_file, kafka.ssl_key_file",
            hint="PEM files that this user may read, the key belonging to the certificate",
        ) from error
    return context


async def _stop(producer: AIOKafkaProducer) -> None:
    with suppress(Exception):  # it is on its way out, and may never have been in
        await asyncio.wait_for(producer.stop(), _STOP_SECONDS)
