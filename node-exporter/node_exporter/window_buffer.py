"""Windows that wait for Kafka: bounded in bytes, oldest dropped first and counted, order kept."""

import asyncio
from collections import deque
from typing import NamedTuple

from node_exporter import exporter_metrics


class EncodedWindow(NamedTuple):
    """One window as it goes to the topic."""

    end_ms: int
    value: bytes


class WindowBuffer:
    """First in, first out. The window that is being sent counts, but is never dropped."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._waiting: deque[EncodedWindow] = deque()
        self._sending: EncodedWindow | None = None
        self._bytes = 0
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()
        self._emptied.set()

    def __len__(self) -> int:
        return len(self._waiting) + (self._sending is not None)

    @property
    def bytes(self) -> int:
        """Size of all that waits."""
        return self._bytes

    def append(self, window: EncodedWindow) -> int:
        """Take a window in; how many older ones had to go for it."""
        self._waiting.append(window)
        self._bytes += len(window.value)
        dropped = 0
        while self._bytes > self._bytes_max and len(self._waiting) > 1:
            self._bytes -= len(self._waiting.popleft().value)
            dropped += 1
        self._changed()
        return dropped

    async def first(self) -> EncodedWindow:
        """The oldest window, as soon as there is one; it stays until `remove_first()`."""
        while self._sending is None:
            await self._filled.wait()
            self._sending = self._waiting.popleft() if self._waiting else None
        return self._sending

    def remove_first(self) -> None:
        """The window that `first()` gave is done with."""
        assert self._sending is not None
        self._bytes -= len(self._sending.value)
        self._sending = None
        self._changed()

    async def empty(self) -> None:
        """Return when nothing waits."""
        await self._emptied.wait()

    def _changed(self) -> None:
        _set(self._filled, bool(self._waiting))
        _set(self._emptied, not len(self))
        exporter_metrics.BUFFER_BYTES.set(self._bytes)
        exporter_metrics.BUFFER_WINDOWS.set(len(self))


def _set(event: asyncio.Event, value: bool) -> None:
    if value:
        event.set()
    else:
        event.clear()
