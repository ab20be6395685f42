"""The local socket serves the last minute, and no client can block it."""

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
from node_exporter.collection import NODE, SYSTEM, Collection, ContainerGrowth, Entity, Usage
from node_exporter.kernel.parse_files import Pressure, PressureLine, Throttling
from node_exporter.live_socket import CLIENTS_MAX, LiveServer
from pipeline.errors import SettingsError, UsageError
from tests.processes import until

START = 1_700_000_000_000


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


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
    server = LiveServer(tmp_path / "exporter.sock", "n1")
    await server.start()
    yield server
    await server.stop()


def path_of(server: LiveServer) -> str:
    return str(server.path)


async def send_requests(server: LiveServer, *requests: bytes) -> list[Any]:
    reader, writer = await asyncio.open_unix_connection(path_of(server), limit=1 << 22)
    writer.writelines(requests)
    writer.write_eof()
    response = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    return [json.loads(line) for line in response.splitlines()]


async def wait_for_disconnects(server: LiveServer) -> None:
    deadline = time.monotonic() + 60
    while clients := set(server.clients):
        assert time.monotonic() < deadline
        await asyncio.wait(clients, timeout=1)


async def test_last_seconds_are_served_oldest_first(server: LiveServer) -> None:
    for second in range(100):
        server.add(collection(second))
    *lines, last = await send_requests(server, b'{"seconds": 10}\n')
    assert [line["time_ms"] for line in lines] == [START + s * 1000 for s in range(90, 100)]
    assert last == {"collections": 10}
    assert (lines[0]["node"], lines[0]["system"]) == ("n1", {"cpu_cores": 0.25, "memory_bytes": 3})
    assert [usage["id"] for usage in lines[0]["usages"]] == ["", "pod-0", "pod-1"]
    assert lines[0]["usages"][1]["cpu_cores"] == 0.5
    assert lines[0]["usages"][1]["memory_with_hot_page_cache_bytes"] is None
    all_lines = await send_requests(server, b'{"seconds": 1e9}\n')
    assert len(all_lines) == live_socket.RETENTION_SECONDS + 1  # at most a minute is retained


async def test_pressure_and_containers_are_served_where_they_were_read(
    server: LiveServer,
) -> None:
    levels = tuple(
        Pressure(PressureLine(float(i), 0.0, 0.0, 0), PressureLine(i / 2, 0.0, 0.0, 0))
        for i in (3, 2, 1)
    )
    pod = Usage(
        Entity("pod", "a", "Burstable"), 5 * 10**8, 1.0, 1, 2, None, pressure=levels,
        containers={
            "c1": ContainerGrowth(25 * 10**7, 1.0, Throttling(10, 4, 10**6)),
            "c2": ContainerGrowth(None, None, None),
        },
    )  # fmt: skip
    server.add(Collection(START, (pod,), None))
    server.add(collection(1, pods=1))
    before, after, _ = await send_requests(server, b'{"seconds": 10}\n')
    (served,) = before["usages"]
    assert served["cpu_pressure"] == {"some_percent": 3.0, "full_percent": 1.5}
    assert served["memory_pressure"] == {"some_percent": 2.0, "full_percent": 1.0}
    assert served["containers"] == [
        {"id": "c1", "cpu_cores": 0.25, "periods": 10, "throttled_periods": 4},
        {"id": "c2", "cpu_cores": None, "periods": None, "throttled_periods": None},
    ]
    unread = after["usages"][1]
    assert [unread[name] for name in ("cpu_pressure", "memory_pressure", "containers")] == [
        None
    ] * 3


async def test_client_may_repeat_a_request_and_send_it_before_the_first_collection(
    server: LiveServer,
) -> None:
    responses = await send_requests(server, b'{"seconds": 1}\n', b'{"seconds": 2}\n')
    assert responses == [{"collections": 0}] * 2


async def test_clock_set_back_discards_earlier_collections(server: LiveServer) -> None:
    for second in (50, 51, 10, 11):
        server.add(collection(second))
    *lines, _ = await send_requests(server, b'{"seconds": 60}\n')
    assert [line["time_ms"] - START for line in lines] == [10_000, 11_000]


@pytest.mark.parametrize(
    "line",
    [b"garbage\n", b"\xff\xfe\n", b"[]\n", b'{"seconds": "x"}\n', b"{}\n",
     b'{"seconds": 1, "more": 2}\n', b"x" * 100_000, b'{"seconds": 1', b"[" * 900 + b"\n"],
)  # fmt: skip
async def test_invalid_request_gets_an_error_and_the_next_client_a_response(
    server: LiveServer, line: bytes
) -> None:
    server.add(collection(1))
    try:
        response = await send_requests(server, line)
    except ConnectionError:  # the server answered before the request was complete
        response = [{"error": ""}]
    assert list(response[-1]) == ["error"]
    assert len(await send_requests(server, b'{"seconds": 1}\n')) == 2


