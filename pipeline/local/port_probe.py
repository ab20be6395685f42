"""Is a port free, and does the broker that we mean answer on it? Plain sockets, no client."""

import random
import socket
import struct
from pathlib import Path

from pipeline.errors import LocalKafkaError

HOST = "127.0.0.1"
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")

_METADATA = 3
_VERSION = 1  # the oldest that names the racks
_CORRELATION_ID = 7


def port_range(ephemeral: Path = _EPHEMERAL) -> range:
    """The ports to choose from: below those that the kernel gives to clients (32768 by default).

    A client that reconnects in a loop to a stopped broker on a port of that range could be given
    the broker's port as its own, connect to itself and hold it.
    """
    try:
        first_ephemeral = int(ephemeral.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        first_ephemeral = 32768
    stop = min(first_ephemeral, 32768)
    # A host that gives nearly all of its ports to clients leaves no such place.
    return range(max(1024, stop - 12768), stop) if stop > 2048 else range(20000, 32768)


def is_free(port: int) -> bool:
    """Whether a server could listen on this port of 127.0.0.1 now."""
    with socket.socket() as server:
        # As Java does: what is left of closed connections must not hinder.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind((HOST, port))
            server.listen(1)
        except OSError:
            return False
    return True


def free_port(other_than: int | None = None) -> int:
    """A port that was free a moment ago; another process may still take it first.

    LocalKafkaError if none of the whole range is.
    """
    ports = port_range()
    for port in random.sample(ports, len(ports)):
        if port != other_than and is_free(port):
            return port
    raise LocalKafkaError(
        f"no free port between {ports.start} and {ports.stop - 1} on {HOST}",
        hint="see who has them: ss -ltnp; or name one with --port",
    )


def answering_racks(port: int, timeout_seconds: float = 1.0) -> list[str | None]:
    """The rack of each live broker, as the answer to a metadata request; empty without one."""
    body = struct.pack(">hhihi", _METADATA, _VERSION, _CORRELATION_ID, -1, 0)
    try:
        with socket.create_connection((HOST, port), timeout_seconds) as connection:
            connection.settimeout(timeout_seconds)
            connection.sendall(struct.pack(">i", len(body)) + body)
            (length,) = struct.unpack(">i", _exactly(connection, 4))
            return _racks(_exactly(connection, length))
    except (OSError, EOFError, struct.error, UnicodeDecodeError):
        return []


def _racks(answer: bytes) -> list[str | None]:
    correlation_id, brokers = struct.unpack_from(">ii", answer)
    if correlation_id != _CORRELATION_ID:
        return []
    at, racks = 8, []
    for _ in range(brokers):
        at += 4  # node id
        _, at = _string(answer, at)
        at += 4  # port
        rack, at = _string(answer, at)
        racks.append(rack)
    return racks


def _string(data: bytes, at: int) -> tuple[str | None, int]:
    (length,) = struct.unpack_from(">h", data, at)
    if length < 0:
        return None, at + 2
    return data[at + 2 : at + 2 + length].decode(), at + 2 + length


def _exactly(connection: socket.socket, length: int) -> bytes:
    received = b""
    while len(received) < length:
        if not (data := connection.recv(min(length - len(received), 65536))):
            raise EOFError
        received += data
    return received
