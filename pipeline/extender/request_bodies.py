"""Read request bodies whole, bounded in size, in time and in number.

Clients cannot fill the memory: a body over `limits.LARGE_BODY_BYTES` needs one of
`limits.LARGE_BODIES` slots before more of it is read, and keeps the slot until its answer, which
may be as large, has left. Small bodies (names) never wait, unless all of them together exceed
`limits.SMALL_BODIES_BYTES`. A client that does not read its answer is disconnected.
"""

import asyncio
from collections.abc import AsyncIterator

from aiohttp import web

from pipeline.errors import BadRequestError, OverloadedError
from pipeline.extender import limits
from pipeline.logs import get_logger

_log = get_logger(__name__)


class PartsResponse(web.StreamResponse):
    """An answer that is made while it is sent: each part when the client has read the last one."""

    def __init__(self, parts: AsyncIterator[bytes], content_type: str) -> None:
        super().__init__(headers={"Content-Type": content_type})
        self.parts = parts


class RequestBodies:
    """The bodies of one server. Call `release` at the end of every request, whatever happened."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(limits.LARGE_BODIES)
        self._large: set[int] = set()  # ids of the requests (which have no hash) with a slot
        self._small: dict[int, int] = {}  # bytes by id of the requests without one
        self._small_bytes = 0

    async def read(self, request: web.Request, most: int | None = None) -> bytes:
        """The body, decompressed, of at most so many bytes, else `limits.MAX_BODY_BYTES`.

        Raises `BadRequestError` (unreadable or too slow), `OverloadedError` (no slot within
        `limits.LARGE_WAIT_SECONDS`), `HTTPRequestEntityTooLarge`.
        """
        try:
            async with asyncio.timeout(limits.BODY_TIMEOUT_SECONDS):
                return await self._read(request, limits.MAX_BODY_BYTES if most is None else most)
        except TimeoutError:
            message = f"the body did not arrive within {limits.BODY_TIMEOUT_SECONDS:g} s"
            raise BadRequestError(message) from None
        except web.RequestPayloadError as error:
            reason = getattr(error.__cause__ or error, "message", "") or str(error)
            raise BadRequestError(
                f"the body is not readable: {' '.join(reason.split()):.200}",
                hint="send Content-Encoding only with a body that is encoded so",
            ) from error

    async def _read(self, request: web.Request, most: int) -> bytes:
        chunks: list[bytes] = []
        length, size = 0, request.content_length or 0
        while True:
            if size > most:
                text = f"the body is larger than {most / 2**20:.3g} MiB"
                raise web.HTTPRequestEntityTooLarge(most, size, text=text)
            is_large = (
                size > limits.LARGE_BODY_BYTES or self._small_bytes > limits.SMALL_BODIES_BYTES
            )
            if is_large and id(request) not in self._large:
                await self._take_slot(request)
            chunk = await request.content.readany()
            if not chunk:
                return b"".join(chunks)
            chunks.append(chunk)
            length += len(chunk)
            if id(request) not in self._large:
                self._small[id(request)] = length
                self._small_bytes += len(chunk)
            # Content-Length may be absent, and is too small for a compressed body.
            size = max(size, length)

    async def _take_slot(self, request: web.Request) -> None:
        try:
            async with asyncio.timeout(limits.LARGE_WAIT_SECONDS):
                await self._slots.acquire()
        except TimeoutError:
            raise OverloadedError(
                f"{limits.LARGE_BODIES} bodies over {limits.LARGE_BODY_BYTES} bytes are being "
                "answered already",
                hint="ask again; with nodeCacheCapable: true only names are sent and nobody waits",
            ) from None
        self._large.add(id(request))
        self._small_bytes -= self._small.pop(id(request), 0)

    async def send(self, request: web.Request, response: web.StreamResponse) -> None:
        """Send the answer; disconnect a client that does not read it, or a part of it. A client
        that has disconnected is no error."""
        try:
            async with _time_to_read():
                await response.prepare(request)
            if isinstance(response, PartsResponse) and request.method != "HEAD":
                # To make all of them takes longer than that while the machine is busy.
                async for part in response.parts:
                    async with _time_to_read():
                        await response.write(part)
            async with _time_to_read():
                await response.write_eof()
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        except ConnectionError as error:
            _log.debug("client disconnected before the answer", reason=str(error))

    def release(self, request: web.Request) -> None:
        """End the request: give back its slot and its bytes."""
        self._small_bytes -= self._small.pop(id(request), 0)
        if id(request) in self._large:
            self._large.remove(id(request))
            self._slots.release()


def _time_to_read() -> asyncio.Timeout:
    return asyncio.timeout(limits.ANSWER_TIMEOUT_SECONDS)
