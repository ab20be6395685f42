"""The system remainder: what a node uses besides its pods and host applications."""

import numpy as np

from pipeline.processors.arrays import FloatArray


def remainder(
    node: FloatArray, pods: FloatArray, host_apps: FloatArray | float = 0.0
) -> FloatArray:
    """max(node - pods - host_apps, 0) elementwise; NaN where any of them is NaN."""
    left = node - pods - host_apps
    return np.where(left < 0.0, 0.0, left)


def numa_remainder(
    system_cpu: FloatArray, cpu: FloatArray, memory: FloatArray, pods_memory: FloatArray
) -> FloatArray:
    """The remainder of k NUMA nodes of n nodes, (n, k, 2) cores and bytes.

    The system's CPU, (n,), is shared in proportion to the CPU in use on each NUMA node, (n, k); it
    is unknown on all where usage of one is. Memory, (n, k), is reduced by that of pods, not of host
    applications; it is unknown on all where pods of one NUMA node are. No exporter measures by
    NUMA node yet: only tests against upstream's vectors call this.
    """
    total = cpu.sum(axis=1, keepdims=True)
    # Without load every part is 0; where the load is unknown, so are the parts.
    parts = np.divide(cpu, total, out=total * np.zeros(cpu.shape), where=total > 0.0)
    pods = np.where(np.isnan(pods_memory).any(axis=1, keepdims=True), np.nan, pods_memory)
    return np.stack([system_cpu[:, None] * parts, remainder(memory, pods)], axis=-1)
