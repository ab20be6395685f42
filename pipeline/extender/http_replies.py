"""Answers of the service: JSON, and errors as JSON in the keys of the extender protocol."""

from collections.abc import Mapping

import msgspec
from aiohttp import web

_json = msgspec.json.Encoder()


def json_reply(
    body: bytes, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    """An answer of JSON that is encoded already."""
    return web.Response(body=body, status=status, content_type="application/json", headers=headers)


def error_reply(
    status: int, message: str, hint: str | None = None, headers: Mapping[str, str] | None = None
) -> web.Response:
    """An answer that says what is wrong, and what to do about it."""
    document = {"Error": message} | ({"Hint": hint} if hint else {})
    return json_reply(_json.encode(document), status=status, headers=headers)
