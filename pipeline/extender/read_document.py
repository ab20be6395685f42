"""Documents of what is read from Kafka only while somebody asks for them."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from pipeline.clock import Clock
from pipeline.errors import KafkaError, NotReadyError
from pipeline.extender import limits
from pipeline.processors.console.encoded_document import (
    NO_DOCUMENT,
    EncodedDocument,
    encode_document,
)

Read = Callable[[], Awaitable[Callable[[], msgspec.Struct]]]
"""Reads what the document is made of, and returns the function that makes it in another thread.
Raises `KafkaError` or `OSError`."""


class ReadDocument:
    """A document that is read at most once in `seconds`. `what` names in errors what is read;
    without `read` it is never. After a reading that failed the last document stays, and its field
    `problem` says why it is old."""

    def __init__(self, clock: Clock, what: str, seconds: float, read: Read | None) -> None:
        self._clock = clock
        self._what = what
        self._seconds = seconds
        self._read = read
        self._reading: asyncio.Task[None] | None = None
        self._made: msgspec.Struct | None = None
        self._document = NO_DOCUMENT
        self._next_at = -float("inf")
        self._failure = ""

    async def current(self) -> EncodedDocument:
        """The newest document. Raises `NotReadyError` without one."""
        if self._read is None:
            raise NotReadyError(f"this extender does not read {self._what}")
        if self._reading is None and self._clock.monotonic() >= self._next_at:
            self._reading = asyncio.create_task(self._update(self._read), name=self._what)
            self._reading.add_done_callback(self._end)
        if self._document is NO_DOCUMENT and self._reading is not None:
            await asyncio.wait({self._reading}, timeout=limits.READ_WAIT_SECONDS)
        if self._document is NO_DOCUMENT:
            why = self._failure or f"{self._what} are being read"
            raise NotReadyError(why, hint="ask again in some seconds")
        return self._document

    async def _update(self, read: Read) -> None:
        """Read a new document, or note in the last one why there is none."""
        failure, pause, error = "", self._seconds, None
        try:
            self._made = await asyncio.to_thread(await read())
        except Exception as caught:
            error = caught
            text = error.message if isinstance(error, KafkaError) else str(error)
            failure = f"{self._what} cannot be read: {text or type(error).__name__}"
            # What takes too long would do so again, one after the other.
            if not isinstance(error, TimeoutError):
                pause = limits.READ_RETRY_SECONDS
        self._failure, self._next_at = failure, self._clock.monotonic() + pause
        if self._made is not None:
            made = msgspec.structs.replace(self._made, problem=failure)
            self._document = await asyncio.to_thread(encode_document, made)
        if error is not None and not isinstance(error, KafkaError | OSError):
            raise error

    def _end(self, reading: "asyncio.Task[None]") -> None:
        self._reading = None
        if not reading.cancelled():
            reading.result()
