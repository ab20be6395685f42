"""Answers with a tag: what a client has already is answered with 304, and many clients cause at
most one document a second."""

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec
from aiohttp import web

from pipeline.clock import Clock
from pipeline.extender import limits
from pipeline.extender.http_responses import takes_gzip
from pipeline.extender.routes import Handler, Parameter, Response, Route
from pipeline.processors.console.encoded_document import (
    NO_DOCUMENT,
    EncodedDocument,
    encode_document,
)

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
TAG: Final = Parameter(
    "If-None-Match", "the ETag of the document that the client has", {"type": "string"},
    location="header",
)  # fmt: skip

Make = Callable[[float, object], tuple[object, Callable[[], msgspec.Struct] | None]]
"""Takes the time (Unix) and what the last document was made of. Returns what the next one would be
made of, and the function that makes it in another thread; None if nothing has changed."""


class Tagged(NamedTuple):
    """Bytes, the same compressed by gzip, their tag, and their type."""

    body: bytes
    compressed: bytes
    etag: str
    content_type: str


class KeptDocument:
    """A document that is made again at most once in `limits.DOCUMENT_SECONDS`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._making: asyncio.Task[None] | None = None
        self._made_at = -float("inf")
        self._made_of: object = None
        self._document = NO_DOCUMENT

    async def current(self, make: Make) -> EncodedDocument:
        """The document, made again if it is too old and has changed."""
        if self._making is None:
            now = self._clock.now()
            if 0 <= now - self._made_at < limits.DOCUMENT_SECONDS:
                return self._document
            self._making = asyncio.create_task(self._make(make, now), name="document")
        # Those who wait get the same document. One who hangs up does not end it: the thread would
        # go on, and the next client begin another.
        await asyncio.shield(self._making)
        return self._document

    async def _make(self, make: Make, now: float) -> None:
        try:
            made_of, made = make(now, self._made_of)
            if made is not None:
                # 10,000 nodes take a fifth of a second; a scheduler must not wait for them.
                self._document = await asyncio.to_thread(lambda: encode_document(made()))
                self._made_of = made_of
            self._made_at = now
        finally:
            self._making = None


def document_route(path: str, handler: Handler, summary: str, document: type) -> Route:
    """The route of a document that `handler` answers by `document_response`."""
    return Route(
        "GET", path, handler, summary, document, parameters=(TAG,), errors=(503,),
        others={304: Response("nothing has changed", headers=("ETag",))},
    )  # fmt: skip


def document_response(request: web.Request, document: EncodedDocument) -> web.Response:
    """The document, or 304 if the client has it."""
    return tagged_response(request, Tagged(*document, "application/json"))


def tagged_response(request: web.Request, file: Tagged) -> web.Response:
    """The bytes, compressed if the client takes that; 304 if the client has them."""
    # A weak tag, because it is that of both encodings.
    headers = {
        "ETag": f'W/"{file.etag}"', "Cache-Control": "no-cache", "Vary": "Accept-Encoding",
        **HEADERS,
    }  # fmt: skip
    known = [tag.value for tag in request.if_none_match or ()]
    if file.etag in known or "*" in known:
        return web.Response(status=304, headers=headers)
    body = file.body
    if takes_gzip(request):
        headers["Content-Encoding"], body = "gzip", file.compressed
    charset = None if file.content_type == "application/json" else "utf-8"
    return web.Response(body=body, content_type=file.content_type, charset=charset, headers=headers)
