"""The one function that says where a node's records lie.

Every record about a node, in every topic, lies in `partition_of(node, partitions)`, whatever its
key: so all that concerns a node has one owner, and whoever writes to our topics from another
language gets the same answer from Kafka's default partitioner with the node name as key.
"""

from functools import lru_cache

from aiokafka.partitioner import murmur2


@lru_cache(maxsize=65_536)
def partition_of(node: str, partitions: int) -> int:
    """Partition of `node` among `partitions`: Kafka's murmur2 of the UTF-8 name, made positive.

    >>> partition_of("node-1", 16)
    10
    """
    if partitions < 1:
        raise ValueError(f"partitions must be at least 1, not {partitions}")
    hashed: int = murmur2(node.encode())
    return (hashed & 0x7FFFFFFF) % partitions
