"""Find free ports, and identify the broker on a port, with plain sockets."""

import os
import random
import re
import socket
import ssl
import struct
from collections import deque
from pathlib import Path
from typing import BinaryIO

from pipeline.errors import LocalKafkaError

HOST = "127.0.0.1"
PORT_TAKEN_IN_LOG = re.compile("address already in use|BindException|failed to bind", re.IGNORECASE)
"""What servers log if another process has taken their port."""
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_MOST_KEPT = 256
_kept: deque[int] = deque()

_METADATA = 3
_VERSION = 1  # the oldest with racks
_CORRELATION_ID = 7


def port_range(ephemeral: Path = _EPHEMERAL) -> range:
    """Return the ports for servers: below the kernel's ephemeral ports (from 32768 by default).

    A client that reconnects in a loop to a stopped broker on an ephemeral port could get this port
    as its own, connect to itself and occupy it.
    """
    try:
        first_ephemeral = int(ephemeral.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        first_ephemeral = 32768
    stop = min(first_ephemeral, 32768)
    # If nearly all ports are ephemeral, there is no such range.
    return range(max(1024, stop - 12768), stop) if stop > 2048 else range(20000, 32768)


def is_free(port: int) -> bool:
    """Return whether a server can listen on this port of 127.0.0.1 now."""
    with socket.socket() as server:
        # As Java does, so that closed connections do not block the port.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind((HOST, port))
            server.listen(1)
        except OSError:
            return False
    return True


def free_port(excluded_port: int | None = None) -> int:
    """Return a free port, which no process on this machine gets from this function while this one
    runs and asks for less than 256 others: until a server listens, or while it restarts. Raises
    `LocalKafkaError` if no port is free."""
    ports = port_range()
    for port in random.sample(ports, len(ports)):
        if port != excluded_port and _keep(port):
            return port
    raise LocalKafkaError(
        f"no free port between {ports.start} and {ports.stop - 1} on {HOST}",
        hint="list used ports with `ss -ltnp`, or give one with --port",
    )


def _keep(port: int) -> bool:
    """Bind a port to a socket that never listens, unless it is bound; return whether it was not."""
    with socket.socket() as holder:
        try:
            holder.bind((HOST, port))
        except OSError:
            return False
        # From now on servers that say so, too, as nearly all do, may bind it.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _kept.append(holder.detach())
    if len(_kept) > _MOST_KEPT:
        os.close(_kept.popleft())
    return True


def broker_racks(port: int, timeout_seconds: float = 1.0) -> list[str | None]:
    """Request metadata, and return the rack of each broker; empty without an answer."""
    request = struct.pack(">hhihi", _METADATA, _VERSION, _CORRELATION_ID, -1, 0)
    try:
        with (
            socket.create_connection((HOST, port), timeout_seconds) as connection,
            connection.makefile("rb") as answer,
        ):
            connection.sendall(struct.pack(">i", len(request)) + request)
            return _read_racks(answer)
    except (OSError, UnicodeDecodeError, struct.error):
        return []


def has_certificate_of(port: int, ca_file: str, timeout_seconds: float = 1.0) -> bool:
    """Return whether a server on this port shows a valid certificate that this CA has signed."""
    try:
        context = ssl.create_default_context(cafile=ca_file)
        with (
            socket.create_connection((HOST, port), timeout_seconds) as connection,
            context.wrap_socket(connection, server_hostname=HOST),
        ):
            return True
    except OSError:
        return False


def _read_racks(answer: BinaryIO) -> list[str | None]:
    _, correlation_id, brokers = struct.unpack(">iii", answer.read(12))
    racks = []
    for _ in range(brokers if correlation_id == _CORRELATION_ID else 0):
        answer.read(4)  # node id
        _read_string(answer)  # host
        answer.read(4)  # port
        racks.append(_read_string(answer))
    return racks


def _read_string(answer: BinaryIO) -> str | None:
    (length,) = struct.unpack(">h", answer.read(2))
    return None if length < 0 else answer.read(length).decode()
