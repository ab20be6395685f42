"""A fake of the runtime's side of NRI, for what a real one never does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from actuators.node.nri_messages import _CLASSES, PLUGIN_SERVICE
from actuators.node.ttrpc_frames import REQUEST, RESPONSE, FrameReader, Message, encode_frames

PLUGIN, RUNTIME = 1, 2


class FakeRuntime:
    """Listens on a socket, and takes one plugin after the other."""

    def __init__(self) -> None:
        self.plugins: asyncio.Queue[FakePlugin] = asyncio.Queue()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.plugins.put(FakePlugin(reader, writer))

    @classmethod
    @asynccontextmanager
    async def listening(cls, socket: Path) -> AsyncIterator["FakeRuntime"]:
        runtime = cls()
        server = await asyncio.start_unix_server(runtime._accept, socket)
        try:
            yield runtime
        finally:
            server.close()


class FakePlugin:
    """A plugin, as the runtime sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._frames = FrameReader((PLUGIN, RUNTIME))
        self._messages: list[Message] = []
        self._stream = -1

    async def message(self) -> Message:
        """The next message of the plugin. Raises EOFError at the end of the connection."""
        while not self._messages:
            async with asyncio.timeout(20):
                data = await self.reader.read(1 << 16)
            if not data:
                raise EOFError
            self._messages += self._frames.feed(data)
        return self._messages.pop(0)

    async def register(self) -> Any:
        """Answer the registration; returns it."""
        message = await self.message()
        call = _CLASSES["Request"].FromString(message.payload)
        assert (message.connection, message.type) == (RUNTIME, REQUEST)
        self.send(message._replace(type=RESPONSE, payload=b""))
        return call

    async def call(self, method: str, argument: Any = b"", service: str = PLUGIN_SERVICE) -> Any:
        """Call a method of the plugin; returns the response of ttrpc."""
        payload = argument if isinstance(argument, bytes) else argument.SerializeToString()
        request = _CLASSES["Request"](service=service, method=method, payload=payload)
        self._stream += 2
        self.send(Message(PLUGIN, self._stream, REQUEST, request.SerializeToString()))
        message = await self.message()
        assert message[:3] == (PLUGIN, self._stream, RESPONSE)
        return _CLASSES["Response"].FromString(message.payload)

    def send(self, message: Message) -> None:
        self.writer.write(encode_frames(message))


def encoded(kind: str, **fields: Any) -> bytes:
    """A message by its name in `nri_messages`."""
    return _CLASSES[kind](**fields).SerializeToString()
