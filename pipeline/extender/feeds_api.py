"""Whether the broker feeds the extender: figures stay where they were while it does not."""

from collections.abc import Sequence

import msgspec
from aiohttp import web

from pipeline import API_VERSION
from pipeline.extender.http_responses import struct_response
from pipeline.extender.routes import Route
from pipeline.table import FeedState

NamedFeeds = Sequence[tuple[str, FeedState]]


class FeedStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What reads some topics.

    name: Name of the feed, as in the log.
    connected: Whether the broker answered the last time, and the topics exist that it needs.
    caught_up: Whether everything was read that was on the topics at the start.
    contact_seconds: When the broker last answered, in seconds since 1970; null if it never did.
    message: What the feed does, or why it is not fed.
    missing: Topics that do not exist, or that the extender may not read; the others are read.
    """

    name: str
    connected: bool
    caught_up: bool
    contact_seconds: float | None
    message: str
    missing: tuple[str, ...]


class FeedList(msgspec.Struct, frozen=True, kw_only=True):
    """The feeds of an extender.

    items: The feeds; the first is that of the table.
    """

    apiVersion: str = API_VERSION
    kind: str = "FeedList"
    items: list[FeedStatus]


class FeedsHandler:
    """The route over the states of feeds."""

    def __init__(self, feeds: NamedFeeds) -> None:
        self._feeds = feeds

    def routes(self) -> list[Route]:
        """The routes of this handler."""
        return [
            Route(
                "GET", "/v1/feeds", self.feeds, "Which feeds the broker answers, and since when "
                "not; also before the table is caught up.", FeedList,
            )
        ]  # fmt: skip

    async def feeds(self, _request: web.Request) -> web.Response:
        return struct_response(
            FeedList(
                items=[
                    FeedStatus(
                        name=name, connected=state.connected, caught_up=state.caught_up,
                        contact_seconds=state.contact, message=state.message,
                        missing=state.missing,
                    )
                    for name, state in self._feeds
                ]
            )
        )  # fmt: skip
