"""The running service: its port, how it goes, what happens when its feed dies."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import closing
from socket import socket
from typing import NoReturn

import aiohttp
import pytest

from pipeline.clock import SystemClock
from pipeline.errors import SettingsError
from pipeline.extender.server import serve
from pipeline.settings import ExtenderSettings
from pipeline.table import Feed, Table

SETTINGS = ExtenderSettings(host="127.0.0.1", port=0)


def feed() -> Feed:
    """One whose broker is never there."""
    client = {"bootstrap_servers": "127.0.0.1:1"}
    return Feed(Table(), client=client, prefix="none", clock=SystemClock())


async def started(stop: asyncio.Event) -> tuple[asyncio.Task[None], str]:
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve(feed(), SETTINGS, SystemClock(), stop, port.set_result))
    return serving, f"http://127.0.0.1:{await asyncio.wait_for(port, 5)}"


async def test_an_answer_under_way_is_finished_and_no_new_connection_taken() -> None:
    stop, half_sent = asyncio.Event(), asyncio.Event()
    serving, base = await started(stop)

    async def slowly() -> AsyncIterator[bytes]:
        yield b'{"Pod": {}, "NodeN'
        half_sent.set()
        await stop.wait()
        await asyncio.sleep(0.3)
        yield b'ames": ["a"]}'

    async with aiohttp.ClientSession(base) as session:
        asking = asyncio.create_task(session.post("/filter", data=slowly()))
        await asyncio.wait_for(half_sent.wait(), 5)
        await asyncio.sleep(0.1)
        stop.set()
        await asyncio.sleep(0.1)
        async with aiohttp.ClientSession(base) as other:
            with pytest.raises(aiohttp.ClientConnectionError):
                await other.get("/healthz")
        response = await asyncio.wait_for(asking, 5)
        assert response.status == 200
        assert (await response.json())["NodeNames"] == ["a"]
    await asyncio.wait_for(serving, 12)


async def test_it_lives_without_a_broker_and_says_what_is_missing() -> None:
    stop = asyncio.Event()
    serving, base = await started(stop)
    async with aiohttp.ClientSession(base) as session:
        async with asyncio.timeout(10):
            said = ""
            while "no broker answers" not in said:
                await asyncio.sleep(0.05)
                async with session.get("/readyz") as response:
                    assert response.status == 503
                    said = (await response.json())["table"]
        assert said == "no broker answers at 127.0.0.1:1"
        async with session.get("/healthz") as response:
            assert response.status == 200
    stop.set()
    await asyncio.wait_for(serving, 12)


async def test_a_port_that_is_taken_is_an_error_of_settings() -> None:
    with closing(socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        settings = ExtenderSettings(host="127.0.0.1", port=port)
        with pytest.raises(SettingsError, match=f"cannot listen on 127.0.0.1:{port}") as raised:
            await serve(feed(), settings, SystemClock(), asyncio.Event())
    assert raised.value.key == "extender.port"


async def test_a_feed_that_dies_ends_the_service_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    async def die(self: Feed) -> NoReturn:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(Feed, "run", die)
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        await asyncio.wait_for(serve(feed(), SETTINGS, SystemClock(), asyncio.Event()), 10)
