"""Publish windows from the buffer to the topic `samples`, in order, each window once.

One idempotent producer with `acks=all` has one record in flight. During an outage of Kafka the
producer retries that record under its sequence number, so that a lost acknowledgement does not
cause a duplicate. Failures are logged at a limited rate and never end the exporter.
"""

import asyncio
from typing import Final

from node_exporter import exporter_metrics
from node_exporter.window_buffer import EncodedWindow, WindowBuffer
from pipeline.clock import Clock
from pipeline.errors import BrokerUnavailableError, KafkaError, TopicDriftError
from pipeline.kafka.client import client_options
from pipeline.kafka.follow import Backoff
from pipeline.kafka.partition import partition_of
from pipeline.kafka.producer import CLOSE_SECONDS, Producer, RecordTooLargeError
from pipeline.logs import get_logger
from pipeline.settings import KafkaSettings
from pipeline.topics.registry import SAMPLES

_BACKOFF_SECONDS: Final = (1.0, 10.0)
_WARN_AFTER_SECONDS: Final = 5.0
_WARN_INTERVAL_SECONDS: Final = 60.0

log = get_logger(__name__)


class Publisher:
    """Sends the windows of a buffer until cancelled; `published` counts those that Kafka has.
    `trouble` says why it has taken none yet; it stays empty in later outages, for which windows
    wait in the buffer (docs/adr/0006-exporter-readiness.md)."""

    def __init__(
        self, buffer: WindowBuffer, settings: KafkaSettings, node: str, clock: Clock
    ) -> None:
        """Raises `SettingsError` if a TLS file is invalid."""
        self.buffer = buffer
        self.published = 0
        self.trouble = "connecting to Kafka"
        self._settings = settings
        self._node = node
        self._clock = clock
        self._topic = SAMPLES.full_name(settings.topic_prefix)
        self._partition = partition_of(node, settings.partitions)
        self._options = client_options(settings)
        self._warned_at: float | None = None
        # After a refused window it does not count that the topic is found again.
        self._has_tried = False

    async def run(self) -> None:
        """Connect and publish; reconnect after every failure."""
        backoff = Backoff(*_BACKOFF_SECONDS)
        while True:
            producer = Producer(
                self._options,
                client_id=f"springtide-exporter-{self._node}"[:200],
                max_record_bytes=SAMPLES.max_bytes,
            )
            try:
                await self._check_topic(producer)
                if not self._has_tried:
                    self.trouble = ""
                while True:
                    await self._send(producer, await self.buffer.first())
                    backoff.reset()
            except KafkaError as error:
                exporter_metrics.ERRORS.labels("kafka").inc()
                self._warn(error)
            finally:
                # The window in flight stays in the buffer.
                await producer.stop(CLOSE_SECONDS)
            await self._clock.sleep(backoff.pause())

    async def _check_topic(self, producer: Producer) -> None:
        partitions = await producer.partition_count(self._topic)
        if not partitions:
            raise TopicDriftError(f"the topic {self._topic} does not exist")
        if partitions != self._settings.partitions:
            raise TopicDriftError(
                f"{self._topic} has {partitions} partitions and kafka.partitions is "
                f"{self._settings.partitions}: workers would not find its windows"
            )

    async def _send(self, producer: Producer, window: EncodedWindow) -> None:
        self._has_tried = True
        sending = asyncio.ensure_future(
            producer.deliver(
                self._topic, value=window.value, key=self._node.encode(), partition=self._partition
            )
        )
        try:
            # The producer retries without limit and without a log event.
            while not (await asyncio.wait({sending}, timeout=_WARN_AFTER_SECONDS))[0]:
                servers = self._settings.bootstrap_servers
                self._warn(
                    BrokerUnavailableError(
                        f"the broker at {servers} does not acknowledge the window"
                    )
                )
            await sending
        except RecordTooLargeError as error:
            exporter_metrics.WINDOWS_DROPPED.labels("too_large").inc()
            log.error(
                "window is larger than the limit of the topic", bytes=len(window.value), why=error
            )
        else:
            self.published += 1
            self.trouble = ""
            exporter_metrics.WINDOWS.inc()
        finally:
            sending.cancel()
        self.buffer.remove_first()
        if self._warned_at is not None:
            log.info("kafka accepts windows again", waiting=len(self.buffer))
            self._warned_at = None

    def _warn(self, error: KafkaError) -> None:
        if not self.published:
            self.trouble = error.message
        now = self._clock.monotonic()
        if self._warned_at is None or now - self._warned_at >= _WARN_INTERVAL_SECONDS:
            self._warned_at = now
            log.warning("windows are waiting for kafka", waiting=len(self.buffer), why=error)
