"""The local socket serves the last seconds, and no client can do harm to it."""

import asyncio
import json
import socket
import stat
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from node_exporter import live_socket
from node_exporter.collection import NODE, SYSTEM, Collection, Entity, Usage
from node_exporter.live_socket import CLIENTS_MAX, LiveServer
from pipeline.errors import SettingsError, UsageError

START = 1_700_000_000_000


def collection(second: int, pods: int = 2) -> Collection:
    usages = [Usage(NODE, 10**9, 1.0, 5, 6, None)]
    usages += [
        Usage(Entity("pod", f"pod-{i}", "Burstable"), 5 * 10**8, 1.0, 1, 2, None)
        for i in range(pods)
    ]
    system = Usage(SYSTEM, 25 * 10**7, 1.0, 3, None, None)
    return Collection(START + second * 1000, tuple(usages), None, system)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[LiveServer]:
    server = LiveServer(tmp_path / "run/exporter.sock", "n1")
    await server.start()
    yield server
    await server.stop()


def path_of(server: LiveServer) -> str:
    return str(server.path)


async def ask(server: LiveServer, *requests: bytes) -> list[Any]:
    reader, writer = await asyncio.open_unix_connection(path_of(server), limit=1 << 22)
    writer.writelines(requests)
    writer.write_eof()
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    return [json.loads(line) for line in answer.splitlines()]


async def nobody_left(server: LiveServer) -> None:
    deadline = time.monotonic() + 5
    while clients := set(server._clients):
        assert time.monotonic() < deadline
        await asyncio.wait(clients, timeout=1)


async def test_the_last_seconds_are_served_oldest_first(server: LiveServer) -> None:
    for second in range(100):
        server.add(collection(second))
    *lines, last = await ask(server, b'{"seconds": 10}\n')
    assert [line["time_ms"] for line in lines] == [START + s * 1000 for s in range(90, 100)]
    assert last == {"collections": 10}
    assert lines[0]["node"] == "n1"
    assert lines[0]["system"] == {"cpu_cores": 0.25, "memory_bytes": 3}
    assert [usage["id"] for usage in lines[0]["usages"]] == ["", "pod-0", "pod-1"]
    assert lines[0]["usages"][1]["cpu_cores"] == 0.5
    assert lines[0]["usages"][1]["memory_with_hot_page_cache_bytes"] is None
    everything = await ask(server, b'{"seconds": 1e9}\n')
    assert len(everything) == live_socket.RETENTION_SECONDS + 1  # a minute is kept, no more


async def test_a_client_may_ask_again_and_before_there_is_anything(server: LiveServer) -> None:
    assert await ask(server, b'{"seconds": 1}\n', b'{"seconds": 2}\n') == [{"collections": 0}] * 2


async def test_a_clock_set_back_leaves_only_what_was_read_since(server: LiveServer) -> None:
    for second in (50, 51, 10, 11):
        server.add(collection(second))
    *lines, _ = await ask(server, b'{"seconds": 60}\n')
    assert [line["time_ms"] - START for line in lines] == [10_000, 11_000]


@pytest.mark.parametrize(
    "request_",
    [
        b"garbage\n",
        b"\xff\xfe\n",
        b"[]\n",
        b'{"seconds": "x"}\n',
        b"{}\n",
        b'{"seconds": 1, "more": 2}\n',
        b"x" * 100_000,
        b'{"seconds": 1',
        b"[" * 900 + b"\n",
    ],
)
async def test_rubbish_gets_an_error_and_the_next_client_an_answer(
    server: LiveServer, request_: bytes
) -> None:
    server.add(collection(1))
    try:
        answer = await ask(server, request_)
    except ConnectionError:  # it was still sending when the answer was given
        answer = [{"error": ""}]
    assert list(answer[-1]) == ["error"]
    assert len(await ask(server, b'{"seconds": 1}\n')) == 2


async def test_clients_that_never_read_are_cut_off(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_socket, "_WRITE_TIMEOUT_SECONDS", 0.2)
    for second in range(60):
        server.add(collection(second, pods=110))
    deaf = []
    for _ in range(8):
        client = socket.socket(socket.AF_UNIX)
        client.connect(path_of(server))
        client.sendall(b'{"seconds": 60}\n' * 30)
        deaf.append(client)
    assert len(await ask(server, b'{"seconds": 60}\n')) == 61  # at once, beside them
    await nobody_left(server)
    for client in deaf:
        client.close()


async def test_one_client_too_many_is_told_so(server: LiveServer) -> None:
    crowd = [await asyncio.open_unix_connection(path_of(server)) for _ in range(CLIENTS_MAX)]
    await asyncio.sleep(0.05)
    (answer,) = await ask(server)
    assert "clients" in answer["error"]
    for _, writer in crowd:
        writer.close()
    await nobody_left(server)
    assert await ask(server, b'{"seconds": 1}\n') == [{"collections": 0}]


async def test_many_clients_are_served_at_once(server: LiveServer) -> None:
    for second in range(60):
        server.add(collection(second, pods=110))
    answers = await asyncio.gather(*(ask(server, b'{"seconds": 60}\n') for _ in range(20)))
    assert {len(answer) for answer in answers} == {61}


async def test_the_socket_is_for_owner_and_group(server: LiveServer) -> None:
    status = server.path.stat()
    assert stat.S_ISSOCK(status.st_mode)
    assert stat.S_IMODE(status.st_mode) == 0o660


async def test_a_stale_socket_is_replaced_and_a_living_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "exporter.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    first = LiveServer(path, "n1")
    await first.start()
    with pytest.raises(UsageError, match="another exporter"):
        await LiveServer(path, "n1").start()
    assert await ask(first, b'{"seconds": 1}\n') == [{"collections": 0}]
    await first.stop()
    assert not path.exists()


async def test_a_socket_that_cannot_be_asked_is_not_stolen(tmp_path: Path) -> None:
    path = tmp_path / "exporter.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:  # refuses with EPROTOTYPE
        other.bind(str(path))
        with pytest.raises(UsageError, match="may be in use"):
            await LiveServer(path, "n1").start()
        assert path.is_socket()


async def test_a_socket_made_at_the_last_moment_is_not_stolen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "exporter.sock"
    first = LiveServer(path, "n1")
    await first.start()
    monkeypatch.setattr(live_socket, "_remove_stale_socket", lambda _: None)
    with pytest.raises(SettingsError, match="in use"):
        await LiveServer(path, "n1").start()
    assert await ask(first, b'{"seconds": 1}\n') == [{"collections": 0}]
    await first.stop()


async def test_what_is_no_socket_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("x")
    with pytest.raises(SettingsError, match="not a socket"):
        await LiveServer(path, "n1").start()
    assert path.read_text() == "x"
    with pytest.raises(SettingsError, match=r"exporter\.socket_path"):
        await LiveServer(path / "below" / "x.sock", "n1").start()
    with pytest.raises(SettingsError, match="cannot listen"):
        await LiveServer(tmp_path / ("long" * 40), "n1").start()


async def test_a_socket_that_is_anothers_by_now_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "exporter.sock"
    first = LiveServer(path, "n1")
    await first.start()
    path.unlink()
    second = LiveServer(path, "n1")
    await second.start()
    await first.stop()
    assert await ask(second, b'{"seconds": 1}\n') == [{"collections": 0}]
    await second.stop()
