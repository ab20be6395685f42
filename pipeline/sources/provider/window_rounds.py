"""Publish the windows of a sample source to `springtide.samples`.

A window is fetched `provider.delay_seconds` after its end. A window that cannot be fetched is
logged and skipped: usage of now is worth more than a gap filled late. Windows stay on a fixed grid,
so that a provider that takes over continues without overlap. After a Kafka error the state is
recreated.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

from pipeline.clock import Clock
from pipeline.errors import KafkaError, SampleSourceError, TopicDriftError
from pipeline.kafka.producer import Producer
from pipeline.kafka.topic_admin import require_topics
from pipeline.logs import get_logger
from pipeline.processors.imported_usage.fetched_usage import FetchedUsage, TimeWindow, window_before
from pipeline.processors.imported_usage.usage_samples import SampleBuilder
from pipeline.settings import Settings
from pipeline.sources.compacted_writer import Entry, open_producer, write
from pipeline.sources.provider import provider_metrics
from pipeline.sources.provider.provider_cluster_state import (
    WINDOWS_SERVED,
    ClusterStateFollower,
    ProviderClusterState,
)
from pipeline.sources.provider.sample_source import SourceSession
from pipeline.sources.provider.status_page import Status
from pipeline.tasks import run_all
from pipeline.times import format_time
from pipeline.topics.access import ROLES
from pipeline.topics.arrow import MAX_ROWS
from pipeline.topics.registry import MAX_SAMPLE_BYTES, SAMPLES
from pipeline.topics.samples import SampleBatch, encode_samples

log = get_logger(__name__)

WRITER: Final = "provider"

_PAUSE_SECONDS: Final = 5.0
# Encoding a sample takes milliseconds, and the lease must be renewed in between.
_NODES_PER_BATCH: Final = 25
_MAX_NAMES_LOGGED: Final = 10
_MAX_NAMES_REMEMBERED: Final = 10_000


async def provide(session: SourceSession, settings: Settings, clock: Clock, status: Status) -> None:
    """Publish windows until cancelled; restart after each Kafka error.

    Raises `TopicDriftError` if a topic is missing.
    """
    while True:
        try:
            await require_topics(settings.kafka, ROLES["provider"].topics)
            async with open_producer(settings.kafka, "springtide-provider") as producer:
                await WindowPublisher(session, settings, clock, status, producer).run()
        except TopicDriftError:
            raise
        except KafkaError as error:
            status.message = error.message
            log.error("restarting", why=str(error), seconds=_PAUSE_SECONDS)
            await clock.sleep(_PAUSE_SECONDS)


class WindowPublisher:
    """Fetches and publishes windows; recreated after each failure."""

    def __init__(
        self,
        session: SourceSession,
        settings: Settings,
        clock: Clock,
        status: Status,
        producer: Producer,
    ) -> None:
        self._session = session
        self._kafka = settings.kafka
        self._delay_seconds = settings.provider.delay_seconds
        self._length_ms = settings.provider.window_seconds * 1000
        self._clock = clock
        self._status = status
        self._producer = producer
        self._cluster_state = ProviderClusterState()
        own = settings.provider
        self._builder = SampleBuilder(own.name or own.kind, corroborate=own.corroborate)
        self._logged_names: set[str] = set()

    async def run(self) -> None:
        """Publish windows until cancelled. Raises `KafkaError`."""
        # The windows of exporters may be longer: up to five minutes.
        lookback_ms = WINDOWS_SERVED * max(self._length_ms, 300_000) + self._length_ms
        since_ms = round(self._clock.now() * 1000) - lookback_ms
        follower = ClusterStateFollower(self._kafka, self._cluster_state, since_ms)
        await run_all([follower.run(), self.publish_windows(follower)])

    async def publish_windows(self, follower: ClusterStateFollower) -> None:
        """Publish each window once, after `follower` has caught up. Raises `KafkaError`."""
        await follower.caught_up()
        last_end_ms: int | None = None
        while True:
            ready_ms = round((self._clock.now() - self._delay_seconds) * 1000)
            window = window_before(ready_ms, self._length_ms)
            if last_end_ms is None or window.end_ms > last_end_ms:
                self._count_skipped(window, last_end_ms)
                last_end_ms = window.end_ms
                await self.publish(window)
                continue
            # If the clock is set back, publishing pauses for at most one window.
            remaining_ms = min(last_end_ms + self._length_ms - ready_ms, self._length_ms)
            await self._clock.sleep(remaining_ms / 1000)
            if window.end_ms < last_end_ms:
                last_end_ms = None

    def _count_skipped(self, window: TimeWindow, last_end_ms: int | None) -> None:
        skipped = 0 if last_end_ms is None else (window.start_ms - last_end_ms) // self._length_ms
        if skipped:
            provider_metrics.WINDOWS.labels("skipped").inc(skipped)
            log.warning("windows skipped: fetching takes longer than a window",
                        windows=skipped)  # fmt: skip

    async def publish(self, window: TimeWindow) -> None:
        """Fetch and publish one window. Raises `KafkaError`."""
        try:
            with provider_metrics.FETCH_SECONDS.time():
                fetched = await self._session.fetch(window)
        except SampleSourceError as error:
            provider_metrics.WINDOWS.labels("failed").inc()
            self._status.message = error.message
            log.error("window not fetched", end=format_time(window.end_ms / 1000), why=error)
            return
        sampled = self._builder.samples(fetched, window, self._cluster_state)
        entries = await encode_in_threads(sampled.batches)
        await write(self._producer, self._kafka, WRITER, entries)
        provider_metrics.count(fetched, sampled)
        provider_metrics.WINDOWS.labels("published" if sampled.batches else "empty").inc()
        self._log_problems(fetched)
        self._status.published(window, len(sampled.batches), dict(sampled.left_out))
        if sampled.batches:
            provider_metrics.LAST_WINDOW_END.set(window.end_ms / 1000)
        else:
            log.warning("window without usage of any node",
                        left_out=dict(fetched.left_out + sampled.left_out))  # fmt: skip

    def _log_problems(self, fetched: FetchedUsage) -> None:
        for column, why in fetched.failed.items():
            log.warning("column not fetched", column=column, why=why)
        unknown = sorted(fetched.unknown_nodes - self._logged_names)
        if unknown and len(self._logged_names) < _MAX_NAMES_REMEMBERED:
            self._logged_names.update(unknown)
            log.warning("usage of unknown nodes: the source must name nodes as Kubernetes does",
                        names=unknown[:_MAX_NAMES_LOGGED], count=len(unknown))  # fmt: skip


async def encode_in_threads(batches: list[SampleBatch]) -> list[Entry]:
    """Encode samples without blocking the event loop."""
    entries: list[Entry] = []
    for first in range(0, len(batches), _NODES_PER_BATCH):
        entries += await asyncio.to_thread(
            encode_entries, batches[first : first + _NODES_PER_BATCH]
        )
    return entries


def encode_entries(batches: Iterable[SampleBatch]) -> list[Entry]:
    """Encode samples; count and drop those that are too large for the topic."""
    entries = []
    for batch in batches:
        node = batch.header.node
        value = encode_samples(batch)
        if len(batch.rows) > MAX_ROWS or len(value) > MAX_SAMPLE_BYTES:
            provider_metrics.LEFT_OUT.labels("too large").inc()
            log.error("sample too large for the topic", node=node, rows=len(batch.rows))
        else:
            entries.append(Entry(SAMPLES, node, node.encode(), value))
    return entries
