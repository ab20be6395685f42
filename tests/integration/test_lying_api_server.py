"""A fake API server that lies, the watcher and a real broker: topics keep what still exists."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from aiohttp import web

from pipeline.clock import ManualClock
from pipeline.kafka.topic_admin import apply_topics
from pipeline.kube.api_client import open_api
from pipeline.metrics_server import Readiness
from pipeline.settings import KafkaSettings, Settings
from pipeline.sources.cluster.doubtful_lists import CONFIRM_SECONDS, DOUBTFUL
from pipeline.sources.cluster.watcher import watch_cluster
from pipeline.topics.registry import NODES
from tests.broker import latest
from tests.kube.fake_server import user_file
from tests.metric_values import value_of
from tests.processes import until


class LyingServer:
    """Answers lists of Nodes with `nodes`, or with `lie`; every other list is empty."""

    def __init__(self, *nodes: str) -> None:
        self.nodes = nodes
        self.lie: bytes | None = None
        self.lists = 0
        self.events: list[str] = []
        self.changed = asyncio.Event()

    def expire_watches(self) -> None:
        """End all watches: the watcher lists again."""
        self.changed.set()
        self.changed = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.method == "POST":
            self.events.append((await request.json())["reason"])
            return web.json_response({})
        if "watch" in request.query:
            await self.changed.wait()
            return web.Response(status=410, text='{"kind": "Status"}')
        is_nodes = request.path.endswith("/nodes")
        self.lists += is_nodes
        if is_nodes and self.lie is not None:
            return web.Response(body=self.lie)
        items = [{"metadata": {"name": name}} for name in self.nodes if is_nodes]
        return web.Response(body=encoded(*items))


def encoded(*items: object) -> bytes:
    metadata = {"resourceVersion": "7"}
    return json.dumps({"kind": "SomeList", "metadata": metadata, "items": items}).encode()


@asynccontextmanager
async def watched(
    server: LyingServer, kafka: KafkaSettings, folder: Path
) -> AsyncIterator[ManualClock]:
    """A watcher of `server`."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.0, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        settings = Settings(kafka=kafka, kubernetes=user_file(folder, url))
        clock = ManualClock()
        async with open_api(settings.kubernetes, clock) as api:
            task = asyncio.create_task(watch_cluster(api, settings, clock, Readiness()))
            try:
                yield clock
            finally:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
    finally:
        server.changed.set()
        await runner.cleanup()


async def test_a_lying_fake_server_deletes_no_node_until_it_lies_twice(
    kafka: KafkaSettings, tmp_path: Path
) -> None:
    await apply_topics(kafka)
    server = LyingServer(*(f"n{number}" for number in range(10)))

    async def nodes() -> int:
        return len(await latest(kafka, NODES))

    def doubtful() -> float:
        return value_of(DOUBTFUL.labels("Node"))

    async def lists_again(clock: ManualClock) -> bool:
        lists = server.lists
        await clock.advance(1)
        await asyncio.sleep(0.05)
        return server.lists > lists

    async def has_nodes(count: int) -> bool:
        return await nodes() == count

    async with watched(server, kafka, tmp_path) as clock:
        await until(lambda: has_nodes(10))
        server.lie = b"{}"
        server.expire_watches()
        await until(lambda: lists_again(clock))
        server.lie = encoded()
        await until(lambda: lists_again(clock))
        await until(lambda: doubtful() == 10)
        await until(lambda: server.events == ["DoubtfulList"])
        server.lie = None
        await clock.advance(CONFIRM_SECONDS)
        await until(lambda: doubtful() == 0)
        assert await nodes() == 10
        # What it answers twice is believed.
        server.lie = encoded()
        server.expire_watches()
        await until(lambda: doubtful() == 10)
        assert await nodes() == 10
        await clock.advance(CONFIRM_SECONDS)
        await until(lambda: has_nodes(0))
