"""load-watcher's HTTP interface over the state table, for Trimaran's `watcherAddress`.

Owes the rest: paths, statuses and documents as load-watcher has them (scheduling 5), whatever the
method; a path may begin with two slashes, since their client adds one to an address that ends in
one. Beyond that it takes `?window=` (15m, 10m, 5m) and the node's name in the path.
"""

import asyncio

from aiohttp import web

from pipeline.clock import Clock
from pipeline.errors import BadRequestError
from pipeline.processors.exchange.load_watcher_document import WINDOWS, encode
from pipeline.table import FeedState, Table
from pipeline.table.load_watcher_metrics import watched


class LoadWatcherHandler:
    """The handlers over one table."""

    def __init__(
        self, table: Table, state: FeedState, clock: Clock, stale_after_seconds: float
    ) -> None:
        self._table = table
        self._state = state
        self._clock = clock
        self._stale_after = stale_after_seconds

    def add_to(self, app: web.Application) -> None:
        """Route to these handlers. KeyError for nothing."""
        for path in ("/watcher", "//watcher"):
            app.router.add_route("*", path, self.watcher)
            app.router.add_route("*", f"{path}/health", self.health)
            app.router.add_route("*", f"{path}/{{host}}", self.watcher)

    async def watcher(self, request: web.Request) -> web.Response:
        """All nodes, or the one that query or path name."""
        host = request.match_info.get("host") or request.query.get("host", "")
        window = request.query.get("window") or next(iter(WINDOWS))
        if window not in WINDOWS:
            raise BadRequestError(
                f"there is no window {window[:80]!r}", hint=f"choose one of {', '.join(WINDOWS)}"
            )
        if not self._state.caught_up:
            return _text(500, f"the state table is not caught up: {self._state.message}")
        found = watched(self._table, self._clock.now(), self._stale_after, host=host, window=window)
        if found is None and host:
            return _text(404, f"No metrics found for host {host[:253]}")
        if found is None:
            return _text(500, "no node has published a window lately")
        # Ten thousand nodes take a quarter of a second: a scheduler's question does not wait.
        body = await asyncio.to_thread(lambda: encode(found.document()))
        return web.Response(body=body, content_type="application/json")

    async def health(self, _request: web.Request) -> web.Response:
        """Whether there are numbers to be had."""
        healthy = self._state.caught_up and self._state.connected
        return web.Response(status=200 if healthy else 503)


def _text(status: int, text: str) -> web.Response:
    # Upstream says application/json of a text that is none.
    return web.Response(text=text, status=status, content_type="application/json")
