"""The partition of a node.

Every record about a node, in every topic, is in `partition_of(node, partitions)`, whatever its key,
so that one worker owns all records of a node. Kafka's default partitioner returns the same for the
node's name as key, in any language.
"""

from functools import lru_cache

from aiokafka.partitioner import murmur2


@lru_cache(maxsize=65_536)
def partition_of(node: str, partitions: int) -> int:
    """The partition of `node`: Kafka's positive murmur2 of the UTF-8 name, modulo `partitions`.

    >>> partition_of("node-1", 16)
    10
    """
    if partitions < 1:
        raise ValueError(f"partitions must be at least 1, not {partitions}")
    hashed: int = murmur2(node.encode())
    return (hashed & 0x7FFFFFFF) % partitions
