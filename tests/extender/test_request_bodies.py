"""Request bodies and unread answers are limited in size, number and time."""

import asyncio
import contextlib
import gzip
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import ClientError, ClientResponse, ClientSession, web
from aiohttp.test_utils import TestServer

from pipeline.extender import limits
from pipeline.extender.limits import MAX_NODES
from pipeline.extender.request_bodies import PartsResponse, RequestBodies
from pipeline.table import Table
from tests.extender.conftest import POD, Client, Start
from tests.table.records import node_state

QUESTION = json.dumps({"Pod": POD, "NodeNames": ["idle", "hot"]}).encode()
LARGE = QUESTION + b" " * limits.LARGE_BODY_BYTES


class Occupied:
    """Large requests for all slots, each without its last byte; `finish` sends that."""

    def __init__(self, client: Client) -> None:
        self._go = asyncio.Event()
        self._sent = [asyncio.Event() for _ in range(limits.LARGE_BODIES)]
        self._asking = [asyncio.create_task(self._ask(client, sent)) for sent in self._sent]

    async def _ask(self, client: Client, sent: asyncio.Event) -> ClientResponse:
        async def slowly() -> AsyncIterator[bytes]:
            yield LARGE[:-1]
            sent.set()
            await self._go.wait()
            yield LARGE[-1:]

        return await client.post("/filter", data=slowly())

    @classmethod
    async def begin(cls, client: Client) -> "Occupied":
        occupied = cls(client)
        await asyncio.gather(*(sent.wait() for sent in occupied._sent))
        await asyncio.sleep(0.5)  # until the server has read what was sent
        return occupied

    async def finish(self) -> list[int]:
        self._go.set()
        return [response.status for response in await asyncio.gather(*self._asking)]


