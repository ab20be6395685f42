"""Window after window from a provider onto `springtide.samples`.

A window is fetched a moment after its end. One that cannot be had is left out, and said; the next
one comes on its own grid, whatever the last one took. If Kafka fails everything begins again.
"""

import asyncio
from collections.abc import Iterable, Iterator
from typing import Final

from pipeline.clock import Clock
from pipeline.errors import KafkaError, ProviderError, TopicDriftError
from pipeline.kafka.producer import Producer
from pipeline.kafka.topic_admin import require_topics
from pipeline.logs import get_logger
from pipeline.processors.provided.fetched_usage import FetchedUsage, TimeWindow, window_before
from pipeline.processors.provided.usage_samples import Sampler
from pipeline.settings import Settings
from pipeline.sources.compacted_writer import Entry, open_producer, write_batches
from pipeline.sources.providers import provider_metrics
from pipeline.sources.providers.cluster_topics import WINDOWS_SERVED, Known, KnownFollower
from pipeline.sources.providers.protocol import Provider
from pipeline.sources.providers.status_page import Status
from pipeline.tasks import run_all
from pipeline.times import format_time
from pipeline.topics.arrow import MAX_ROWS
from pipeline.topics.registry import MAX_SAMPLE_BYTES, SAMPLES
from pipeline.topics.samples import SampleBatch, encode_samples

log = get_logger(__name__)

SOURCE: Final = "provider"

_PAUSE_SECONDS: Final = 5.0
# A sample takes milliseconds to encode: the lease must be renewed in between.
_NODES_AT_ONCE: Final = 25
_NAMES_SAID: Final = 10
_NAMES_KEPT: Final = 10_000


async def provide(provider: Provider, settings: Settings, clock: Clock, status: Status) -> None:
    """Publish windows until cancelled, from the beginning each time that Kafka fails. Raises
    `TopicDriftError` if a topic is missing."""
    while True:
        try:
            await require_topics(settings.kafka)
            async with open_producer(settings.kafka, "springtide-provider") as producer:
                await Rounds(provider, settings, clock, status, producer).run()
        except TopicDriftError:
            raise
        except KafkaError as error:
            status.message = error.message
            log.error("beginning again", why=str(error), seconds=_PAUSE_SECONDS)
            await clock.sleep(_PAUSE_SECONDS)


class Rounds:
    """What one turn knows; made anew for each."""

    def __init__(
        self,
        provider: Provider,
        settings: Settings,
        clock: Clock,
        status: Status,
        producer: Producer,
    ) -> None:
        self._provider = provider
        self._kafka = settings.kafka
        self._delay_seconds = settings.provider.delay_seconds
        self._length_ms = settings.provider.window_seconds * 1000
        self._clock = clock
        self._status = status
        self._producer = producer
        self._known = Known()
        self._sampler = Sampler()
        self._said: set[str] = set()

    async def run(self) -> None:
        """Publish windows for ever. Raises `KafkaError`."""
        # An exporter's windows may be the longer ones, five minutes at most.
        back_ms = WINDOWS_SERVED * max(self._length_ms, 300_000) + self._length_ms
        since_ms = round(self._clock.now() * 1000) - back_ms
        follower = KnownFollower(self._kafka, self._known, since_ms)
        await run_all([follower.run(), self._rounds(follower)])

    async def _rounds(self, follower: KnownFollower) -> None:
        await follower.caught_up()
        done_ms: int | None = None
        while True:
            ready_ms = round((self._clock.now() - self._delay_seconds) * 1000)
            window = window_before(ready_ms, self._length_ms)
            if done_ms is None or window.end_ms > done_ms:
                self._count_skipped(window, done_ms)
                done_ms = window.end_ms
                await self.publish(window)
                continue
            # A clock that was set back silences us no longer than a window.
            left_ms = min(done_ms + self._length_ms - ready_ms, self._length_ms)
            await self._clock.sleep(left_ms / 1000)
            if window.end_ms < done_ms:
                done_ms = None

    def _count_skipped(self, window: TimeWindow, done_ms: int | None) -> None:
        skipped = 0 if done_ms is None else (window.start_ms - done_ms) // self._length_ms
        if skipped:
            provider_metrics.WINDOWS.labels("skipped").inc(skipped)
            log.warning("fetching takes longer than windows last: some were left out",
                        windows=skipped)  # fmt: skip

    async def publish(self, window: TimeWindow) -> None:
        """Fetch and publish one window. Raises `KafkaError`."""
        try:
            with provider_metrics.FETCH_SECONDS.time():
                fetched = await self._provider.fetch(window)
        except ProviderError as error:
            provider_metrics.WINDOWS.labels("failed").inc()
            self._status.message = error.message
            log.error("no usage of this window", end=format_time(window.end_ms / 1000), why=error)
            return
        sampled = self._sampler.samples(fetched, window, self._known)
        for entries in _in_parts(await _encoded(sampled.batches)):
            await write_batches(self._producer, self._kafka, SOURCE, entries)
        provider_metrics.count(fetched, sampled)
        provider_metrics.WINDOWS.labels("published" if sampled.batches else "empty").inc()
        self._say(fetched)
        self._status.published(window, len(sampled.batches), dict(sampled.left_out))
        if sampled.batches:
            provider_metrics.LAST_WINDOW_END.set(window.end_ms / 1000)
        else:
            log.warning("no node has usage in this window",
                        left_out=dict(fetched.left_out + sampled.left_out))  # fmt: skip

    def _say(self, fetched: FetchedUsage) -> None:
        for column, why in fetched.failed.items():
            log.warning("a column could not be had", column=column, why=why)
        unknown = sorted(fetched.unknown_nodes - self._said)
        if unknown and len(self._said) < _NAMES_KEPT:
            self._said.update(unknown)
            log.warning("no such node on springtide.nodes: is provider.node_label right?",
                        names=unknown[:_NAMES_SAID], count=len(unknown))  # fmt: skip


async def _encoded(batches: list[SampleBatch]) -> list[Entry]:
    entries: list[Entry] = []
    for first in range(0, len(batches), _NODES_AT_ONCE):
        entries += await asyncio.to_thread(_entries, batches[first : first + _NODES_AT_ONCE])
    return entries


def _entries(batches: Iterable[SampleBatch]) -> list[Entry]:
    found = []
    for batch in batches:
        node = batch.header.node
        value = encode_samples(batch)
        if len(batch.rows) > MAX_ROWS or len(value) > MAX_SAMPLE_BYTES:
            provider_metrics.LEFT_OUT.labels("too large").inc()
            log.error("a sample is larger than the topic takes", node=node, rows=len(batch.rows))
        else:
            found.append(Entry(SAMPLES, node, node.encode(), value))
    return found


def _in_parts(entries: list[Entry]) -> Iterator[list[Entry]]:
    for first in range(0, len(entries), 1000):
        yield entries[first : first + 1000]
