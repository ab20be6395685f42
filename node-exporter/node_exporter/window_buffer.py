"""Buffer windows for Kafka: first in, first out, bounded in bytes.

If the buffer is full, the oldest window is dropped: after a long outage the newest usage matters.
"""

import asyncio
from collections import deque
from typing import NamedTuple

from node_exporter import exporter_metrics


class EncodedWindow(NamedTuple):
    """One window, encoded as a record of the topic."""

    end_ms: int
    value: bytes


class WindowBuffer:
    """FIFO buffer. The window in flight counts towards the limit but is never dropped."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._waiting: deque[EncodedWindow] = deque()
        self._in_flight: EncodedWindow | None = None
        self._bytes = 0
        self._not_empty = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._waiting) + (self._in_flight is not None)

    @property
    def bytes(self) -> int:
        return self._bytes

    def append(self, window: EncodedWindow) -> int:
        """Append a window; returns the number of older windows that were dropped."""
        self._waiting.append(window)
        self._bytes += len(window.value)
        dropped = 0
        while self._bytes > self._bytes_max and len(self._waiting) > 1:
            self._bytes -= len(self._waiting.popleft().value)
            dropped += 1
        self._update()
        return dropped

    async def first(self) -> EncodedWindow:
        """Wait for the oldest window; it stays in the buffer until `remove_first()`."""
        while self._in_flight is None:
            await self._not_empty.wait()
            self._in_flight = self._waiting.popleft() if self._waiting else None
        return self._in_flight

    def remove_first(self) -> None:
        """Remove the window that `first()` returned."""
        assert self._in_flight is not None
        self._bytes -= len(self._in_flight.value)
        self._in_flight = None
        self._update()

    async def wait_empty(self) -> None:
        await self._empty.wait()

    def _update(self) -> None:
        _set(self._not_empty, bool(self._waiting))
        _set(self._empty, not len(self))
        exporter_metrics.BUFFER_BYTES.set(self._bytes)
        exporter_metrics.BUFFER_WINDOWS.set(len(self))


def _set(event: asyncio.Event, value: bool) -> None:
    if value:
        event.set()
    else:
        event.clear()
