"""The view of one node by long poll, for its actuator and whoever else wants to know it at once.

Owes the rest: an answer only where there is something newer than what was said to be known, as
soon as it is there; waiting clients that are bounded in number, cost no task that polls, and are
let go when the service drains or their connection is gone.
"""

import asyncio
import math
from typing import Final

from aiohttp import web

from pipeline.errors import BadRequestError, OverloadedError
from pipeline.extender.http_replies import error_reply
from pipeline.extender.query_api import must_be_caught_up
from pipeline.metrics import gauge
from pipeline.table import FeedState
from pipeline.table.compressed_views import CompressedView, NodeViewStore

LONGEST_WAIT_SECONDS: Final = 60.0
# All nodes of a large cluster at one replica, while the other is away.
WAITING_AT_MOST: Final = 12_000

WAITING = gauge("extender_waiting_clients", "Clients that wait for a newer view of their node.")


class NodeViewHandler:
    """The handler over the views that a feed keeps."""

    def __init__(
        self, views: NodeViewStore, state: FeedState, waiting_at_most: int = WAITING_AT_MOST
    ) -> None:
        self._views = views
        self._state = state
        self._waiting_at_most = waiting_at_most
        self._waiting = 0
        self._is_released = False

    def add_to(self, app: web.Application) -> None:
        """Route to this handler."""
        app.router.add_get("/v1/nodes/{node}/view", self.view)

    def release(self) -> None:
        """Answer all who wait now, and let nobody wait any more."""
        self._is_released = True
        self._views.wake_all()

    async def view(self, request: web.Request) -> web.Response:
        """The view of a node, as soon as it is newer than what the client knows of it."""
        must_be_caught_up(self._state)
        node, loop = request.match_info["node"], asyncio.get_running_loop()
        until = loop.time() + _wait_seconds(request)
        held = self._views.get(node)
        known = _known_generation(request, held)
        while held is not None:
            if known is None or held.generation > known:
                return _reply(request, held)
            left = until - loop.time()
            if left <= 0 or self._is_released or not await self._changed(node, left):
                return web.Response(status=304, headers={"ETag": _etag(held)})
            held = self._views.get(node)
        return error_reply(
            404,
            f"node {node[:253]!r} has no view",
            "a worker writes one of each node that is known",
        )

    async def _changed(self, node: str, seconds: float) -> bool:
        """Wait until anything happens to a view; False if nothing does."""
        if self._waiting >= self._waiting_at_most:
            raise OverloadedError(
                f"{self._waiting} clients wait for views already",
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
    if not 0 <= seconds <= LONGEST_WAIT_SECONDS:
        raise BadRequestError(
            f"wait is {text[:80]!r}", hint=f"give seconds from 0 to {LONGEST_WAIT_SECONDS:g}"
        )
    return seconds


def _known_generation(request: web.Request, held: CompressedView | None) -> int | None:
    """The newest generation that the client says it has; None if it says none of ours."""
    tags = [tag.value for tag in request.if_none_match or ()]
    if "*" in tags and held is not None:
        return held.generation
    known = [int(tag) for tag in tags if tag.isascii() and tag.isdigit() and len(tag) < 20]
    return max(known, default=None)


def _etag(held: CompressedView) -> str:
    return f'"{held.generation}"'


def _reply(request: web.Request, held: CompressedView) -> web.Response:
    headers = {"ETag": _etag(held), "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
    if "gzip" not in request.headers.get("Accept-Encoding", ""):
        return web.Response(body=held.data(), content_type="application/json", headers=headers)
    headers["Content-Encoding"] = "gzip"
    return web.Response(body=held.compressed, content_type="application/json", headers=headers)
