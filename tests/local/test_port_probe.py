"""Ports and the one request that decides whether a broker is ready."""

import os
import socket
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.errors import LocalKafkaError
from pipeline.local import port_probe
from pipeline.local.port_probe import HOST, broker_racks, free_port, is_free, port_range


def test_free_ports_are_below_the_ephemeral_range() -> None:
    ports = {free_port() for _ in range(50)}
    assert ports <= set(port_range())
    assert len(ports) == 50
    assert all(is_free(port) for port in ports)


def test_a_port_is_kept_for_who_got_it_while_its_server_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = free_port()
    monkeypatch.setattr(port_probe, "port_range", lambda: range(port, port + 1))
    drawing = (
        "from pipeline.local import port_probe\n"
        f"port_probe.port_range = lambda: range({port}, {port + 1})\n"
        "port_probe.free_port()\n"
    )
    for _ in range(2):
        with pytest.raises(LocalKafkaError, match="no free port"):
            free_port()
        other = subprocess.run(
            [sys.executable, "-c", drawing], capture_output=True, text=True, check=False
        )
        assert f"no free port between {port} and {port}" in other.stderr
        socket.create_server((HOST, port)).close()


def test_the_oldest_port_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_probe, "_kept", deque[int]())
    monkeypatch.setattr(port_probe, "_MOST_KEPT", 5)
    first, *others = (free_port() for _ in range(6))
    monkeypatch.setattr(port_probe, "port_range", lambda: range(first, first + 1))
    assert free_port() == first
    monkeypatch.setattr(port_probe, "port_range", lambda: range(others[-1], others[-1] + 1))
    with pytest.raises(LocalKafkaError):
        free_port()
    for descriptor in port_probe._kept:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("setting", "start", "stop"),
    [
        ("32768\t60999\n", 20000, 32768),
        ("15000\t65000\n", 2232, 15000),
        ("10000 65535", 1024, 10000),
        ("49152\t65535\n", 20000, 32768),
        ("1024\t65535\n", 20000, 32768),
        ("", 20000, 32768),
        ("many", 20000, 32768),
    ],
)
def test_port_range_follows_the_kernels_setting(
    tmp_path: Path, setting: str, start: int, stop: int
) -> None:
    (tmp_path / "range").write_text(setting)
    assert port_range(tmp_path / "range") == range(start, stop)
    assert port_range(tmp_path / "nothing") == range(20000, 32768)


def test_used_port_is_not_free() -> None:
    with socket.create_server((HOST, 0)) as server:
        assert not is_free(server.getsockname()[1])


def test_port_with_closed_connections_is_free() -> None:
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection((HOST, port)):
            server.accept()[0].close()
    assert is_free(port)


def answer_with(reply: Callable[[socket.socket], None]) -> int:
    server = socket.create_server((HOST, 0))

    def serve() -> None:
        with server, server.accept()[0] as connection:
            connection.recv(4096)
            reply(connection)

    threading.Thread(target=serve, daemon=True).start()
    return int(server.getsockname()[1])


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def metadata(racks: list[str | None], correlation_id: int = 7) -> bytes:
    body = struct.pack(">ii", correlation_id, len(racks))
    for number, rack in enumerate(racks):
        body += struct.pack(">ih", number, len(HOST)) + HOST.encode() + struct.pack(">i", 9092)
        body += struct.pack(">h", -1 if rack is None else len(rack)) + (rack or "").encode()
    return body + struct.pack(">ii", 1, 0)


def test_racks_of_brokers_are_read() -> None:
    answer = framed(metadata(["local-a", None, "local-c"]))
    assert broker_racks(answer_with(lambda to: to.sendall(answer))) == [
        "local-a", None, "local-c",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\0\0",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        framed(b""),
        framed(metadata(["a"])[:-20]),
        framed(metadata(["a"], correlation_id=8)),
        framed(struct.pack(">ii", 7, 1000)),
    ],
)
def test_invalid_metadata_answer_has_no_racks(answer: bytes) -> None:
    assert broker_racks(answer_with(lambda to: to.sendall(answer))) == []


def test_silent_or_missing_broker_has_no_racks() -> None:
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        assert broker_racks(port, timeout_seconds=0.1) == []
    assert broker_racks(port) == []
