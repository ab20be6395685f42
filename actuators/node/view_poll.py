"""Follow the view of this node by long poll from an extender.

The answer comes as soon as there is a newer view, or says after the wait that there is none. Of a
replica that lost Kafka for a while, or reads another one, generations may be lower than the known
one: its view is taken after ten minutes in which there was no other answer.
"""

import zlib
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

import aiohttp

from actuators.node.newest_view import NewestView
from pipeline.bearer_tokens import authorization
from pipeline.clock import Clock
from pipeline.errors import UsageError, unanswered_reason
from pipeline.kafka.follow import Backoff
from pipeline.logs import get_logger
from pipeline.spans import TRACEPARENT
from pipeline.tls import https_context
from pipeline.topics.registry import MAX_RECORD_BYTES

WAIT_SECONDS: Final = 30
"""An answer that there is no newer view comes this late: the age of the view stays below it."""
_MARGIN_SECONDS: Final = 10.0
_PAUSE_SECONDS: Final = 1.0
"""Least time between two requests, whatever the server answers."""
_BACKOFF_SECONDS: Final = (1.0, 30.0)
_LOWER_SECONDS: Final = 600.0
_GZIP: Final = zlib.MAX_WBITS | 16

log = get_logger(__name__)


class ViewServer(NamedTuple):
    """Where views are polled: the address of an extender, and files with the CA certificates that
    it is verified by and with a bearer token."""

    url: str
    ca_file: Path | None = None
    token_file: Path | None = None


async def follow_server(server: ViewServer, view: NewestView, clock: Clock) -> None:
    """Fill `view` from an extender, until cancelled. Raises `SettingsError` for an invalid CA
    file."""
    poll = _Poll(server, view, clock)
    connector = aiohttp.TCPConnector(
        ssl=https_context("node_actuator.extender_ca_file", server.ca_file), limit=1
    )
    backoff, problem = Backoff(*_BACKOFF_SECONDS), None
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:
        while True:
            began, former = clock.monotonic(), problem
            problem = await poll.ask(session)
            if problem is None:
                backoff.reset()
                pause = began + _PAUSE_SECONDS - clock.monotonic()
            else:
                if former is None:
                    log.warning("cannot poll the view, the last one stays", why=problem)
                pause = backoff.pause()
            if pause > 0:
                await clock.sleep(pause)


class _Poll:
    """Requests for one view."""

    def __init__(self, server: ViewServer, view: NewestView, clock: Clock) -> None:
        self._url = f"{server.url.rstrip('/')}/v1/nodes/{quote(view.node)}/view"
        self._token_file = server.token_file
        self._view, self._clock = view, clock
        self._lower_since: float | None = None

    async def ask(self, session: aiohttp.ClientSession) -> str | None:
        """Ask for a newer view once, and wait for it; returns why there was no valid answer."""
        known = None if self._view.record is None else self._view.record.generation
        if self._is_long_lower():
            self._view.restart()
            known = None
        headers = {"Accept-Encoding": "gzip"}
        wait = 0 if known is None else WAIT_SECONDS
        if known is not None:
            headers["If-None-Match"] = f'"{known}"'
        timeout = aiohttp.ClientTimeout(total=wait + _MARGIN_SECONDS)
        try:
            headers |= authorization(self._token_file)
            async with session.get(
                self._url, params={"wait": wait}, headers=headers, timeout=timeout,
                allow_redirects=False,
            ) as response:  # fmt: skip
                if response.status == 304:
                    return self._note(_generation(response))
                body = await _read(response)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return unanswered_reason(error)
        except (UsageError, ValueError, zlib.error) as error:
            return str(error)
        if response.status != 200:
            return f"answer {response.status}: {body[:200].decode(errors='replace')}"
        if self._view.receive(body, _trace_headers(response)):
            self._lower_since = None
            self._view.confirm(self._clock.monotonic())
            return None
        return self._note(_generation(response))

    def _note(self, generation: int | None) -> str | None:
        """Note that the server has a view of this generation, which was not taken."""
        known = None if self._view.record is None else self._view.record.generation
        if known is None or generation is None or generation > known:
            return "the answer is not a valid view"
        if generation == known:
            self._lower_since = None
            self._view.confirm(self._clock.monotonic())
            return None
        if self._lower_since is None:
            self._lower_since = self._clock.monotonic()
        return f"the server has generation {generation}, older than {known}"

    def _is_long_lower(self) -> bool:
        since = self._lower_since
        return since is not None and self._clock.monotonic() - since >= _LOWER_SECONDS


def _trace_headers(response: aiohttp.ClientResponse) -> list[tuple[str, bytes]]:
    """The header of the trace that the view continues; none if it is not traced."""
    value = response.headers.get(TRACEPARENT)
    return [] if value is None else [(TRACEPARENT, value.encode(errors="replace"))]


def _generation(response: aiohttp.ClientResponse) -> int | None:
    """The generation of the server's view; None without a valid ETag."""
    text = response.headers.get("ETag", "").strip('"')
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """The body, decompressed. Raises ValueError if it is not complete, or longer than a record."""
    is_compressed = response.headers.get("Content-Encoding") == "gzip"
    inflate, body = zlib.decompressobj(_GZIP), bytearray()
    async for chunk in response.content.iter_any():
        body += inflate.decompress(chunk, MAX_RECORD_BYTES) if is_compressed else chunk
        if len(body) > MAX_RECORD_BYTES or inflate.unconsumed_tail or inflate.unused_data:
            raise ValueError(f"the answer has more than {MAX_RECORD_BYTES} bytes")
    if is_compressed and not inflate.eof:
        raise ValueError("the answer is not complete")
    return bytes(body)
