"""What a node uses beside its pods and host applications: the system remainder.

Owes the rest: max(node - pods - host applications, 0), and NaN, unknown, where a part is.
"""

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

    The system's CPU, (n,), is shared by each NUMA node's part of the CPU in use, (n, k), which is
    unknown where that of one is. Of memory, (n, k), what pods use is taken away, host applications
    are not; where pods are unknown on one NUMA node, they may be anywhere. Nothing calls it before
    NodeMetric's `numaUsages` are reported (part 3): no exporter measures by NUMA node yet.
    """
    total = cpu.sum(axis=1, keepdims=True)
    # Nobody's part is 0 where there is no load, and unknown where the load is.
    parts = np.divide(cpu, total, out=total * np.zeros(cpu.shape), where=total > 0.0)
    pods = np.where(np.isnan(pods_memory).any(axis=1, keepdims=True), np.nan, pods_memory)
    return np.stack([system_cpu[:, None] * parts, remainder(memory, pods)], axis=-1)
