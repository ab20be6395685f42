"""The view of one node by long poll, for its actuator and other clients that want it at once.

The answer comes as soon as there is a newer view than the client has. The number of waiting clients
is bounded, none of them needs a task that polls, and they are answered when the service drains.
"""

import asyncio
import math

from aiohttp import web

from pipeline.errors import BadRequestError, OverloadedError
from pipeline.extender import limits
from pipeline.extender.http_responses import error_response, takes_gzip
from pipeline.extender.query_api import require_caught_up
from pipeline.extender.routes import NODE, JsonObject, Parameter, Response, Route
from pipeline.metrics import gauge
from pipeline.table import FeedState
from pipeline.table.compressed_views import CompressedView, NodeViewStore
from pipeline.topics.node_views import NodeViewRecord

WAITING = gauge("extender_waiting_clients", "Clients that wait for a newer view of a node.")


class NodeView(NodeViewRecord, frozen=True, kw_only=True):
    """A node as its actuator sees it: `slo` is the spec of its NodeSLO, `cpu_normalization` the
    section of CPU ratios; `resources` are None where none were computed for it."""

    # The record passes these on as bytes; this is how they read.
    slo: JsonObject | None = None  # type: ignore[assignment]
    cpu_normalization: JsonObject | None = None  # type: ignore[assignment]


class NodeViewHandler:
    """The route over the views that a feed fills."""

    def __init__(
        self, views: NodeViewStore, state: FeedState, waiting_at_most: int = limits.WAITING_CLIENTS
    ) -> None:
        self._views = views
        self._state = state
        self._waiting_at_most = waiting_at_most
        self._waiting = 0
        self._is_released = False

    def routes(self) -> list[Route]:
        """The routes of this handler."""
        seconds = {"type": "number", "minimum": 0, "maximum": limits.LONGEST_WAIT_SECONDS}
        parameters = (
            NODE,
            Parameter(
                "If-None-Match", "the ETag, a generation, of the view that the client has",
                {"type": "string"}, location="header",
            ),
            Parameter("wait", "seconds to wait for a newer view", seconds, 0),
        )  # fmt: skip
        return [
            Route(
                "GET", "/v1/nodes/{node}/view", self.view,
                "What the node's actuator needs, as soon as it is newer than If-None-Match.",
                NodeView, parameters=parameters, errors=(400, 404, 503),
                others={304: Response("there is no newer view", headers=("ETag",))},
            )
        ]  # fmt: skip

    def release(self) -> None:
        """Answer all waiting clients now, and let no client wait any more."""
        self._is_released = True
        self._views.wake_all()

    async def view(self, request: web.Request) -> web.Response:
        require_caught_up(self._state)
        node, loop = request.match_info["node"], asyncio.get_running_loop()
        until = loop.time() + _wait_seconds(request)
        view = self._views.get(node)
        known = _known_generation(request, view)
        while view is not None:
            if known is None or view.generation > known:
                return _reply(request, view)
            left = until - loop.time()
            if left <= 0 or self._is_released or not await self._changed(node, left):
                return web.Response(status=304, headers={"ETag": _etag(view)})
            view = self._views.get(node)
        return error_response(
            404, f"node {node[:253]!r} has no view", "workers write one for each known node"
        )

    async def _changed(self, node: str, seconds: float) -> bool:
        """Wait until the view of a node changes; False if it does not."""
        if self._waiting >= self._waiting_at_most:
            raise OverloadedError(
                f"{self._waiting} clients are waiting for views already",
                hint="ask another replica, or without `wait`",
            )
        self._waiting += 1
        WAITING.set(self._waiting)
        try:
            with self._views.waiting(node) as change:
                async with asyncio.timeout(seconds):
                    await change
            return True
        except TimeoutError:
            return False
        finally:
            self._waiting -= 1
            WAITING.set(self._waiting)


def _wait_seconds(request: web.Request) -> float:
    text = request.query.get("wait", "0")
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= limits.LONGEST_WAIT_SECONDS:
        raise BadRequestError(
            f"wait is {text[:80]!r}", hint=f"give seconds from 0 to {limits.LONGEST_WAIT_SECONDS:g}"
        )
    return seconds


def _known_generation(request: web.Request, view: CompressedView | None) -> int | None:
    """The newest generation that the client has; None without a valid ETag."""
    tags = [tag.value for tag in request.if_none_match or ()]
    if "*" in tags and view is not None:
        return view.generation
    known = [int(tag) for tag in tags if tag.isascii() and tag.isdigit() and len(tag) < 20]
    return max(known, default=None)


def _etag(view: CompressedView) -> str:
    return f'"{view.generation}"'


def _reply(request: web.Request, view: CompressedView) -> web.Response:
    headers = {"ETag": _etag(view), "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
    if view.context is not None:  # its actuator continues the trace
        headers |= {name: value.decode() for name, value in view.context.headers}
    if not takes_gzip(request):
        return web.Response(body=view.data(), content_type="application/json", headers=headers)
    headers["Content-Encoding"] = "gzip"
    return web.Response(body=view.compressed, content_type="application/json", headers=headers)
