"""A long poll for the view of a node is answered when there is a newer view."""

import asyncio
import time
from contextlib import suppress
from typing import Any, NoReturn

import aiohttp
import pytest

from pipeline.extender.node_view_poll import NodeViewHandler
from pipeline.table import Feed, FeedState
from pipeline.table.compressed_views import NodeViewStore
from tests.extender.conftest import Client, Start, extender, metric, start_service, unreachable_feed
from tests.processes import until

AT_MOST = 3


@pytest.fixture
def views() -> NodeViewStore:
    store = NodeViewStore()
    store.put("a", 5, b'{"generation":5}')
    return store


AT_ONCE_SECONDS = 20.0
"""Less than the 30 s for which clients wait, and enough for a busy machine."""


@pytest.fixture
async def client(start: Start, views: NodeViewStore) -> Client:
    return await start(node_views=NodeViewHandler(views, FeedState(caught_up=True), AT_MOST))


async def get(client: Client, known: str | None = None, **query: Any) -> aiohttp.ClientResponse:
    headers = {} if known is None else {"If-None-Match": known}
    return await client.get("/v1/nodes/a/view", headers=headers, params=query)


async def waits(client: Client, *, many: int = 1, **query: Any) -> list[Any]:
    """Clients that wait for something newer than generation 5."""
    before = metric("waiting_clients")
    tasks = [asyncio.create_task(get(client, '"5"', wait=30, **query)) for _ in range(many)]
    await until(lambda: metric("waiting_clients") >= before + many)
    return tasks


async def test_the_view_is_answered_as_it_was_on_the_topic(client: Client) -> None:
    for encoding in ("gzip", "identity"):
        response = await client.get("/v1/nodes/a/view", headers={"Accept-Encoding": encoding})
        assert (response.status, response.headers["ETag"]) == (200, '"5"')
        assert response.content_type == "application/json"
        assert await response.read() == b'{"generation":5}'
        assert response.headers.get("Content-Encoding", "identity") == encoding


@pytest.mark.parametrize(
    ("known", "status"),
    [('"4"', 200), ('"5"', 304), ('W/"5"', 304), ('"1", "5"', 304), ("*", 304), ('"6"', 304),
     ('"x"', 200), ("5", 200), ('"٥"', 200), ('"' + "9" * 400 + '"', 200)],
)  # fmt: skip
async def test_a_view_that_the_client_has_is_not_sent_again(
    client: Client, known: str, status: int
) -> None:
    response = await get(client, known)
    assert (response.status, response.headers["ETag"]) == (status, '"5"')
    assert bool(await response.read()) == (status == 200)


async def test_a_newer_view_is_answered_as_soon_as_it_arrives(
    client: Client, views: NodeViewStore
) -> None:
    (waiting,) = await waits(client)
    views.put("b", 9, b"{}")
    views.put("a", 5, b"{}")
    await asyncio.sleep(0.05)
    assert not waiting.done()
    began = time.monotonic()
    views.put("a", 6, b'{"generation":6}')
    response = await waiting
    assert time.monotonic() - began < AT_ONCE_SECONDS
    assert (response.status, response.headers["ETag"]) == (200, '"6"')


async def test_after_the_wait_the_answer_is_304(client: Client) -> None:
    began = time.monotonic()
    assert (await get(client, '"5"', wait="0.2")).status == 304
    assert 0.2 <= time.monotonic() - began < AT_ONCE_SECONDS
    # A client without a view does not wait.
    assert (await get(client, wait="30")).status == 200


async def test_a_view_removed_while_a_client_waits_is_not_found(
    client: Client, views: NodeViewStore
) -> None:
    (waiting,) = await waits(client)
    views.drop("a")
    assert (await waiting).status == 404
    response = await get(client, '"5"', wait=30)
    assert (response.status, (await response.json())["Error"]) == (404, "node 'a' has no view")


@pytest.mark.parametrize("wait", ["-1", "61", "nan", "inf", "x", ""])
async def test_an_invalid_wait_is_a_bad_request(client: Client, wait: str) -> None:
    response = await get(client, wait=wait)
    assert (response.status, "0 to 60" in (await response.json())["Hint"]) == (400, True)


async def test_the_number_of_waiting_clients_is_limited(
    client: Client, views: NodeViewStore
) -> None:
    waiting = await waits(client, many=AT_MOST)
    response = await get(client, '"5"', wait=30)
    assert (response.status, response.headers["Retry-After"]) == (503, "1")
    assert "3 clients are waiting" in (await response.json())["Error"]
    # A request that need not wait is answered.
    assert (await get(client)).status == 200
    assert (await get(client, '"5"')).status == 304
    views.put("a", 6, b"{}")
    assert [(await task).status for task in waiting] == [200] * AT_MOST
    assert metric("waiting_clients") == 0


async def test_waiting_clients_are_answered_at_drain(start: Start, views: NodeViewStore) -> None:
    draining = extender(node_views=NodeViewHandler(views, FeedState(caught_up=True), AT_MOST))
    client = await start(draining)
    waiting = await waits(client, many=2)
    draining.drain()
    assert [(await task).status for task in waiting] == [304, 304]
    began = time.monotonic()
    assert (await get(client, '"5"', wait=30)).status == 304
    assert time.monotonic() - began < AT_ONCE_SECONDS


async def test_until_views_are_caught_up_the_answer_is_503(start: Start) -> None:
    assert (await (await start()).get("/v1/nodes/a/view")).status == 503


async def test_a_disconnected_client_gives_its_place_back(
    views: NodeViewStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(self: Feed) -> NoReturn:
        self.state.caught_up = True
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(Feed, "run", run)
    of_views = unreachable_feed()
    of_views.table.views = views
    stop = asyncio.Event()
    serving, port = await start_service(stop, linger_seconds=0.0, views=of_views)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        (waiting,) = await waits(session)  # type: ignore[arg-type]
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        await until(lambda: not metric("waiting_clients"))
        (waiting,) = await waits(session)  # type: ignore[arg-type]
        stop.set()
        response = await asyncio.wait_for(waiting, 60)
        assert (response.status, response.headers["Connection"]) == (304, "close")
    await asyncio.wait_for(serving, 60)
