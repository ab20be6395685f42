"""The running service: its port, its shutdown, and failures of its feed."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import closing
from socket import create_server
from typing import Any, NoReturn

import aiohttp
import pytest

from pipeline.clock import SystemClock
from pipeline.errors import SettingsError
from pipeline.extender.service import serve
from pipeline.processors.loadaware.node_thresholds import ANNOTATION
from pipeline.settings import ExtenderSettings
from pipeline.table import Feed
from pipeline.table.node_columns import TableNode
from pipeline.topics.wake_ups import WakeUpRecord
from tests.extender.conftest import running, start_service, unreachable_feed
from tests.processes import until
from tests.table.records import ROOM, any_pod, node_state


async def started(
    stop: asyncio.Event, fed: Feed | None = None, **more: Any
) -> tuple[asyncio.Task[None], str]:
    serving, port = await start_service(stop, fed, **more)
    return serving, f"http://127.0.0.1:{port}"


@pytest.fixture
def die() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
def ready(die: asyncio.Event, monkeypatch: pytest.MonkeyPatch) -> Feed:
    """A feed that has caught up, with a table without nodes, until it shall die."""

    async def run(self: Feed) -> NoReturn:
        self.state.caught_up = True
        await die.wait()
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(Feed, "run", run)
    return unreachable_feed()


async def new_connection(base: str) -> tuple[int, str]:
    """Status and text of /readyz, asked on a connection of its own."""
    async with aiohttp.ClientSession(base) as session, session.get("/readyz") as response:
        return response.status, (await response.json())["status"]


async def test_while_draining_requests_on_new_connections_are_answered(ready: Feed) -> None:
    stop, at_once = asyncio.Event(), asyncio.Event()
    serving, base = await started(stop, ready, at_once=at_once, linger_seconds=30.0)
    body = {"Pod": {}, "NodeNames": ["a"]}
    async with aiohttp.ClientSession(base) as scheduler:
        async with scheduler.post("/filter", json=body) as response:
            assert "Connection" not in response.headers
        assert await new_connection(base) == (200, "ready")
        stop.set()
        await asyncio.sleep(0.05)
        for _ in range(2):
            assert await new_connection(base) == (503, "draining")
            for verb in ("filter", "prioritize"):
                async with scheduler.post(f"/{verb}", json=body) as response:
                    assert response.status == 200
                    # So that the next question goes to another replica.
                    assert response.headers["Connection"] == "close"
    at_once.set()
    await asyncio.wait_for(serving, 60)
    with pytest.raises(aiohttp.ClientConnectionError):
        await new_connection(base)


async def test_invalid_annotations_are_logged(
    ready: Feed, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    ready.table.put_node(TableNode(node="a", annotations={ANNOTATION: "{"}))
    async with running(ready):
        pass
    (logged,) = [record for record in caplog.records if "thresholds" in record.msg]
    assert logged.fields["nodes"] == ["a"]  # type: ignore[attr-defined]


async def test_outages_are_logged_and_waiting_pods_are_woken(
    ready: Feed, caplog: pytest.LogCaptureFixture
) -> None:
    wake_ups: list[WakeUpRecord] = []
    ready.table.put_node(TableNode(node="a", allocatable=ROOM))
    ready.table.put_state(node_state("a"))  # years old, as is the usage of all nodes
    ready.table.put_pod(any_pod())
    settings = ExtenderSettings(host="127.0.0.1", port=0, mode="act")
    async with running(ready, settings, publish_wake_up=wake_ups.append):
        await until(lambda: wake_ups)
        await until(lambda: "outage of usage" in caplog.text)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"Content-Length: -1\r\n\r\n", b"400"),
        (b"X: " + b"x" * 9000 + b"\r\n\r\n", b"400"),
        (b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nxyz", b"404"),
    ],
    ids=["length", "header", "body"],
)
async def test_malformed_http_is_refused_and_logged_as_info(
    ready: Feed, caplog: pytest.LogCaptureFixture, data: bytes, status: bytes
) -> None:
    caplog.set_level(logging.INFO)
    async with running(ready) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /nowhere HTTP/1.1\r\nHost: x\r\n" + data)
        await asyncio.wait_for(reader.readuntil(b" %s " % status), 60)
        await asyncio.wait_for(reader.read(), 60)  # closed
        writer.close()
    (logged,) = [record for record in caplog.records if record.msg == "request is no HTTP"]
    assert logged.fields["reason"]  # type: ignore[attr-defined]
    assert [each for each in caplog.records if each.exc_info or each.levelno > logging.INFO] == []


@pytest.mark.parametrize("path", ["/filter", "/nowhere"])
async def test_an_expectation_that_is_no_text_is_refused(ready: Feed, path: str) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nExpect: ".encode()
    async with running(ready) as port:
        for expected, status in ((b"\x80", b"417"), (b"x", b"417"), (b"100-Continue", b"100")):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head + expected + b"\r\n\r\n")
            await asyncio.wait_for(reader.readuntil(b" %s " % status), 60)
            writer.close()


async def test_it_lingers_for_the_given_time(ready: Feed) -> None:
    stop = asyncio.Event()
    serving, base = await started(stop, ready, linger_seconds=0.3)
    await new_connection(base)
    stop.set()
    began = asyncio.get_running_loop().time()
    await asyncio.wait_for(serving, 60)
    assert asyncio.get_running_loop().time() - began >= 0.3


async def test_a_feed_that_fails_while_lingering_raises(ready: Feed, die: asyncio.Event) -> None:
    stop = asyncio.Event()
    serving, base = await started(stop, ready, linger_seconds=30.0)
    await new_connection(base)
    stop.set()
    await asyncio.sleep(0.05)
    die.set()
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        await asyncio.wait_for(serving, 60)


async def test_an_extender_that_was_never_ready_stops_at_once_and_finishes_answers() -> None:
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
        await asyncio.wait_for(half_sent.wait(), 60)
        await asyncio.sleep(0.1)
        stop.set()
        await asyncio.sleep(0.1)
        with pytest.raises(aiohttp.ClientConnectionError):
            await new_connection(base)
        response = await asyncio.wait_for(asking, 60)
        assert (response.status, (await response.json())["NodeNames"]) == (200, ["a"])
    await asyncio.wait_for(serving, 60)


async def test_without_a_broker_it_stays_up_and_names_what_is_missing() -> None:
    message = ""
    async with running() as port, aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        async with asyncio.timeout(60):
            while "no broker answers" not in message:
                await asyncio.sleep(0.05)
                async with session.get("/readyz") as response:
                    assert response.status == 503
                    message = (await response.json())["table"]
        assert message == "listing topics: no broker answers at 127.0.0.1:1"
        assert (await session.get("/healthz")).status == 200


async def test_a_taken_port_is_a_settings_error() -> None:
    with closing(create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        settings = ExtenderSettings(host="127.0.0.1", port=port)
        with pytest.raises(SettingsError, match=f"cannot listen on 127.0.0.1:{port}") as raised:
            await serve(unreachable_feed(), settings, SystemClock(), asyncio.Event())
    assert raised.value.key == "extender.port"
    assert "the port is in use: set extender.port to another port" in str(raised.value)


async def test_a_foreign_address_is_not_blamed_on_the_port() -> None:
    settings = ExtenderSettings(host="192.0.2.1", port=0)
    with pytest.raises(SettingsError, match=r"set extender\.host to an address of this") as raised:
        await serve(unreachable_feed(), settings, SystemClock(), asyncio.Event())
    assert raised.value.key == "extender.host"


async def test_a_feed_that_fails_ends_the_service(ready: Feed, die: asyncio.Event) -> None:
    die.set()
    serving, _ = await started(asyncio.Event(), ready)
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        await asyncio.wait_for(serving, 60)
