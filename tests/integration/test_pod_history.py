"""Windows on a real broker become series of pods."""

import asyncio
from contextlib import suppress

import pytest

from pipeline.clock import SystemClock
from pipeline.kafka.client import client_options
from pipeline.kafka.topic_admin import apply_topics
from pipeline.settings import KafkaSettings
from pipeline.table import Feed, Table
from pipeline.table.apply_records import apply_pod_points
from pipeline.table.table_feed import POD_HISTORY_TOPICS
from pipeline.topics.registry import WINDOWS
from pipeline.topics.windows import encode_window
from tests.broker import send
from tests.processes import until
from tests.processors.joined import NODE_ROW, header, joined, known_pod, pod_row, view_of

pytestmark = pytest.mark.broker


async def test_windows_become_series_of_pods_before_and_after_the_feed_caught_up(
    kafka: KafkaSettings,
) -> None:
    await apply_topics(kafka)

    async def publish(end: int) -> None:
        view = view_of(known_pod("u1", name="web-0"))
        row = pod_row("u1", cpu_cores_avg=float(end), memory_bytes_avg=64.0)
        value = encode_window(joined(NODE_ROW, row, view=view, of=header(end=end)))
        await send(kafka, WINDOWS, ("node-1", value))

    def cores() -> list[float]:
        series = feed.table.pod_history.get("node-1", "shop/web-0")
        return [] if series is None else series.cpu_cores.tolist()

    await publish(1)
    feed = Feed(
        Table(pod_windows=2), client=client_options(kafka), prefix=kafka.topic_prefix,
        clock=SystemClock(), topics=POD_HISTORY_TOPICS, name="pod history",
        apply_record=apply_pod_points, recent_seconds=60.0,
    )  # fmt: skip
    following = asyncio.create_task(feed.run())
    await asyncio.wait_for(feed.wait_caught_up(), 60)
    assert cores() == [1.0]
    for end in (2, 3):
        await publish(end)
    await until(lambda: cores() == [2.0, 3.0])
    following.cancel()
    with suppress(asyncio.CancelledError):
        await following