async def test_clients_that_never_read_are_disconnected(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_socket, "WRITE_TIMEOUT_SECONDS", 1.0)
    for second in range(60):
        server.add(collection(second, pods=110))
    idle_clients = []
    for _ in range(8):
        client = socket.socket(socket.AF_UNIX)
        client.connect(path_of(server))
        client.sendall(b'{"seconds": 60}\n' * 30)
        idle_clients.append(client)
    # Idle clients do not delay others.
    assert len(await send_requests(server, b'{"seconds": 60}\n')) == 61
    await wait_for_disconnects(server)
    for client in idle_clients:
        client.close()


async def test_client_beyond_the_limit_gets_an_error(server: LiveServer) -> None:
    connections = [await asyncio.open_unix_connection(path_of(server)) for _ in range(CLIENTS_MAX)]
    await until(lambda: len(server.clients) == CLIENTS_MAX)
    (response,) = await send_requests(server)
    assert "clients" in response["error"]
    for _, writer in connections:
        writer.close()
    await wait_for_disconnects(server)
    assert await send_requests(server, b'{"seconds": 1}\n') == [{"collections": 0}]


async def test_many_clients_are_served_at_once(server: LiveServer) -> None:
    for second in range(60):
        server.add(collection(second, pods=110))
    responses = await asyncio.gather(
        *(send_requests(server, b'{"seconds": 60}\n') for _ in range(20))
    )
    assert {len(response) for response in responses} == {61}


async def test_socket_is_accessible_to_owner_and_group_only(server: LiveServer) -> None:
    status = server.path.stat()
    assert stat.S_ISSOCK(status.st_mode)
    assert stat.S_IMODE(status.st_mode) == 0o660


async def test_stale_socket_is_replaced_and_active_socket_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "exporter.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    first = LiveServer(path, "n1")
    await first.start()
    with pytest.raises(UsageError, match="another exporter"):
        await LiveServer(path, "n1").start()
    assert await send_requests(first, b'{"seconds": 1}\n') == [{"collections": 0}]
    await first.stop()
    assert not path.exists()


async def test_socket_with_unknown_state_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "exporter.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:  # refuses with EPROTOTYPE
        other.bind(str(path))
        descriptors = open_descriptors()
        # `raised` holds the frame of `start`: garbage collection must not close its socket.
        with pytest.raises(UsageError, match="may be in use") as raised:
            await LiveServer(path, "n1").start()
        assert open_descriptors() == descriptors, raised
        assert path.is_socket()


async def test_socket_created_during_the_check_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "exporter.sock"
    first = LiveServer(path, "n1")
    await first.start()
    monkeypatch.setattr(live_socket, "remove_stale_socket", lambda _: None)
    with pytest.raises(SettingsError, match="in use"):
        await LiveServer(path, "n1").start()
    assert await send_requests(first, b'{"seconds": 1}\n') == [{"collections": 0}]
    await first.stop()


async def test_file_that_is_not_a_socket_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("x")
    with pytest.raises(SettingsError, match="not a socket"):
        await LiveServer(path, "n1").start()
    assert path.read_text() == "x"
    with pytest.raises(SettingsError, match=r"exporter\.socket_path"):
        await LiveServer(path / "below" / "x.sock", "n1").start()
    with pytest.raises(SettingsError, match="cannot listen"):
        await LiveServer(tmp_path / ("long" * 40), "n1").start()


async def test_socket_of_a_newer_exporter_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "exporter.sock"
    first = LiveServer(path, "n1")
    await first.start()
    path.unlink()
    second = LiveServer(path, "n1")
    await second.start()
    await first.stop()
    assert await send_requests(second, b'{"seconds": 1}\n') == [{"collections": 0}]
    await second.stop()


async def test_a_missing_folder_of_a_given_socket_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file or directory"):
        await LiveServer(tmp_path / "mistyped" / "exporter.sock", "n1").start()
    assert not await asyncio.to_thread((tmp_path / "mistyped").exists)


@pytest.mark.parametrize("turns", range(10))
async def test_it_stops_at_once_while_a_request_arrives(tmp_path: Path, turns: int) -> None:
    server = LiveServer(tmp_path / "exporter.sock", "n1")
    await server.start()
    reader, writer = await asyncio.open_unix_connection(path_of(server))
    writer.write(b'{"seconds": 1}\n')
    assert await asyncio.wait_for(reader.readline(), 60)
    writer.write(b'{"seconds": 1}\n')
    for _ in range(turns):
        await asyncio.sleep(0)
    began = time.monotonic()
    await server.stop()
    assert time.monotonic() - began < 3
    writer.close()
