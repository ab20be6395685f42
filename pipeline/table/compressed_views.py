"""The newest view of each node as bytes, compressed, for whoever answers with them.

Owes the rest: a view never goes back to an older generation, also not behind a tombstone; who waits
for a node is woken by whatever happens to its view. Belongs to one event loop.
"""

import asyncio
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

_BURIED_AT_MOST: Final = 100_000
# The views of a hundred pods each are 54 kB, and 7 kB at this level, for a tenth of a millisecond.
_LEVEL: Final = 1
_GZIP: Final = zlib.MAX_WBITS | 16


class CompressedView(NamedTuple):
    """A view as it lay on the topic, compressed by gzip."""

    generation: int
    compressed: bytes

    def data(self) -> bytes:
        """The bytes of the record."""
        return zlib.decompress(self.compressed, _GZIP)


class NodeViewStore:
    """NodeViewStore by node."""

    def __init__(self) -> None:
        self._held: dict[str, CompressedView] = {}
        # Which generation was the last of a node that has left: none of before may come back.
        self._buried: dict[str, int] = {}
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def get(self, node: str) -> CompressedView | None:
        """The view of a node; None for none."""
        return self._held.get(node)

    def put(self, node: str, generation: int, data: bytes) -> bool:
        """Take a view; False if one as new is there, or was, which stays."""
        held = self._held.get(node)
        last = self._buried.get(node, -1) if held is None else held.generation
        if generation <= last:
            return False
        compressor = zlib.compressobj(_LEVEL, wbits=_GZIP)
        compressed = compressor.compress(data) + compressor.flush()
        self._held[node] = CompressedView(generation, compressed)
        self._buried.pop(node, None)
        self._wake((node,))
        return True

    def drop(self, node: str) -> None:
        """A node has no view any more (tombstone)."""
        held = self._held.pop(node, None)
        if held is None:
            return
        if len(self._buried) >= _BURIED_AT_MOST:
            del self._buried[next(iter(self._buried))]
        self._buried[node] = held.generation
        self._wake((node,))

    def adopt(self, other: "NodeViewStore") -> None:
        """Become `other` in one step; who waits here is woken. `other` is spent."""
        self._held, self._buried = other._held, other._buried
        other._held, other._buried = {}, {}
        self.wake_all()

    def wake_all(self) -> None:
        """Have everybody look again."""
        self._wake(tuple(self._waiting))

    @contextmanager
    def waiting(self, node: str) -> Iterator["asyncio.Future[None]"]:
        """A future that is done as soon as anything happens to the view of this node."""
        change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(node, set()).add(change)
        try:
            yield change
        finally:
            waiting = self._waiting.get(node, set())
            waiting.discard(change)
            if not waiting:
                self._waiting.pop(node, None)

    def _wake(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            for change in self._waiting.pop(node, ()):
                if not change.done():
                    change.set_result(None)
