"""Bodies of requests: read whole, but bounded in size, in time and in how many at once.

Owes the rest: memory that strangers cannot fill. A body over `LARGE_BODY_BYTES` needs one of
`LARGE_AT_ONCE` slots before more of it is read; its request keeps the slot until the answer, which
may be as large, has left. Small bodies (names alone) never wait, unless there are
`SMALL_BODIES_BYTES` of them. Whoever does not take an answer is cut off.
"""

import asyncio
from typing import Final

from aiohttp import web

from pipeline.errors import BadRequestError, OverloadedError
from pipeline.logs import get_logger

# 5,000 Node objects are about 32 MB.
MAX_BODY_BYTES: Final = 64 * 1024 * 1024
BODY_TIMEOUT_SECONDS: Final = 30.0
# 5,000 names are 0.1 MB.
LARGE_BODY_BYTES: Final = 1024 * 1024
SMALL_BODIES_BYTES: Final = 64 * 1024 * 1024
# A scheduler asks about one pod at a time; this is for a few of them.
LARGE_AT_ONCE: Final = 4
# So short that a scheduler with a timeout of 1 s still reads the refusal.
LARGE_WAIT_SECONDS: Final = 0.5
ANSWER_TIMEOUT_SECONDS: Final = 10.0

_log = get_logger(__name__)


class Bodies:
    """The reader of one server: `read` takes a slot if need be, `send` and `release` give it back.

    For every request `release` must be called at its end, whatever became of it.
    """

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(LARGE_AT_ONCE)
        self._large: set[int] = set()  # ids of the requests (which have no hash) that have one
        self._small: dict[int, int] = {}  # bytes by the ids of those that have none
        self._small_bytes = 0

    async def read(self, request: web.Request) -> bytes:
        """The body, decompressed.

        Raises `BadRequestError` (unreadable, or not there within `BODY_TIMEOUT_SECONDS`),
        `OverloadedError` (no slot within `LARGE_WAIT_SECONDS`), `HTTPRequestEntityTooLarge`.
        """
        try:
            async with asyncio.timeout(BODY_TIMEOUT_SECONDS):
                return await self._read(request)
        except TimeoutError:
            message = f"the body did not arrive within {BODY_TIMEOUT_SECONDS:g} s"
            raise BadRequestError(message) from None
        except web.RequestPayloadError as error:
            raise BadRequestError(f"the body is not readable: {error}") from error

    async def _read(self, request: web.Request) -> bytes:
        chunks: list[bytes] = []
        length, size = 0, request.content_length or 0
        while True:
            if size > MAX_BODY_BYTES:
                raise web.HTTPRequestEntityTooLarge(MAX_BODY_BYTES, size)
            is_large = size > LARGE_BODY_BYTES or self._small_bytes > SMALL_BODIES_BYTES
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
            # What was announced may be missing or, of what is compressed, too little.
            size = max(size, length)

    async def _take_slot(self, request: web.Request) -> None:
        try:
            async with asyncio.timeout(LARGE_WAIT_SECONDS):
                await self._slots.acquire()
        except TimeoutError:
            raise OverloadedError(
                f"{LARGE_AT_ONCE} bodies over {LARGE_BODY_BYTES} bytes are being answered already",
                hint="ask again; with nodeCacheCapable: true only names are sent and nobody waits",
            ) from None
        self._large.add(id(request))
        self._small_bytes -= self._small.pop(id(request), 0)

    async def send(self, request: web.Request, response: web.StreamResponse) -> None:
        """Send the answer, while its request is not over; cut off who does not take it. Whoever is
        gone is no error of ours."""
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_SECONDS):
                await response.prepare(request)
                await response.write_eof()
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        except ConnectionError as error:
            _log.debug("nobody takes the answer", reason=str(error))

    def release(self, request: web.Request) -> None:
        """The request is over."""
        self._small_bytes -= self._small.pop(id(request), 0)
        if id(request) in self._large:
            self._large.remove(id(request))
            self._slots.release()
