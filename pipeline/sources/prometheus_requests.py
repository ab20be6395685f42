"""Requests to Prometheus' HTTP API."""

import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple, TypeVar

import aiohttp

from pipeline.clock import Clock
from pipeline.errors import SampleSourceError, unanswered_reason
from pipeline.sources.limits import FIRST_PAUSE_SECONDS, MOST_ANSWER_BYTES, REQUEST_ATTEMPTS

_T = TypeVar("_T")

TRANSIENT: Final = (408, 429, 500, 502, 503, 504)
"""Status codes of errors that may pass."""
_CHUNK_BYTES: Final = 1 << 18


class Answer(NamedTuple):
    """The status and body of an answer, and its header `Date`."""

    status: int
    body: bytes
    date: str


async def get(
    session: aiohttp.ClientSession,
    url: str,
    params: Mapping[str, str],
    headers: Mapping[str, str],
    timeout_seconds: float,
) -> Answer:
    """Send a request. Raises `SampleSourceError` if there is no answer, or one that is too
    large. Redirects are answers."""
    timeout = aiohttp.ClientTimeout(total=timeout_seconds)
    try:
        async with session.get(
            url, params=params, headers=headers, timeout=timeout, allow_redirects=False
        ) as response:
            body = await _body(response)
            return Answer(response.status, body, response.headers.get("Date", ""))
    except TimeoutError as error:
        raise SampleSourceError(f"no answer within {timeout_seconds:g} s", may_pass=True) from error
    except (aiohttp.ClientError, OSError) as error:
        raise SampleSourceError(unanswered_reason(error), may_pass=True) from error


async def _body(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
        body += chunk
        if len(body) > MOST_ANSWER_BYTES:
            raise SampleSourceError(f"an answer of more than {MOST_ANSWER_BYTES >> 20} MiB")
    return bytes(body)


async def retried(clock: Clock, attempt: Callable[[], Awaitable[_T]]) -> _T:
    """Return what `attempt` returns. It is repeated after errors that may pass, with pauses; the
    last error is raised."""
    pause = FIRST_PAUSE_SECONDS
    for number in range(1, REQUEST_ATTEMPTS + 1):
        try:
            return await attempt()
        except SampleSourceError as error:
            if not error.may_pass or number == REQUEST_ATTEMPTS:
                raise
        await clock.sleep(pause * (0.5 + random.random() / 2))
        pause *= 2
    raise AssertionError("the last attempt returns or raises")
