"""Frames of the socket of NRI: ttrpc messages of several connections over one socket.

A frame of the multiplexer is the number of a connection and a length, both 32 bits big-endian, and
that many bytes of the connection. The bytes of a connection are messages of
[ttrpc](https://github.com/containerd/ttrpc/blob/main/PROTOCOL.md): a length and a stream, both 32
bits big-endian, a type and flags, a byte each, and the payload.
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from pipeline.errors import ContainerRuntimeError

MOST_PAYLOAD_BYTES: Final = 4 << 20
"""The longest payload of a message, by the specification of ttrpc."""
REQUEST: Final = 1
RESPONSE: Final = 2

_FRAME: Final = struct.Struct(">II")
_MESSAGE: Final = struct.Struct(">IIBB")
_MOST_FRAME_BYTES: Final = _MESSAGE.size + MOST_PAYLOAD_BYTES
_SENT_FRAME_BYTES: Final = 4096
"""Longer frames than the read buffer of the runtime's ttrpc are an error there."""


class Message(NamedTuple):
    """A message of ttrpc. `connection` is the number of its connection."""

    connection: int
    stream: int
    type: int
    payload: bytes


class FrameReader:
    """Puts messages of these connections together from what a socket delivers, in any pieces. What
    it stores is less than a frame, and a message of each connection."""

    def __init__(self, connections: tuple[int, ...]) -> None:
        self._pending = bytearray()
        self._bytes = {connection: bytearray() for connection in connections}

    @property
    def is_within_message(self) -> bool:
        """Whether a message has begun that is not complete."""
        return bool(self._pending) or any(self._bytes.values())

    def feed(self, data: bytes) -> Iterator[Message]:
        """The messages that `data` completes. Bytes of other connections are dropped. Raises
        `ContainerRuntimeError` for a frame or a message that is too long."""
        self._pending += data
        while len(self._pending) >= _FRAME.size:
            connection, length = _FRAME.unpack_from(self._pending)
            if length > _MOST_FRAME_BYTES:
                raise ContainerRuntimeError(f"a frame of {length} bytes")
            end = _FRAME.size + length
            if len(self._pending) < end:
                return
            content = self._pending[_FRAME.size : end]
            del self._pending[:end]
            if (received := self._bytes.get(connection)) is not None:
                received += content
                yield from _messages(connection, received)


def _messages(connection: int, received: bytearray) -> Iterator[Message]:
    """Take complete messages off the bytes of a connection."""
    while len(received) >= _MESSAGE.size:
        length, stream, type_, _ = _MESSAGE.unpack_from(received)
        if length > MOST_PAYLOAD_BYTES:
            raise ContainerRuntimeError(f"a message of {length} bytes")
        end = _MESSAGE.size + length
        if len(received) < end:
            return
        payload = bytes(received[_MESSAGE.size : end])
        del received[:end]
        yield Message(connection, stream, type_, payload)


def encode_frames(message: Message) -> bytes:
    """The frames of a message."""
    header = _MESSAGE.pack(len(message.payload), message.stream, message.type, 0)
    content = header + message.payload
    return b"".join(
        _FRAME.pack(message.connection, len(piece)) + piece
        for start in range(0, len(content), _SENT_FRAME_BYTES)
        for piece in [content[start : start + _SENT_FRAME_BYTES]]
    )
