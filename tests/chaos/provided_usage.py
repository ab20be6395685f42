"""The sample source of a chaos run: usage of nodes that have no exporter."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pipeline.clock import Clock
from pipeline.kube.api_client import Api
from pipeline.processors.imported_usage.fetched_usage import FetchedUsage, TimeWindow
from pipeline.settings import Settings
from pipeline.sources.provider.sample_source import SampleSource

PROVIDED = tuple(f"provided-{number}" for number in range(5))


class ChaosSession:
    """Usage that rises and falls."""

    async def fetch(self, window: TimeWindow) -> FetchedUsage:
        level = 1.0 + window.end_ms // 1000 % 20 / 10
        usage = {"cpu_cores_avg": level, "memory_bytes_avg": level * 2.0**30}
        return FetchedUsage(nodes={name: dict(usage) for name in PROVIDED})


@asynccontextmanager
async def _open(settings: Settings, clock: Clock, api: Api | None) -> AsyncIterator[ChaosSession]:
    yield ChaosSession()


SOURCE = SampleSource(name="chaos", text="made up", open=_open, hint="none")
