"""Responses of the service: JSON, and errors as JSON in the keys of the extender protocol.

Every client gets errors in these keys, because any request may come from a scheduler.
"""

from collections.abc import Mapping

import msgspec
from aiohttp import web


class ErrorReply(msgspec.Struct, frozen=True, rename="pascal", omit_defaults=True):
    """The body of an error response.

    error: What is wrong.
    hint: What to do about it.
    """

    error: str
    hint: str = ""


def json_response(
    body: bytes, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    """Return a response with a body that is encoded JSON."""
    return web.Response(body=body, status=status, content_type="application/json", headers=headers)


def struct_response(body: msgspec.Struct, *, status: int = 200) -> web.Response:
    """Return a response with a struct as its body, encoded as JSON."""
    return json_response(msgspec.json.encode(body), status=status)


def error_response(
    status: int, message: str, hint: str | None = None, headers: Mapping[str, str] | None = None
) -> web.Response:
    """Return an error response with a problem and its fix."""
    body = msgspec.json.encode(ErrorReply(message, hint or ""))
    return json_response(body, status=status, headers=headers)


def takes_gzip(request: web.Request) -> bool:
    """Whether the client accepts gzip (RFC 9110, 12.5.3); a weight of 0 refuses it."""
    for part in request.headers.get("Accept-Encoding", "").lower().split(","):
        coding, _, weight = part.replace(" ", "").partition(";q=")
        if coding == "gzip":
            return not weight or bool(weight.strip("0."))
    return False
