"""Messages of ttrpc in frames of the multiplexer."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actuators.node.ttrpc_frames import (
    MOST_PAYLOAD_BYTES,
    FrameReader,
    Message,
    encode_frames,
)
from pipeline.errors import ContainerRuntimeError

MESSAGES = st.builds(
    Message, st.integers(1, 3), st.integers(0, 2**32 - 1), st.integers(0, 255),
    st.binary(max_size=40) | st.sampled_from([bytes(4086), bytes(4087), bytes(9000)]),
)  # fmt: skip


def test_a_message_has_these_bytes() -> None:
    encoded = encode_frames(Message(2, 5, 1, b"abc"))
    assert encoded == bytes.fromhex("00000002 0000000d 00000003 00000005 01 00") + b"abc"


@given(messages=st.lists(MESSAGES, max_size=6), sizes=st.lists(st.integers(1, 5000), min_size=1))
def test_messages_arrive_in_any_pieces(messages: list[Message], sizes: list[int]) -> None:
    sent = b"".join(map(encode_frames, messages))
    frames, received, at = FrameReader((1, 2)), list[Message](), 0
    while at < len(sent):
        size = sizes[len(received) % len(sizes)]
        received += frames.feed(sent[at : at + size])
        at += size
    assert received == [message for message in messages if message.connection in (1, 2)]
    assert not frames.is_within_message


def test_frames_are_no_longer_than_the_readers_buffer() -> None:
    sent, at, lengths = encode_frames(Message(1, 1, 2, bytes(10_000))), 0, []
    while at < len(sent):
        _, length = struct.unpack_from(">II", sent, at)
        lengths.append(length)
        at += 8 + length
    assert lengths == [4096, 4096, 1818]


def test_the_longest_message_is_taken_and_a_longer_one_refused() -> None:
    longest = Message(1, 1, 1, bytes(MOST_PAYLOAD_BYTES))
    frame = struct.pack(">II", 1, 10 + MOST_PAYLOAD_BYTES)
    header = struct.pack(">IIBB", MOST_PAYLOAD_BYTES, 1, 1, 0)
    assert list(FrameReader((1,)).feed(frame + header + longest.payload)) == [longest]
    for head in (
        struct.pack(">II", 1, 11 + MOST_PAYLOAD_BYTES),
        struct.pack(">IIIIBB", 1, 10, MOST_PAYLOAD_BYTES + 1, 1, 1, 0),
    ):
        with pytest.raises(ContainerRuntimeError, match="bytes"):
            list(FrameReader((1,)).feed(head))
