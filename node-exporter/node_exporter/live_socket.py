"""Serve the last minute of collections on a local socket as newline-delimited JSON.

A request is one line, `{"seconds": 10}`. The response is one line per collection, oldest first, and
a final line `{"collections": n}`. An error is one line `{"error": "..."}`, after which the server
closes the connection.

A client that sends an invalid or endless request, or does not read, loses its connection without
effect on others: the server buffers at most one line per client and limits each write in time.
"""

import asyncio
import os
import socket
import stat
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from node_exporter import exporter_metrics
from node_exporter.collection import Collection, Usage
from node_exporter.kernel.cgroup import PRESSURE_RESOURCES
from pipeline.errors import SettingsError, SpringtideError, UsageError
from pipeline.logs import get_logger
from pipeline.settings import ExporterSettings
from pipeline.tasks import cancel_tasks

RETENTION_SECONDS: Final = 60
CLIENTS_MAX: Final = 32
_REQUEST_BYTES_MAX: Final = 1024
WRITE_TIMEOUT_SECONDS: Final = 5.0
_IDLE_TIMEOUT_SECONDS: Final = 300.0
_MODE: Final = 0o660

log = get_logger(__name__)


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for the collections of the last `seconds`."""

    seconds: float


class _Kept:
    """A collection, which is encoded when it is asked for first: requests overlap."""

    __slots__ = ("_content", "at_ms")

    def __init__(self, at_ms: int, collection: Collection) -> None:
        self.at_ms = at_ms
        self._content: Collection | bytes = collection

    def line(self, node: str) -> bytes:
        if not isinstance(self._content, bytes):
            self._content = _line(_as_record(self._content, node))
        return self._content


class LiveServer:
    """Server for the last collections on a socket at `path`."""

    def __init__(self, path: Path, node: str) -> None:
        self.path = path
        self._node = node
        self._collections: deque[_Kept] = deque()
        self.clients: set[asyncio.Task[None]] = set()
        """Tasks of the connected clients."""
        self._server: asyncio.Server | None = None
        self._inode: tuple[int, int] | None = None

    def add(self, collection: Collection) -> None:
        """Add one collection and discard collections older than a minute."""
        self._collections.append(_Kept(collection.at_ms, collection))
        while len(self._collections) > 1 and not (
            0 <= collection.at_ms - self._collections[0].at_ms < RETENTION_SECONDS * 1000
        ):
            self._collections.popleft()

    async def start(self) -> None:
        """Start to listen; the stale socket of an exporter that has died is replaced.

        Raises `UsageError` if another exporter listens on the path, or may do so, `SettingsError`
        if the path cannot be used.
        """
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if self.path == ExporterSettings().socket_path:
                # Of the default path only: a mistyped one should not create directories.
                self.path.parent.mkdir(exist_ok=True)
            remove_stale_socket(self.path)
            umask = os.umask(0o777 & ~_MODE)  # other users must not connect at any moment
            try:
                # asyncio would remove any socket at the path.
                listening.bind(str(self.path))
            finally:
                os.umask(umask)
            status = self.path.stat()
            self._server = await asyncio.start_unix_server(
                self._accept, sock=listening, limit=_REQUEST_BYTES_MAX, backlog=CLIENTS_MAX
            )
        except SpringtideError:
            listening.close()
            raise
        except OSError as error:
            listening.close()
            raise SettingsError(
                f"cannot listen on {self.path}: {error.strerror or error}",
                key="exporter.socket_path",
                hint="run as root, or set exporter.socket_path to a path in an existing, writable "
                "directory",
            ) from error
        self._inode = (status.st_dev, status.st_ino)

    async def stop(self) -> None:
        """Close all connections; remove the socket unless another exporter has replaced it."""
        if self._server is None:
            return
        self._server.close()
        await cancel_tasks(*self.clients)
        with suppress(FileNotFoundError):
            status = self.path.stat()
            if (status.st_dev, status.st_ino) == self._inode:
                self.path.unlink()
        self._server = None

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self.clients) >= CLIENTS_MAX:
            exporter_metrics.ERRORS.labels("socket").inc()
            writer.write(_line({"error": f"{CLIENTS_MAX} clients are already connected"}))
            writer.close()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self.clients.add(task)
        exporter_metrics.SOCKET_CLIENTS.set(len(self.clients))
        task.add_done_callback(self._on_disconnect)

    def _on_disconnect(self, task: asyncio.Task[None]) -> None:
        self.clients.discard(task)
        exporter_metrics.SOCKET_CLIENTS.set(len(self.clients))
        if not task.cancelled() and (error := task.exception()) is not None:
            exporter_metrics.ERRORS.labels("socket").inc()
            log.debug("client of the socket disconnected", why=error)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(high=0)  # drain() waits until the client has read
        try:
            while line := await _next_line(reader):
                request = msgspec.json.decode(line, type=Request)
                await self._respond(request, writer)
        except msgspec.DecodeError as error:
            await _write(writer, _line({"error": f'{error}; send {{"seconds": 10}}'}))
        except ValueError:  # readline() reached its limit before the end of the line
            limit = f"a request has at most {_REQUEST_BYTES_MAX} bytes"
            await _write(writer, _line({"error": limit}))
        except (TimeoutError, ConnectionError) as error:
            log.debug("client of the socket disconnected", why=error)
        finally:
            # close() alone would wait for a client that never reads.
            if writer.transport.get_write_buffer_size():
                writer.transport.abort()
            writer.close()

    async def _respond(self, request: Request, writer: asyncio.StreamWriter) -> None:
        collections = list(self._collections)
        newest = collections[-1].at_ms if collections else 0
        selected = [c for c in collections if newest - c.at_ms < request.seconds * 1000]
        for collection in selected:
            await _write(writer, collection.line(self._node))
        await _write(writer, _line({"collections": len(selected)}))


async def _next_line(reader: asyncio.StreamReader) -> bytes:
    # `asyncio.wait_for` of Python 3.11 may swallow a cancellation.
    async with asyncio.timeout(_IDLE_TIMEOUT_SECONDS):
        return await reader.readline()


async def _write(writer: asyncio.StreamWriter, line: bytes) -> None:
    writer.write(line)
    async with asyncio.timeout(WRITE_TIMEOUT_SECONDS):
        await writer.drain()


def _line(record: dict[str, Any]) -> bytes:
    return msgspec.json.encode(record) + b"\n"


def _as_record(collection: Collection, node: str) -> dict[str, Any]:
    system = collection.system
    return {
        "node": node,
        "time_ms": collection.at_ms,
        "system": {
            "cpu_cores": system.cpu_cores if system else None,
            "memory_bytes": system.memory_bytes if system else None,
        },
        "usages": [_as_usage(usage) for usage in collection.usages],
    }


def _as_usage(usage: Usage) -> dict[str, Any]:
    throttling = usage.throttling
    return {
        "kind": usage.entity.kind,
        "id": usage.entity.id,
        "qos": usage.entity.qos,
        "cpu_cores": usage.cpu_cores,
        "elapsed_seconds": usage.elapsed_seconds,
        "memory_bytes": usage.memory_bytes,
        "memory_with_page_cache_bytes": usage.memory_with_page_cache_bytes,
        "memory_with_hot_page_cache_bytes": usage.memory_with_hot_page_cache_bytes,
        "periods": throttling.periods if throttling else None,
        "throttled_periods": throttling.throttled_periods if throttling else None,
        "cpu_pressure": _as_pressure(usage, PRESSURE_RESOURCES.index("cpu")),
        "memory_pressure": _as_pressure(usage, PRESSURE_RESOURCES.index("memory")),
        "containers": _as_containers(usage),
    }


def _as_pressure(usage: Usage, resource: int) -> dict[str, float | None] | None:
    """Share of the last ten seconds in which some or all tasks waited, in percent."""
    if usage.pressure is None:
        return None
    some, full = usage.pressure[resource]
    return {"some_percent": some.avg10, "full_percent": None if full is None else full.avg10}


def _as_containers(usage: Usage) -> list[dict[str, Any]] | None:
    if usage.containers is None:
        return None
    return [
        {
            "id": id,
            "cpu_cores": container.cpu_cores,
            "periods": container.throttling.periods if container.throttling else None,
            "throttled_periods": (
                container.throttling.throttled_periods if container.throttling else None
            ),
        }
        for id, container in usage.containers.items()
    ]


def remove_stale_socket(path: Path) -> None:
    """Remove a socket without a listener; refuse to remove anything else."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise SettingsError(
            f"{path} exists and is not a socket",
            key="exporter.socket_path",
            hint="remove it, or set exporter.socket_path to another path",
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(str(path))
        except BlockingIOError:
            pass  # the backlog is full, so a server listens
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except OSError as error:  # for example a socket of another user
            raise UsageError(
                f"{path} is a socket that may be in use: {error.strerror or error}",
                hint="remove it, or set another exporter.socket_path",
            ) from error
    raise UsageError(
        f"another exporter listens on {path}", hint="stop it, or set another exporter.socket_path"
    )
