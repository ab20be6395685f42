"""Connections that a client opens and does not use: bounded in time, in number, and in the log."""

import asyncio
import errno
import logging
import resource
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from pipeline.extender.service import METRICS
from pipeline.logs import RateLimit
from pipeline.open_files import raise_file_limit
from pipeline.settings import ExtenderSettings
from tests.extender.conftest import running
from tests.metric_values import value_of

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
HEAD = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"


@asynccontextmanager
async def connected(
    port: int, count: int, sends: bytes = b"", address: str = "127.0.0.1"
) -> AsyncIterator[list[Connection]]:
    """Connections from an address of this machine that have sent some bytes."""
    async with AsyncExitStack() as stack:
        connections = []
        for _ in range(count):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, local_addr=(address, 0)
            )
            stack.callback(writer.close)
            writer.write(sends)
            connections.append((reader, writer))
        yield connections


async def is_closed(connection: Connection, seconds: float) -> bool:
    """Whether the service closes the connection within these seconds."""
    try:
        return await asyncio.wait_for(connection[0].read(1), seconds) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


async def are_closed(connections: list[Connection], seconds: float = 60.0) -> list[bool]:
    return await asyncio.gather(*(is_closed(each, seconds) for each in connections))


async def is_answered(connection: Connection) -> bool:
    reader, writer = connection
    writer.write(HEAD + b"\r\n")
    try:
        return (await asyncio.wait_for(reader.readline(), 60)).startswith(b"HTTP/1.1 200")
    except ConnectionError:
        return False


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[], list[tuple[str, dict[str, Any]]]]:
    """The messages and fields of warnings, without those of the feed."""
    caplog.set_level(logging.WARNING)
    caplog.handler.addFilter(RateLimit())
    return lambda: [
        (record.message, record.fields)  # type: ignore[attr-defined]
        for record in caplog.records
        if "connection" in record.message
    ]


async def test_connections_with_unfinished_headers_are_closed(
    monkeypatch: pytest.MonkeyPatch, logged: Any
) -> None:
    monkeypatch.setattr("pipeline.http_server.limits.HEAD_TIMEOUT_SECONDS", 1.5, raising=False)
    async with running() as port:
        async with connected(port, 250, HEAD) as slow, connected(port, 5) as silent:
            closed = [is_closed(each, 60.0) for each in (*slow, *silent)]
            assert await asyncio.gather(*closed) == [True] * 255
        # Its head arrived in time; an answered connection may stay open for the next request.
        async with connected(port, 1) as good:
            assert await is_answered(good[0])
            reader, _ = good[0]
            await reader.readuntil(b"}")
            assert not await is_closed(good[0], 2.0)
            assert await is_answered(good[0])
    ((message, fields),) = logged()
    assert message == "connection closed"
    assert fields == {"reason": "no request within 1.5 s", "remote": "127.0.0.1"}


async def test_one_address_cannot_take_all_connections(logged: Any) -> None:
    closed = METRICS.closed.labels("address")
    before = value_of(closed)
    settings = ExtenderSettings(host="127.0.0.1", port=0, connections_per_address=20)
    async with running(settings=settings) as port:
        async with connected(port, 30, HEAD) as many:
            assert await are_closed(many[20:]) == [True] * 10
            assert await are_closed(many[:20], 0.2) == [False] * 20
            async with connected(port, 1, address="127.0.0.2") as other:
                assert await is_answered(other[0])
        await asyncio.sleep(0.1)
        async with connected(port, 20) as again:
            assert all(await asyncio.gather(*map(is_answered, again)))
    assert value_of(closed) == before + 10
    ((message, fields),) = logged()
    assert (message, fields["remote"]) == ("connection closed", "127.0.0.1")
    assert "extender.connections_per_address" in fields["reason"]


async def test_all_connections_together_leave_files_for_the_rest(
    monkeypatch: pytest.MonkeyPatch, logged: Any
) -> None:
    monkeypatch.setattr("pipeline.extender.service.raise_file_limit", lambda: 300)
    async with running() as port, connected(port, 60, HEAD) as many:
        assert await are_closed(many[44:]) == [True] * 16
        assert await are_closed(many[:44], 0.2) == [False] * 44
    ((_, fields),) = logged()
    assert "open files" in fields["reason"]


async def test_running_out_of_files_is_logged_once_and_passes(
    monkeypatch: pytest.MonkeyPatch, logged: Any
) -> None:
    """With a fake accept: a real shortage would also stop the test's own connections."""
    monkeypatch.setattr("pipeline.http_server.limits.ACCEPT_PAUSE_SECONDS", 0.01)
    loop = asyncio.get_running_loop()
    accept, failures = loop.sock_accept, iter(range(5))

    async def failing(listening: Any) -> Any:
        if next(failures, None) is not None:
            raise OSError(errno.EMFILE, "Too many open files")
        return await accept(listening)

    monkeypatch.setattr(loop, "sock_accept", failing)
    async with running() as port, connected(port, 1) as one:
        assert await is_answered(one[0])
    ((message, fields),) = logged()
    assert (message, fields["reason"]) == ("connection not accepted", "Too many open files")


def test_the_soft_limit_of_open_files_is_raised_to_the_hard_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        raised = raise_file_limit()
        assert raised == resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 1024
        assert raised == min(hard if hard > 0 else 65_536, 65_536)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
