"""What a node uses beside its pods and host applications: the system remainder.

Owes the rest: max(node - pods - host applications, 0), and nothing at all (None, NaN in arrays)
where an input is missing or stale.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

# An input exactly this old is still fresh.
STALE_SECONDS: Final = 10.0


class Usage(NamedTuple):
    """A usage of two resources and how long ago it was measured."""

    cpu_cores: float
    memory_bytes: float
    age_seconds: float = 0.0


class Reading(NamedTuple):
    """One value and how long ago it was measured."""

    value: float
    age_seconds: float = 0.0


class NumaUsage(NamedTuple):
    """System usage of one NUMA node; None is unknown."""

    cpu_cores: float | None
    memory_bytes: float | None


def remainder(node: FloatArray, pods: FloatArray, host_apps: FloatArray) -> FloatArray:
    """max(node - pods - host_apps, 0) elementwise; NaN where any of them is NaN."""
    left = node - pods - host_apps
    return np.where(left < 0.0, 0.0, left)


def system_usage(
    node: Usage | None,
    pods: Iterable[Usage],
    host_apps: Usage | None,
    stale_seconds: float = STALE_SECONDS,
) -> Usage | None:
    """The remainder of one node; None if an input is missing or older than `stale_seconds`."""
    pods = list(pods)
    if node is None or host_apps is None:
        return None
    if any(usage.age_seconds > stale_seconds for usage in (node, host_apps, *pods)):
        return None
    sums = np.array([sum(pod.cpu_cores for pod in pods), sum(pod.memory_bytes for pod in pods)])
    left = remainder(np.array(node[:2]), sums, np.array(host_apps[:2]))
    return Usage(float(left[0]), float(left[1]))


def numa_system_usage(
    system_cpu_cores: float,
    numa_cpu: Mapping[str, Reading],
    numa_memory: Mapping[str, Reading],
    pods_numa_memory: Mapping[str, Reading],
    stale_seconds: float = STALE_SECONDS,
) -> dict[str, NumaUsage]:
    """The remainder per NUMA node id.

    CPU is shared by each node's part of the CPU in use; one stale reading drops the CPU of all.
    Memory is max(node - pods, 0); a stale reading drops its node, a stale or missing sum of pods
    the memory of all. NUMA nodes of which nothing is known are left out.
    """
    fresh_cpu = all(reading.age_seconds <= stale_seconds for reading in numa_cpu.values())
    total = sum(reading.value for reading in numa_cpu.values())
    pods_known = bool(pods_numa_memory) and all(
        reading.age_seconds <= stale_seconds for reading in pods_numa_memory.values()
    )
    result = {}
    for numa in sorted({*numa_cpu, *numa_memory}):
        cpu = memory = None
        if fresh_cpu and numa in numa_cpu:
            cpu = system_cpu_cores * numa_cpu[numa].value / total if total > 0 else 0.0
        reading = numa_memory.get(numa)
        if pods_known and reading is not None and reading.age_seconds <= stale_seconds:
            pods = pods_numa_memory.get(numa)
            memory = None if pods is None else max(reading.value - pods.value, 0.0)
        if cpu is not None or memory is not None:
            result[numa] = NumaUsage(cpu, memory)
    return result
