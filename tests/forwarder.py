"""Forward TCP connections to a port that a test can change, cut or leave silent."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

HOST = "127.0.0.1"


class Forwarder:
    """Forwards each new connection to `target`; None refuses it. `cut` ends all connections."""

    def __init__(self, target: int | None) -> None:
        self.target = target
        self.port = 0
        self._writers: set[asyncio.StreamWriter] = set()

    def cut(self) -> None:
        """Refuse connections from now on, and reset those that are open."""
        self.target = None
        for writer in self._writers:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward a connection until one side ends it."""
        if self.target is None:
            writer.transport.abort()
            return
        try:
            there = await asyncio.open_connection(HOST, self.target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, there[1]}
        await join_streams((reader, writer), there)
        self._writers -= {writer, there[1]}


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def join_streams(here: Streams, there: Streams) -> None:
    """Copy what each connection receives to the other, until both have ended."""
    await asyncio.gather(_copy(here[0], there[1]), _copy(there[0], here[1]))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def forwarder(target: int | None = None, port: int = 0) -> AsyncIterator[Forwarder]:
    """A forwarder on `port`, or on any free port."""
    made = Forwarder(target)
    server = await asyncio.start_server(made.serve, HOST, port)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        made.cut()
