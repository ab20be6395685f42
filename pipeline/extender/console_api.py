"""The console: a read-only web page about the fleet, and the document that its heat map draws.

The files of the page hold no data and are open, like probes: a browser sends no token when it opens
a page. Every figure comes from /v1, under the rules for queries.
"""

import asyncio
import gzip
import hashlib
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from aiohttp import web

from pipeline.clock import Clock
from pipeline.extender import limits
from pipeline.extender.http_responses import error_response, takes_gzip
from pipeline.extender.query_api import require_caught_up
from pipeline.extender.routes import Parameter, Response, Route
from pipeline.processors.arrays import BoolArray, FloatArray
from pipeline.processors.console.fleet_document import (
    EncodedFleet,
    Fleet,
    FleetColumns,
    encode_fleet,
    fleet_document,
)
from pipeline.table import FeedState, Table
from pipeline.table.node_columns import NodeRecords, scalars_of
from pipeline.topics.hot_node_policy import DEFAULT_POOL
from pipeline.topics.resource_amounts import BATCH, MID

_FOLDER: Final = Path(__file__).parent / "console"
_CONTENT_TYPES: Final = {
    ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml",
}  # fmt: skip
_PAGE: Final = "index.html"
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_TAG: Final = Parameter(
    "If-None-Match", "the ETag of the document that the client has", {"type": "string"},
    location="header",
)  # fmt: skip
_COLUMNS: Final = ("usage", "peak", "allocatable")


class _File(NamedTuple):
    """A file of the page: its bytes, the same compressed, their tag, and their type."""

    body: bytes
    compressed: bytes
    etag: str
    content_type: str


class _Reading(NamedTuple):
    """The table at one moment; arrays have a value for each of its rows."""

    names: list[str]
    records: list[NodeRecords]
    columns: dict[str, FloatArray]
    is_fresh: BoolArray


class ConsoleHandler:
    """The routes over one table. Raises `OSError` if a file of the page cannot be read."""

    def __init__(
        self, table: Table, state: FeedState, clock: Clock, stale_after_seconds: float
    ) -> None:
        self._table = table
        self._state = state
        self._clock = clock
        self._stale_after = stale_after_seconds
        self._files = _read_files()
        self._lock = asyncio.Lock()
        self._made_at = -np.inf
        self._made_of: tuple[int, bytes] | None = None
        self._fleet = EncodedFleet(b"", b"", "")

    def routes(self) -> list[Route]:
        """The routes of this handler."""
        file = Parameter("file", "name of the file", {"type": "string"}, "console.js", "path")
        return [
            Route(
                "GET", "/v1/fleet", self.fleet, "All nodes in a compact form, for the console.",
                Fleet, parameters=(_TAG,), errors=(503,),
                others={304: Response("nothing has changed", headers=("ETag",))},
            ),
            Route(
                "GET", "/console", self.page, "The console, a web page about the fleet.",
                aliases=("/console/",), access="console",
            ),
            Route(
                "GET", "/console/{file}", self.file, "A file of the console.", parameters=(file,),
                errors=(404,), access="console",
            ),
        ]  # fmt: skip

    async def page(self, request: web.Request) -> web.Response:
        if request.path.endswith("/"):  # The links of the page are relative, also behind a proxy.
            return web.Response(status=308, headers={"Location": "../console", **_HEADERS})
        return _file_response(request, self._files[_PAGE])

    async def file(self, request: web.Request) -> web.Response:
        name = request.match_info["file"]
        file = self._files.get(name)
        if file is None:
            return error_response(404, f"the console has no file {name[:80]!r}", "open /console")
        return _file_response(request, file)

    async def fleet(self, request: web.Request) -> web.Response:
        require_caught_up(self._state)
        fleet = await self._current()
        file = _File(fleet.body, fleet.compressed, fleet.etag, "application/json")
        return _file_response(request, file)

    async def _current(self) -> EncodedFleet:
        """The document; many clients cause at most one a second."""
        async with self._lock:  # Those who wait for it get the same document.
            now = self._clock.now()
            if 0 <= now - self._made_at < limits.FLEET_SECONDS:
                return self._fleet
            reading = _read(self._table, now, self._stale_after)
            made_of = self._table.version, reading.is_fresh.tobytes()
            if made_of != self._made_of:
                # 10,000 nodes take a fifth of a second; a scheduler must not wait for them.
                self._fleet = await asyncio.to_thread(
                    lambda: encode_fleet(fleet_document(_columns(reading)))
                )
                self._made_of = made_of
            self._made_at = now
            return self._fleet


def _read(table: Table, now: float, stale_after_seconds: float) -> _Reading:
    """Copy the table, for another thread."""
    names, records = table.rows()
    rows = np.arange(len(names))
    wanted = [f"{name}_{unit}" for name in _COLUMNS for unit in ("cpu_cores", "memory_bytes")]
    columns = {name: table[name][rows] for name in ("as_of_seconds", *wanted)}
    return _Reading(names, records, columns, table.fresh(rows, now, stale_after_seconds))


def _columns(reading: _Reading) -> FleetColumns:
    """The columns of the rows that have a node."""
    rows = [row for row, name in enumerate(reading.names) if name]
    records = [reading.records[row] for row in rows]
    offers = np.array(
        [
            [scalars.get(name, np.nan) for name in (*MID, *BATCH)]
            for scalars in map(scalars_of, records)
        ],
        np.float64,
    ).reshape(len(rows), 4)
    cpu = {name: reading.columns[f"{name}_cpu_cores"][rows] * 1000.0 for name in _COLUMNS}
    memory = {name: reading.columns[f"{name}_memory_bytes"][rows] for name in _COLUMNS}
    return FleetColumns(
        names=[reading.names[row] for row in rows],
        pools=[_pool(record) for record in records],
        alerts=[() if record.state is None else record.state.alerts for record in records],
        as_of_seconds=reading.columns["as_of_seconds"][rows],
        is_fresh=reading.is_fresh[rows],
        cpu=cpu | {"mid": offers[:, 0], "batch": offers[:, 2]},
        memory=memory | {"mid": offers[:, 1], "batch": offers[:, 3]},
    )


def _pool(records: NodeRecords) -> str:
    """The node pool that hot-node policies put the node into."""
    policy = records.node.hot_nodes if records.node else None
    return DEFAULT_POOL if policy is None else policy.pool


def _read_files() -> dict[str, _File]:
    files = {}
    for path in sorted(_FOLDER.iterdir()):
        if path.suffix in _CONTENT_TYPES:
            body = path.read_bytes()
            etag = hashlib.sha256(body).hexdigest()[:32]
            kind = _CONTENT_TYPES[path.suffix]
            files[path.name] = _File(body, gzip.compress(body, mtime=0), etag, kind)
    return files


def _file_response(request: web.Request, file: _File) -> web.Response:
    """The file, compressed if the client takes that; 304 if the client has it."""
    # A weak tag, because it is that of both encodings.
    headers = {
        "ETag": f'W/"{file.etag}"', "Cache-Control": "no-cache", "Vary": "Accept-Encoding",
        **_HEADERS,
    }  # fmt: skip
    known = [tag.value for tag in request.if_none_match or ()]
    if file.etag in known or "*" in known:
        return web.Response(status=304, headers=headers)
    body = file.body
    if takes_gzip(request):
        headers["Content-Encoding"], body = "gzip", file.compressed
    charset = None if file.content_type == "application/json" else "utf-8"
    return web.Response(body=body, content_type=file.content_type, charset=charset, headers=headers)
