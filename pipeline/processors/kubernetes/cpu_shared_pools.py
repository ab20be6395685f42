"""Read the CPUs that pods share on a node, from annotations of the node and of its pods.

Koordinator's [CPU orchestration](https://koordinator.sh/docs/user-manuals/fine-grained-cpu-orchestration).
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from pipeline.errors import InvalidPolicyError
from pipeline.processors.kubernetes.node_reservation import RESOURCE_STATUS, cpu_numbers

SHARED_POOLS: Final = "node.koordinator.sh/cpu-shared-pools"


class _Pool(msgspec.Struct, frozen=True):
    node: int = 0
    cpuset: str = ""


class _NumaNode(msgspec.Struct, frozen=True):
    node: int = 0


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    numa_node_resources: list[_NumaNode] = msgspec.field(default_factory=list)


def cpu_shared_pools(annotations: Mapping[str, str]) -> dict[int, frozenset[int]]:
    """The CPUs that LS pods share, by NUMA node; none without a valid annotation of the node."""
    try:
        written = msgspec.json.decode(annotations.get(SHARED_POOLS, "[]"), type=list[_Pool])
        pools: dict[int, frozenset[int]] = {}
        for pool in written:
            cpus = cpu_numbers(pool.cpuset, f"annotation {SHARED_POOLS}")
            pools[pool.node] = pools.get(pool.node, frozenset()) | cpus
    except (msgspec.DecodeError, UnicodeError, RecursionError, InvalidPolicyError):
        return {}
    return pools


def numa_nodes(annotations: Mapping[str, str]) -> frozenset[int]:
    """The NUMA nodes that a scheduler gave to a pod; none without a valid annotation."""
    try:
        written = msgspec.json.decode(annotations.get(RESOURCE_STATUS, "{}"), type=_Status)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return frozenset()
    return frozenset(numa.node for numa in written.numa_node_resources)
