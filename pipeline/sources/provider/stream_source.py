"""The sample source `stream`: usage from Springtide's own samples on `springtide.samples`.

Exporters publish these samples without a provider, so a provider refuses to run with this source.
It exists for `springtide provider --once`, which prints the last window of every node as the other
sources would see it, to compare them. Each window is read again from the log; no state is kept
between windows, so a restart changes nothing.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from pipeline.clock import Clock
from pipeline.errors import RecordError, SampleSourceError
from pipeline.kafka.client import client_options
from pipeline.kafka.follow import Follower, SilentTopicError, open_follower, topic_partitions
from pipeline.kube.api_client import Api
from pipeline.processors.imported_usage.fetched_usage import FetchedUsage, PodName, TimeWindow
from pipeline.settings import KafkaSettings, Settings
from pipeline.sources.provider.sample_source import SampleSource
from pipeline.topics.registry import SAMPLES
from pipeline.topics.sample_rows import read_samples
from pipeline.topics.samples import Row


class StreamSession:
    """Reads the topic `samples` once per window; created by `open_stream`."""

    def __init__(self, kafka: KafkaSettings, follower: Follower) -> None:
        self._kafka = kafka
        self._follower = follower

    async def fetch(self, window: TimeWindow) -> FetchedUsage:
        """Return the newest sample of each node that ended in `window`.

        Raises `SampleSourceError` if the topic cannot be read to its end, `KafkaError` if no broker
        answers.
        """
        usage = FetchedUsage()
        ends: dict[str, int] = {}
        async for value in self._samples_since(window.start_ms):
            try:
                sample = await asyncio.to_thread(read_samples, value)
            except RecordError:
                usage.left_out["unreadable"] += 1
                continue
            header = sample.header
            newest = ends.get(header.node, 0)
            if window.has(header.window_end_ms) and header.window_end_ms > newest:
                ends[header.node] = header.window_end_ms
                _put_sample(usage, header.node, sample.rows)
        return usage

    async def _samples_since(self, since_ms: int) -> AsyncIterator[bytes]:
        """Yield the samples appended at this time or later, up to the present end."""
        topic = SAMPLES.full_name(self._kafka.topic_prefix)
        await self._follower.begin({topic: since_ms})
        try:
            async for records in self._follower.read_to_end():
                for record in records:
                    yield record.value or b""
        except SilentTopicError as error:
            raise SampleSourceError(error.message, may_pass=True) from error


def _put_sample(usage: FetchedUsage, node: str, rows: Sequence[Row]) -> None:
    for pod in [pod for pod in usage.pods if pod.node == node]:
        del usage.pods[pod]
    for row in rows:
        columns = dict(row)
        kind, uid = columns.pop("kind"), columns.pop("id")
        if kind == "node":
            usage.nodes[node] = columns
        elif kind == "pod":
            usage.pods[PodName("", "", uid, node)] = columns


@asynccontextmanager
async def open_stream(
    settings: Settings, clock: Clock, api: Api | None
) -> AsyncIterator[StreamSession]:
    """Open a consumer of the samples. Raises `BrokerUnavailableError` if no broker answers."""
    partitions = topic_partitions(settings.kafka, SAMPLES)
    async with open_follower(client_options(settings.kafka), partitions) as follower:
        yield StreamSession(settings.kafka, follower)


SOURCE: Final = SampleSource(
    name="stream",
    text="Springtide's exporters, which publish without a provider",
    open=open_stream,
    hint="check the exporters with `springtide doctor`",
    publishes=True,
)
