"""An extender over a table that is filled by hand, asked through a real HTTP client."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Literal

import pytest
from aiohttp.test_utils import TestClient, TestServer

from pipeline.clock import ManualClock
from pipeline.extender.scheduler_api import Extender
from pipeline.settings import ExtenderSettings
from pipeline.table import FeedState, Table
from tests.table.records import GIB, NOW, node_state, table_of

Client = TestClient[Any, Any]
Start = Callable[..., Awaitable[Client]]


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


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """`client = await start(mode="act")`: a served extender over `cluster()`."""
    async with AsyncExitStack() as stack:

        async def started(
            *,
            mode: Literal["observe", "act"] = "act",
            table: Table | None = None,
            caught_up: bool = True,
        ) -> Client:
            extender = Extender(
                cluster() if table is None else table,
                FeedState(caught_up=caught_up, message="following" if caught_up else "catching up"),
                ExtenderSettings(mode=mode),
                ManualClock(NOW),
            )
            client: Client = TestClient(TestServer(extender.app()))
            return await stack.enter_async_context(client)

        yield started
