"""The view by long poll: from a real extender, and from servers that fail or lie."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from actuators.node.newest_view import NewestView
from actuators.node.view_poll import ViewServer, follow_server
from pipeline import tracing
from pipeline.clock import ManualClock, SystemClock
from pipeline.extender.node_view_poll import NodeViewHandler
from pipeline.spans import SpanContext
from pipeline.table import FeedState
from pipeline.table.compressed_views import NodeViewStore
from pipeline.tasks import cancel_tasks
from tests.actuators.node.views import NODE, view
from tests.extender.conftest import extender
from tests.processes import until

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def following(
    app: web.Application, clock: ManualClock | None = None, token_file: Path | None = None
) -> AsyncIterator[NewestView]:
    """A view that is polled from a server of `app`."""
    newest = NewestView(NODE, clock or SystemClock(), asyncio.Event())
    async with TestServer(app) as server:
        address = ViewServer(str(server.make_url("")), token_file=token_file)
        task = asyncio.create_task(follow_server(address, newest, clock or SystemClock()))
        try:
            yield newest
        finally:
            await cancel_tasks(task)


def generation(newest: NewestView) -> int | None:
    return None if newest.record is None else newest.record.generation


def lying(answers: Sequence[Answer]) -> tuple[web.Application, list[web.Request]]:
    """A server that gives these answers in turn, the last one again and again."""
    requests: list[web.Request] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        requests.append(request)
        return await answers[min(len(requests), len(answers)) - 1](request)

    app = web.Application()
    app.router.add_get(f"/v1/nodes/{NODE}/view", answer)
    return app, requests


def body(data: bytes, etag: int = 7, encoding: str = "identity") -> Answer:
    async def answer(request: web.Request) -> web.Response:
        headers = {"ETag": f'"{etag}"', "Content-Encoding": encoding}
        return web.Response(body=data, headers=headers)

    return answer


def zipped(data: bytes) -> Answer:
    return body(data, encoding="gzip")


def status(number: int, etag: int | None = None) -> Answer:
    async def answer(request: web.Request) -> web.Response:
        headers = {} if etag is None else {"ETag": f'"{etag}"'}
        return web.Response(status=number, headers=headers)

    return answer


async def asleep(clock: ManualClock) -> None:
    """Until the client pauses."""
    await until(lambda: len(clock.sleepers) > 0)


async def test_the_view_of_a_real_extender_is_followed() -> None:
    store = NodeViewStore()
    store.put(NODE, 5, view(5))
    store.put("n2", 9, view(9, node="n2"))
    app = extender(node_views=NodeViewHandler(store, FeedState(caught_up=True))).app()
    async with following(app) as newest:
        await until(lambda: generation(newest) == 5)
        # The next request waits for a newer view.
        await until(lambda: NODE in store.waiters)
        store.put(NODE, 6, view(6))
        await until(lambda: generation(newest) == 6)
        age = newest.age_seconds()
        assert age is not None
        assert age < 20


async def test_a_polled_view_has_the_trace_of_its_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_export", object())
    views, context = NodeViewStore(), SpanContext(5, 6)
    views.put(NODE, 3, view(3), context)
    app = extender(node_views=NodeViewHandler(views, FeedState(caught_up=True))).app()
    async with following(app) as newest:
        await until(lambda: generation(newest) == 3)
        assert newest.received is not None
        assert newest.received.context == context
        views.put(NODE, 4, view(4))
        await until(lambda: generation(newest) == 4)
        assert newest.received is None


async def test_a_node_without_a_view_and_a_late_extender_are_waited_for() -> None:
    store, state = NodeViewStore(), FeedState(caught_up=False)
    app = extender(node_views=NodeViewHandler(store, state)).app()
    async with following(app) as newest:
        await asyncio.sleep(0.2)
        state.caught_up = True
        await asyncio.sleep(0.2)
        assert newest.record is None
        store.put(NODE, 1, view(1))
        await until(lambda: generation(newest) == 1)


@pytest.mark.parametrize(
    "bad",
    [status(500), status(404), status(302), status(401), status(304), status(304, etag=9),
     status(304, etag=4), body(b"garbage"), body(b""), body(view(9, node="n2")),
     body(b"x" * (9 << 20)), zipped(view(9)[:40]), zipped(gzip.compress(view(9))[:-9]),
     zipped(gzip.compress(view(9)) * 2), zipped(gzip.compress(b" " * (9 << 20)))],
)  # fmt: skip
async def test_an_answer_without_a_valid_view_leaves_the_last_one_and_its_age(bad: Answer) -> None:
    clock, answers = ManualClock(), [body(view(5)), bad]
    app, requests = lying(answers)
    async with following(app, clock) as newest:
        while len(requests) < 4:
            await asleep(clock)
            await clock.advance(1)
        await asleep(clock)
        assert (generation(newest), newest.age_seconds()) == (5, clock.monotonic())
        answers.append(body(view(6), etag=6))
        await clock.advance(60)
        await until(lambda: generation(newest) == 6)


async def test_a_server_that_answers_at_once_is_asked_once_a_second() -> None:
    clock = ManualClock()
    app, requests = lying([body(view(5)), status(304, etag=5)])
    async with following(app, clock) as newest:
        for count in range(1, 6):
            await asleep(clock)
            assert (len(requests), newest.age_seconds()) == (count, 0)
            await clock.advance(0.9)
            assert len(clock.sleepers) > 0
            await clock.advance(0.1)
    known = [request.headers.get("If-None-Match") for request in requests]
    assert known[:2] == [None, '"5"']


async def test_a_server_whose_views_stay_older_is_believed_after_ten_minutes() -> None:
    clock = ManualClock()

    async def older(request: web.Request) -> web.StreamResponse:
        known = request.headers.get("If-None-Match")
        return await (body(view(2), etag=2) if known is None else status(304, etag=2))(request)

    app, _ = lying([body(view(5), etag=5), older])
    async with following(app, clock) as newest:
        while generation(newest) != 2:
            await asleep(clock)
            assert clock.monotonic() < 700
            await clock.advance(60)
        assert clock.monotonic() >= 600


async def test_a_server_that_is_away_leaves_the_view(tmp_path: Path) -> None:
    newest, clock = NewestView(NODE, ManualClock(), asyncio.Event()), ManualClock()
    newest.receive(view(5))
    task = asyncio.create_task(follow_server(ViewServer("http://127.0.0.1:1"), newest, clock))
    for _ in range(3):
        await asleep(clock)
        await clock.advance(60)
    assert not task.done()
    assert (generation(newest), newest.age_seconds()) == (5, None)
    await cancel_tasks(task)


async def test_the_token_is_read_again_for_each_request(tmp_path: Path) -> None:
    token, clock = tmp_path / "token", ManualClock()
    app, requests = lying([status(401)])
    async with following(app, clock, token):
        await asleep(clock)
        assert requests == []  # there is no token to send
        for text in ("first", "second"):
            token.write_text(text)
            await clock.advance(60)
            await asleep(clock)
    sent = dict.fromkeys(request.headers["Authorization"] for request in requests)
    assert [*sent] == ["Bearer first", "Bearer second"]
