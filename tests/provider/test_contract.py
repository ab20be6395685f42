"""Every sample source fulfils the contract: real Prometheus, samples, a fake metrics.k8s.io."""

import json
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pipeline.clock import SystemClock
from pipeline.processors.imported_usage.fetched_usage import FetchedUsage, SampleColumns, TimeWindow
from pipeline.processors.imported_usage.usage_samples import PodPlace, SampleBuilder
from pipeline.settings import Settings
from pipeline.sources.compacted_writer import open_producer, write
from pipeline.sources.provider.metrics_server_source import MetricsServerSession
from pipeline.sources.provider.prometheus_source import open_prometheus
from pipeline.sources.provider.provider_cluster_state import ProviderClusterState
from pipeline.sources.provider.registry import SOURCES
from pipeline.sources.provider.sample_source import SourceSession
from pipeline.sources.provider.stream_source import open_stream
from pipeline.sources.provider.window_rounds import WRITER, encode_entries
from pipeline.topics.sample_rows import read_samples
from pipeline.topics.samples import COLUMNS, LIST_COLUMNS, encode_samples
from tests.kube.fake_server import Answer, fake
from tests.provider.conftest import TOLERANCE, last_window

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(1800)]


class Cluster(ProviderClusterState):
    """A cluster state that knows every pod."""

    def place(self, namespace: str, name: str) -> PodPlace | None:
        return PodPlace("n1", f"{namespace}-{name}")


@asynccontextmanager
async def metrics_server(
    _settings: Settings, window: TimeWindow, folder: Path
) -> AsyncIterator[SourceSession]:
    end = time.gmtime(window.end_ms / 1000)
    reading = {"timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", end), "window": "5s"}
    amounts = {"cpu": "1500000001n", "memory": "2097152Ki"}
    node = {"metadata": {"name": "n1"}, "usage": amounts, **reading}
    pod = {
        "metadata": {"name": "p", "namespace": "s"},
        "containers": [{"usage": amounts}],
        **reading,
    }
    bodies = (
        json.dumps({"kind": f"{item_kind}MetricsList", "items": [item]}).encode()
        for item_kind, item in (("Node", node), ("Pod", pod))
    )
    async with fake(folder, *(Answer([body]) for body in bodies)) as server:
        yield MetricsServerSession(server.api)


@asynccontextmanager
async def prometheus(
    settings: Settings, _window: TimeWindow, _: Path
) -> AsyncIterator[SourceSession]:
    async with open_prometheus(settings, SystemClock(), None) as session:
        yield session


@asynccontextmanager
async def stream(settings: Settings, window: TimeWindow, _: Path) -> AsyncIterator[SourceSession]:
    async with open_prometheus(settings, SystemClock(), None) as session:
        sampled = SampleBuilder().samples(await session.fetch(window), window, Cluster())
    async with open_producer(settings.kafka, "test") as producer:
        await write(producer, settings.kafka, WRITER, encode_entries(sampled.batches))
    async with open_stream(settings, SystemClock(), None) as samples:
        yield samples


SYSTEMS = {"metrics-server": metrics_server, "prometheus": prometheus, "stream": stream}
"""Sessions with a system in which node n1 uses 1.5 cores and 2 GiB, by sample source."""


@pytest.fixture(params=SOURCES.points)
async def fetched(
    request: pytest.FixtureRequest, settings: Settings, tmp_path: Path
) -> AsyncIterator[tuple[TimeWindow, FetchedUsage]]:
    if request.param not in SYSTEMS:
        pytest.fail(f"add a system that sample source {request.param} can read to SYSTEMS")
    window = last_window()
    async with SYSTEMS[request.param](settings, window, tmp_path) as session:
        yield window, await session.fetch(window)


async def test_every_sample_source_fulfils_the_contract(
    fetched: tuple[TimeWindow, FetchedUsage],
) -> None:
    window, usage = fetched
    assert (usage.knows_pods, usage.failed) == (True, {})
    assert usage.pods
    for columns in (*usage.nodes.values(), *usage.pods.values()):
        check(columns, window)
    node = usage.nodes["n1"]
    assert node["cpu_cores_avg"] == pytest.approx(1.5, rel=TOLERANCE)
    assert node["memory_bytes_avg"] == 2 * 2**30
    assert all(0 < offset <= window.seconds for offset in node["points_offset_seconds"])
    assert node["points_offset_seconds"] == sorted(node["points_offset_seconds"])
    assert len({len(node[name]) for name in LIST_COLUMNS}) == 1

    # The usage can be encoded as a sample.
    sampled = SampleBuilder().samples(usage, window, Cluster())
    batch = next(batch for batch in sampled.batches if batch.header.node == "n1")
    read = read_samples(encode_samples(batch))
    assert (read.header.window_start_ms, read.header.window_end_ms) == window
    assert read.rows[0]["cpu_cores_avg"] == node["cpu_cores_avg"]


def check(columns: SampleColumns, window: TimeWindow) -> None:
    assert columns.keys() <= set(COLUMNS) - {"kind", "id"}
    assert 0 < columns["coverage"] <= 1
    for name, value in columns.items():
        numbers = value if name in LIST_COLUMNS else [value]
        assert all(n is None or (math.isfinite(n) and n >= 0) for n in numbers)
    if "cpu_cores_max" in columns:
        low, p90, p95, high = (
            columns[f"cpu_cores_{statistic}"] for statistic in ("avg", "p90", "p95", "max")
        )
        assert low <= high * (1 + 1e-12)
        assert p90 <= p95 <= high
