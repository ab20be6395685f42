"""The partition of a node is that of Kafka's default partitioner, computed here by definition."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.kafka.partition import partition_of

_MASK = 0xFFFFFFFF


def reference_murmur2(data: bytes) -> int:
    """MurmurHash2, 32 bits, with Kafka's seed, from its published definition."""
    h = 0x9747B28C ^ len(data)
    whole = len(data) - len(data) % 4
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        k = word * 0x5BD1E995 & _MASK
        k = (k ^ k >> 24) * 0x5BD1E995 & _MASK
        h = h * 0x5BD1E995 & _MASK ^ k
    if tail := data[whole:]:
        h = (h ^ int.from_bytes(tail, "little")) * 0x5BD1E995 & _MASK
    h = (h ^ h >> 13) * 0x5BD1E995 & _MASK
    return h ^ h >> 15


# The values that Kafka's own client tests expect of its Java implementation (signed there).
@pytest.mark.parametrize(
    ("data", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_reference_returns_the_published_values(data: bytes, signed: int) -> None:
    assert reference_murmur2(data) == signed & _MASK


@given(st.text(max_size=300), st.integers(1, 4096))
def test_partition_is_positive_murmur2_modulo_partitions(node: str, partitions: int) -> None:
    expected = (reference_murmur2(node.encode()) & 0x7FFFFFFF) % partitions
    assert partition_of(node, partitions) == expected


@pytest.mark.parametrize("partitions", [0, -1])
def test_no_partitions_is_an_error(partitions: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        partition_of("node-1", partitions)
