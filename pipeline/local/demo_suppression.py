"""The node actuator of the demo: its policy, and what it leaves to best-effort pods."""

import json
import math
from pathlib import Path
from typing import Any, Final, NamedTuple

from pipeline.local import demo_queries
from pipeline.local.demo_workload import PODS, Workload, cpu_count
from pipeline.processors.policy.load_configmap import CONFIG_MAP

DEMANDING_POD: Final = "bursty-api"
BEST_EFFORT_POD: Final = "batch-crunch"

# Between bursts the other pods leave more of it than the best-effort pod wants, in a burst less.
_SHARED_CORES = 1.6
_USAGE_SECONDS = 2.0


class Suppression(NamedTuple):
    """What best-effort pods may use of the CPUs of this machine, and the usage of two pods.

    `allowed_cores` is None without a limit, a usage is None if it is unknown.
    """

    cpus: int
    allowed_cores: float | None
    demanding_cores: float | None
    best_effort_cores: float | None


def threshold_percent(cpus: int) -> int:
    """The share of so many CPUs that best-effort pods may fill, beside all others."""
    return min(100, math.ceil(100 * _SHARED_CORES / cpus))


def policy_object(cpus: int) -> dict[str, Any]:
    """Return the ConfigMap with the policy: suppression of best-effort pods by quota."""
    thresholds = {
        "enable": True,
        "cpuSuppressThresholdPercent": threshold_percent(cpus),
        "cpuSuppressPolicy": "cfsQuota",
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": CONFIG_MAP, "namespace": "koordinator-system"},
        "data": {"resource-threshold-config": json.dumps({"clusterStrategy": thresholds})},
    }


async def read_suppression(workload: Workload, socket: Path | None) -> Suppression:
    """Read the quota of best-effort pods, and usage from the exporter's local socket."""
    usage = await demo_queries.pod_usage(socket, _USAGE_SECONDS)
    cores = {pod.name: usage[pod.uid].cpu_cores for pod in PODS if pod.uid in usage}
    return Suppression(
        cpu_count(),
        workload.best_effort_quota_cores(),
        cores.get(DEMANDING_POD),
        cores.get(BEST_EFFORT_POD),
    )