async def test_large_bodies_are_limited_to_the_slots(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LARGE_WAIT_SECONDS", 0.1)
    client = await start()
    occupied = await Occupied.begin(client)

    async def chunked() -> AsyncIterator[bytes]:
        yield LARGE

    packed = {"data": gzip.compress(LARGE), "headers": {"Content-Encoding": "gzip"}}
    for request in ({"data": LARGE}, {"data": chunked()}, packed):
        response = await client.post("/filter", **request)
        assert (response.status, response.headers["Retry-After"]) == (503, "1")
        reply = await response.json()
        assert reply["Error"].startswith("4 bodies over 1048576 bytes are being answered already")
        assert "nodeCacheCapable" in reply["Hint"]
    # Small requests are answered as usual.
    assert (await client.post("/filter", data=QUESTION)).status == 200
    assert (await client.get("/healthz")).status == 200

    assert await occupied.finish() == [200] * limits.LARGE_BODIES
    for _ in range(limits.LARGE_BODIES + 1):
        assert (await client.post("/filter", data=LARGE)).status == 200


async def test_a_waiting_request_gets_a_freed_slot(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LARGE_WAIT_SECONDS", 30.0)
    client = await start()
    occupied = await Occupied.begin(client)
    waiting = asyncio.create_task(client.post("/filter", data=LARGE))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await occupied.finish()
    assert (await waiting).status == 200


@pytest.mark.parametrize(
    ("body", "status"),
    [(LARGE + b"}", 400), (LARGE + b" " * limits.MAX_BODY_BYTES, 413)],
    ids=["no-question", "too-large"],
)
async def test_a_refused_body_gives_its_slot_back(
    start: Start, body: bytes, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 64 MiB take long while the machine is busy.
    monkeypatch.setattr(limits, "BODY_TIMEOUT_SECONDS", 600.0)
    client = await start()

    async def unannounced() -> AsyncIterator[bytes]:
        for begin in range(0, len(body), 1 << 20):
            yield body[begin : begin + (1 << 20)]

    for _ in range(limits.LARGE_BODIES + 1):
        assert (await client.post("/filter", data=unannounced())).status == status


async def test_a_disconnected_client_gives_its_slot_back(start: Start) -> None:
    client = await start()
    for _ in range(limits.LARGE_BODIES + 1):
        _, writer = await connect(client)
        writer.write(head(len(LARGE)) + LARGE[:-1])
        await writer.drain()
        writer.transport.abort()
    assert (await client.post("/filter", data=LARGE)).status == 200


async def test_an_answer_to_a_disconnected_client_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The connection closes between the last byte of a request and its answer."""
    sent = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        answering, response = RequestBodies(), web.Response(body=b"x")
        assert request.transport is not None
        request.transport.close()
        await answering.send(request, response)
        sent.set()
        return response

    app = web.Application()
    app.router.add_get("/", answer)
    async with TestServer(app) as server, ClientSession() as session:
        with pytest.raises(ClientError):
            await session.get(server.make_url("/"))
    assert sent.is_set()
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_client_that_does_not_read_its_answer_is_disconnected(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ANSWER_TIMEOUT_SECONDS", 0.3)
    monkeypatch.setattr(limits, "LARGE_BODIES", 1)
    client = await start()
    # More than what the sockets of both sides hold.
    nodes = [{"metadata": {"name": f"n{i}"}, "filler": "x" * 1000} for i in range(20_000)]
    body = json.dumps({"Pod": POD, "Nodes": {"items": nodes}}).encode()
    reader, writer = await connect(client)
    writer.write(head(len(body)) + body)
    await writer.drain()
    assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
    await asyncio.sleep(0.6)  # asyncio's reader takes 128 KiB unasked, and then no more
    assert (await client.post("/filter", data=LARGE)).status == 200
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(len(body))
    writer.close()


async def test_a_client_of_a_small_request_is_disconnected_too(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ANSWER_TIMEOUT_SECONDS", 0.3)
    table = Table()
    for number in range(8000):
        table.put_state(node_state(f"n{number}"))
    reader, writer = await connect(await start(table=table))
    writer.write(b"GET /v1/nodes HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"transfer-encoding: chunked" in (await reader.readuntil(b"\r\n\r\n")).lower()
    await asyncio.sleep(0.6)
    received = b""
    with contextlib.suppress(ConnectionError):
        while more := await asyncio.wait_for(reader.read(1 << 16), 30):
            received += more
    assert not received.endswith(b"\r\n0\r\n\r\n"), "the whole answer was sent"
    writer.close()


async def test_small_bodies_that_never_end_are_limited_in_all(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SMALL_BODIES_BYTES", 1000)
    monkeypatch.setattr(limits, "LARGE_WAIT_SECONDS", 0.1)
    monkeypatch.setattr(limits, "LARGE_BODIES", 1)
    client = await start()
    begun = []
    for _ in range(3):
        reader, writer = await connect(client)
        writer.write(head(2000) + b" " * 600)
        await writer.drain()
        begun.append((reader, writer))
        await asyncio.sleep(0.05)
    # The first is small, the second has the only slot.
    assert (await begun[2][0].readuntil(b"\r\n")).startswith(b"HTTP/1.1 503")
    assert (await client.post("/filter", data=QUESTION)).status == 200
    for _, writer in begun:
        writer.transport.abort()
    await asyncio.sleep(0.1)
    for _ in range(3):
        assert (await client.post("/filter", data=QUESTION)).status == 200


@pytest.mark.parametrize("whole", [True, False])
async def test_requests_with_too_many_nodes_are_refused(start: Start, whole: bool) -> None:
    names = [f"n{number}" for number in range(MAX_NODES + 1)]
    client = await start()

    def asked(names: list[str]) -> dict[str, Any]:
        items = [{"metadata": {"name": name}} for name in names]
        return {"Pod": POD} | ({"Nodes": {"items": items}} if whole else {"NodeNames": names})

    response = await client.post("/filter", json=asked(names))
    assert (response.status, (await response.json())["Error"]) == (400, "more than 50000 nodes")
    assert (await client.post("/filter", json=asked(names[1:]))).status == 200
    if not whole:
        explained = await client.post("/v1/explain", json={"pod": POD, "nodeNames": names})
        assert explained.status == 400


async def connect(client: Client) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(client.host, client.port)


def head(length: int) -> bytes:
    return f"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode()


async def test_an_answer_in_parts_may_take_longer_than_a_client_may_to_read_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the machine is busy, to make all nodes takes longer than a client has to read."""
    monkeypatch.setattr(limits, "ANSWER_TIMEOUT_SECONDS", 1.0)

    async def parts() -> AsyncIterator[bytes]:
        for _ in range(5):
            await asyncio.sleep(0.4)
            yield b"x"

    async def answer(request: web.Request) -> web.StreamResponse:
        response = PartsResponse(parts(), "text/plain")
        await RequestBodies().send(request, response)
        return response

    app = web.Application()
    app.router.add_get("/", answer)
    async with TestServer(app) as server, ClientSession() as session:
        assert await (await session.get(server.make_url("/"))).read() == b"xxxxx"


async def test_head_of_an_answer_in_parts_has_no_body(start: Start) -> None:
    reader, writer = await connect(await start())
    writer.write(
        b"HEAD /v1/nodes HTTP/1.1\r\nHost: x\r\n\r\nGET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    )
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    assert await reader.readexactly(15) == b'{"status":"ok"}'
    writer.close()


async def test_a_client_that_does_not_read_the_next_part_is_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "ANSWER_TIMEOUT_SECONDS", 0.3)
    made, ended = 0, asyncio.Event()

    async def parts() -> AsyncIterator[bytes]:
        nonlocal made
        while True:
            made += 1
            yield b"x" * 1_000_000

    async def answer(request: web.Request) -> web.StreamResponse:
        response = PartsResponse(parts(), "text/plain")
        await RequestBodies().send(request, response)
        ended.set()
        return response

    app = web.Application()
    app.router.add_get("/", answer)
    async with (
        TestServer(app) as server,
        ClientSession() as session,
        session.get(server.make_url("/")) as response,
    ):
        await asyncio.wait_for(ended.wait(), 60)
        with pytest.raises(ClientError):
            await response.read()
    # What the sockets of both sides hold, and no more.
    assert made < 100
