"""The last seconds on a local socket: newline-delimited JSON, for the node actuator and for people.

A request is one line, `{"seconds": 10}`; the answer is a line per collection, oldest first, and a
last line `{"collections": n}`. An error is one line `{"error": "..."}`, after which the connection
ends. Whoever sends rubbish, sends without end or does not read loses the connection, and nobody
else notices: what waits for one client is bounded by one line and one time-out.
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
from pipeline.errors import SettingsError, UsageError
from pipeline.logs import get_logger
from pipeline.tasks import cancel_tasks

KEPT_SECONDS: Final = 60
CLIENTS_MAX: Final = 32
_REQUEST_BYTES_MAX: Final = 1024
_WRITE_SECONDS: Final = 5.0
_IDLE_SECONDS: Final = 300.0
_MODE: Final = 0o660

log = get_logger(__name__)


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a client may ask: the collections of the last `seconds`."""

    seconds: float


class LiveServer:
    """Keeps the last collections and serves them at `path`."""

    def __init__(self, path: Path, node: str) -> None:
        self._path = path
        self._node = node
        self._collections: deque[Collection] = deque()
        self._clients: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._inode: tuple[int, int] | None = None

    def add(self, collection: Collection) -> None:
        """Keep one collection, and forget those older than a minute."""
        self._collections.append(collection)
        while len(self._collections) > 1 and not (
            0 <= collection.at_ms - self._collections[0].at_ms < KEPT_SECONDS * 1000
        ):
            self._collections.popleft()

    async def start(self) -> None:
        """Listen. A socket that a dead exporter has left is replaced.

        Raises `UsageError` if another exporter listens there, or may do so, `SettingsError` if the
        path cannot be used.
        """
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            _make_room(self._path)
            before = os.umask(0o777 & ~_MODE)  # never open to others, not for a moment
            try:
                # Not left to asyncio, which removes whatever socket lies at the path.
                listening.bind(str(self._path))
            finally:
                os.umask(before)
            status = self._path.stat()
            self._server = await asyncio.start_unix_server(
                self._accept, sock=listening, limit=_REQUEST_BYTES_MAX, backlog=CLIENTS_MAX
            )
        except OSError as error:
            listening.close()
            raise SettingsError(
                f"cannot listen on {self._path}: {error.strerror or error}",
                key="exporter.socket_path",
                hint="run as root, or set exporter.socket_path to a path that you may write",
            ) from error
        self._inode = (status.st_dev, status.st_ino)

    async def stop(self) -> None:
        """End all connections and take the socket away, unless it is another's by now."""
        if self._server is None:
            return
        self._server.close()
        await cancel_tasks(*self._clients)
        with suppress(FileNotFoundError):
            status = self._path.stat()
            if (status.st_dev, status.st_ino) == self._inode:
                self._path.unlink()
        self._server = None

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._clients) >= CLIENTS_MAX:
            exporter_metrics.ERRORS.labels("socket").inc()
            writer.write(_line({"error": f"{CLIENTS_MAX} clients are connected already"}))
            writer.close()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._clients.add(task)
        exporter_metrics.SOCKET_CLIENTS.set(len(self._clients))
        task.add_done_callback(self._left)

    def _left(self, task: asyncio.Task[None]) -> None:
        self._clients.discard(task)
        exporter_metrics.SOCKET_CLIENTS.set(len(self._clients))
        if not task.cancelled() and (error := task.exception()) is not None:
            exporter_metrics.ERRORS.labels("socket").inc()
            log.debug("a client of the socket was cut off", why=error)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(high=0)  # drain() waits until the client has read
        try:
            while line := await asyncio.wait_for(reader.readline(), _IDLE_SECONDS):
                request = msgspec.json.decode(line, type=Request)
                await self._answer(request, writer)
        except msgspec.DecodeError as error:
            await _write(writer, {"error": f'{error}; ask {{"seconds": 10}}'})
        except ValueError:  # readline() found no end within its limit
            await _write(writer, {"error": f"a request has at most {_REQUEST_BYTES_MAX} bytes"})
        except (TimeoutError, ConnectionError) as error:
            log.debug("a client of the socket was cut off", why=error)
        finally:
            # Not close(): that would wait for a client that never reads.
            if writer.transport.get_write_buffer_size():
                writer.transport.abort()
            writer.close()

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> None:
        collections = list(self._collections)
        newest = collections[-1].at_ms if collections else 0
        wanted = [c for c in collections if newest - c.at_ms < request.seconds * 1000]
        for collection in wanted:
            await _write(writer, _as_record(collection, self._node))
        await _write(writer, {"collections": len(wanted)})


async def _write(writer: asyncio.StreamWriter, record: dict[str, Any]) -> None:
    writer.write(_line(record))
    await asyncio.wait_for(writer.drain(), _WRITE_SECONDS)


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
        "containers": _as_containers(usage),
    }


def _as_containers(usage: Usage) -> list[dict[str, Any]] | None:
    if usage.containers is None:
        return None
    return [
        {"id": id, "periods": grown.periods, "throttled_periods": grown.throttled_periods}
        for id, grown in usage.containers.items()
    ]


def _make_room(path: Path) -> None:
    """Remove a socket that nobody listens on; refuse to touch anything else."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise SettingsError(
            f"{path} is there and is no socket",
            key="exporter.socket_path",
            hint="remove it, or set exporter.socket_path to another path",
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(str(path))
        except BlockingIOError:
            pass  # its backlog is full: somebody is there
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except OSError as error:  # such as another user's: whether he listens cannot be seen
            raise UsageError(
                f"{path} is a socket that may be in use: {error.strerror or error}",
                hint="remove it, or give this exporter another exporter.socket_path",
            ) from error
    raise UsageError(
        f"another exporter listens on {path}",
        hint="stop it, or give this one another exporter.socket_path",
    )
