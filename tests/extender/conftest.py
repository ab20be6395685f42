"""An extender over a table that is filled by hand, asked through a real HTTP client."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

import msgspec
import pytest
from aiohttp.test_utils import TestClient, TestServer

from pipeline.clock import ManualClock, SystemClock
from pipeline.extender.scheduler_api import Extender
from pipeline.extender.service import serve
from pipeline.metrics import REGISTRY
from pipeline.settings import ExtenderSettings
from pipeline.table import Feed, FeedState, Table
from tests.table.records import GIB, NOW, node_state, table_of

Client = TestClient[Any, Any]
Start = Callable[..., Awaitable[Client]]
Post = Callable[[str, bytes], tuple[int, Any]]


def cluster() -> Table:
    """idle and busy are fine, hot is over the CPU threshold, full over memory's, old is stale."""
    return table_of(
        node_state("idle", cpu=0.4, memory=1.6 * GIB),
        node_state("busy", cpu=2.0, memory=8 * GIB),
        node_state("hot", cpu=3.6, memory=8 * GIB, age=12.0),
        node_state("full", cpu=1.0, memory=15.9 * GIB),
        node_state("old", cpu=4.0, memory=16 * GIB, age=180.0),
        node_state("blind", cpu=None, memory=None),
    )


ALL = ["idle", "busy", "hot", "full", "old", "blind", "stranger"]
POD = {"metadata": {"name": "p", "namespace": "d", "uid": "u1"}}


def extender(table: Table | None = None, **more: Any) -> Extender:
    """An extender over `cluster()`, or over `table`, in mode act and caught up unless `more`
    says otherwise: `mode`, `caught_up`, `connected`, `missing`, or an argument of `Extender`."""
    caught_up = more.pop("caught_up", True)
    state = FeedState(
        caught_up=caught_up,
        connected=more.pop("connected", True),
        message="following" if caught_up else "catching up",
        missing=more.pop("missing", ()),
    )
    settings = more.pop("settings", None) or ExtenderSettings(mode=more.pop("mode", "act"))
    clock = more.pop("clock", None) or ManualClock(NOW)
    return Extender(cluster() if table is None else table, state, settings, clock, **more)


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """`client = await start(mode="act")`: a client of a served `extender`."""
    async with AsyncExitStack() as stack:

        async def started(served: Extender | None = None, **more: Any) -> Client:
            client: Client = TestClient(TestServer((served or extender(**more)).app()))
            return await stack.enter_async_context(client)

        yield started


@contextmanager
def served(of: Extender) -> Iterator[Callable[..., tuple[int, bytes]]]:
    """`ask(method, path, **more)`: status and body of a real request, without an event loop."""
    loop = asyncio.new_event_loop()
    client: Any = TestClient(TestServer(of.app(), loop=loop), loop=loop)
    loop.run_until_complete(client.start_server())

    async def asked(method: str, path: str, **more: Any) -> tuple[int, bytes]:
        async with client.request(method, path, **more) as response:
            return response.status, await response.read()

    yield lambda *args, **more: loop.run_until_complete(asked(*args, **more))
    loop.run_until_complete(client.close())
    loop.close()


@pytest.fixture(scope="module")
def post() -> Iterator[Post]:
    """`post(path, body)`: status and JSON of a real answer of an `extender`."""
    with served(extender()) as ask:

        def posted(path: str, body: bytes) -> tuple[int, Any]:
            status, answer = ask("POST", path, data=body)
            return status, msgspec.json.decode(answer)

        yield posted


def unreachable_feed(**more: Any) -> Feed:
    """A feed whose broker never answers."""
    client = {"bootstrap_servers": "127.0.0.1:1"}
    return Feed(Table(), client=client, prefix="none", clock=SystemClock(), **more)


async def start_service(
    stop: asyncio.Event, feed: Feed | None = None, settings: Any = None, **more: Any
) -> tuple[asyncio.Task[None], int]:
    """The task of `serve`, and the port on which it listens."""
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    settings = settings or ExtenderSettings(host="127.0.0.1", port=0)
    serving = asyncio.create_task(
        serve(feed or unreachable_feed(), settings, SystemClock(), stop, port.set_result, **more)
    )
    return serving, await asyncio.wait_for(port, 60)


@asynccontextmanager
async def running(
    feed: Feed | None = None, settings: Any = None, **more: Any
) -> AsyncIterator[int]:
    """The port of a service that stops at once, and without an error, at the end."""
    stop = asyncio.Event()
    serving, port = await start_service(stop, feed, settings, linger_seconds=0.0, **more)
    try:
        yield port
    finally:
        stop.set()
        await asyncio.wait_for(serving, 60)


def metric(name: str, **labels: str) -> float:
    """The value of a metric as it is on the metrics page; 0 if it has no sample."""
    return REGISTRY.get_sample_value(f"springtide_extender_{name}", labels) or 0.0
