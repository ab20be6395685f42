"""The console: a read-only web page about the fleet, and the document that its heat map draws.

The files of the page hold no data and are open, like probes: a browser sends no token when it opens
a page. Every figure comes from /v1, under the rules for queries.
"""

import gzip
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from aiohttp import web

from pipeline.clock import Clock
from pipeline.extender.http_responses import error_response
from pipeline.extender.query_api import require_caught_up
from pipeline.extender.routes import Parameter, Route
from pipeline.extender.tagged_documents import (
    HEADERS,
    KeptDocument,
    Tagged,
    document_response,
    document_route,
    tagged_response,
)
from pipeline.processors.arrays import BoolArray, FloatArray
from pipeline.processors.console.encoded_document import pool_of
from pipeline.processors.console.fleet_document import Fleet, FleetColumns, fleet_document
from pipeline.table import FeedState, Table
from pipeline.table.node_columns import NodeRecords, scalars_of
from pipeline.topics.resource_amounts import BATCH, MID

_FOLDER: Final = Path(__file__).parent / "console"
_CONTENT_TYPES: Final = {
    ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml",
}  # fmt: skip
_PAGE: Final = "index.html"
_COLUMNS: Final = ("usage", "peak", "allocatable")


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
        self._fleet = KeptDocument(clock)

    def routes(self) -> list[Route]:
        """The routes of this handler."""
        file = Parameter("file", "name of the file", {"type": "string"}, "console.js", "path")
        return [
            document_route(
                "/v1/fleet", self.fleet, "All nodes in a compact form, for the console.", Fleet
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
            return web.Response(status=308, headers={"Location": "../console", **HEADERS})
        return tagged_response(request, self._files[_PAGE])

    async def file(self, request: web.Request) -> web.Response:
        name = request.match_info["file"]
        file = self._files.get(name)
        if file is None:
            return error_response(404, f"the console has no file {name[:80]!r}", "open /console")
        return tagged_response(request, file)

    async def fleet(self, request: web.Request) -> web.Response:
        require_caught_up(self._state)
        return document_response(request, await self._fleet.current(self._make))

    def _make(self, now: float, made_of: object) -> tuple[object, Callable[[], Fleet] | None]:
        """Copy the table now, for the document that another thread makes."""
        reading = _read(self._table, now, self._stale_after)
        state = self._table.version, reading.is_fresh.tobytes()
        return state, None if state == made_of else lambda: fleet_document(_columns(reading))


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
        pools=[pool_of(record.node.hot_nodes if record.node else None) for record in records],
        alerts=[() if record.state is None else record.state.alerts for record in records],
        as_of_seconds=reading.columns["as_of_seconds"][rows],
        is_fresh=reading.is_fresh[rows],
        cpu=cpu | {"mid": offers[:, 0], "batch": offers[:, 2]},
        memory=memory | {"mid": offers[:, 1], "batch": offers[:, 3]},
    )


def _read_files() -> dict[str, Tagged]:
    files = {}
    for path in sorted(_FOLDER.iterdir()):
        if path.suffix in _CONTENT_TYPES:
            body = path.read_bytes()
            etag = hashlib.sha256(body).hexdigest()[:32]
            kind = _CONTENT_TYPES[path.suffix]
            files[path.name] = Tagged(body, gzip.compress(body, mtime=0), etag, kind)
    return files
