"""load-watcher's HTTP interface over the state table, for Trimaran's `watcherAddress`.

Paths, statuses and documents are those of load-watcher, for every method; a path may begin with two
slashes, because its client adds one to an address that ends in one. In addition it takes `?window=`
(15m, 10m, 5m) and the node's name in the path. If no node has fresh usage, the document has no
nodes: after an error load-watcher's client keeps its last document for ever.
Source: https://github.com/paypal/load-watcher
"""

import asyncio
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from pipeline.clock import Clock
from pipeline.errors import BadRequestError
from pipeline.extender.routes import NODE, Handler, Parameter, Response, Route
from pipeline.processors.exchange.load_watcher_document import WINDOWS, WatcherDocument, encode
from pipeline.table import FeedState, Table
from pipeline.table.load_watcher_metrics import load_snapshot


@dataclass(frozen=True, slots=True)
class LoadWatcherHandler:
    """The routes over one table."""

    table: Table
    state: FeedState
    clock: Clock
    stale_after_seconds: float

    def routes(self) -> list[Route]:
        """The routes of this handler."""
        window = Parameter("window", "span of the averages", {"enum": [*WINDOWS]}, "15m")
        host = Parameter("host", "one node", {"type": "string"})
        failures = {
            404: Response("no such node, as text"),
            500: Response("the table is not caught up, as text"),
        }
        unhealthy = {503: Response("the table is not caught up, or Kafka is away")}

        def route(path: str, handler: Handler, summary: str, **more: Any) -> Route:
            served: dict[str, Any] = {
                "any_method": True,
                "aliases": (f"/{path}",),
                "access": "watcher",
            }
            return Route("GET", path, handler, summary, **served, **more)

        return [
            route(
                "/watcher", self.watcher, "load-watcher's document of all nodes, or of one.",
                response=WatcherDocument, parameters=(window, host), errors=(400,), others=failures,
            ),
            route(
                "/watcher/health", self.health, "Whether there is usage to be had.",
                others=unhealthy,
            ),
            route(
                "/watcher/{host}", self.watcher, "load-watcher's document of one node.",
                response=WatcherDocument, parameters=(NODE._replace(name="host"), window),
                errors=(400,), others=failures,
            ),
        ]  # fmt: skip

    async def watcher(self, request: web.Request) -> web.Response:
        host = request.match_info.get("host") or request.query.get("host", "")
        window = request.query.get("window") or next(iter(WINDOWS))
        if window not in WINDOWS:
            raise BadRequestError(
                f"there is no window {window[:80]!r}", hint=f"choose one of {', '.join(WINDOWS)}"
            )
        if not self.state.caught_up:
            return _text(500, f"the state table is not caught up: {self.state.message}")
        load = load_snapshot(
            self.table, self.clock.now(), self.stale_after_seconds, host=host, window=window
        )
        if host and not load.names:
            return _text(404, f"No metrics found for host {host[:253]}")
        # Ten thousand nodes take a quarter of a second; a scheduler must not wait for them.
        body = await asyncio.to_thread(lambda: encode(load.document()))
        return web.Response(body=body, content_type="application/json")

    async def health(self, _request: web.Request) -> web.Response:
        healthy = self.state.caught_up and self.state.connected
        return web.Response(status=200 if healthy else 503)


def _text(status: int, text: str) -> web.Response:
    # load-watcher declares plain text as application/json.
    return web.Response(text=text, status=status, content_type="application/json")
