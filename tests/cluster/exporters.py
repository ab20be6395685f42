"""Samples of the nodes of a control plane, with the usage of recorded machines."""

import json
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.clock import SystemClock
from pipeline.local.control_plane import ControlPlane
from pipeline.local.replayed_usage import PodUsage, ReplayedUsage
from pipeline.settings import KafkaSettings
from tests.cluster.objects import items

WINDOW_SECONDS = 30
SERIES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent.parent / "data" / "usage" / "bitbrains.json").read_text()
)
STEPS = len(SERIES[0]["cpu_millicores"])


def usage_of(pod: str, step: int) -> tuple[float, float]:
    """Cores and bytes of a pod in a step, from the series with the pod's number."""
    series = SERIES[int(pod.partition("-")[0].removeprefix("s")) % len(SERIES)]
    index = step % STEPS
    return series["cpu_millicores"][index] / 1000, series["memory_mebibytes"][index] * 2.0**20


class Exporters(ReplayedUsage):
    """The exporters of all nodes. The last of `windows` windows ended just now. `usage` are the
    cores and bytes of a pod, by its name, in a step."""

    def __init__(
        self,
        plane: ControlPlane,
        kafka: KafkaSettings,
        *,
        windows: int,
        window_seconds: int = WINDOW_SECONDS,
        usage: PodUsage = usage_of,
    ) -> None:
        super().__init__(
            kafka, SystemClock(), partial(running_pods, plane), usage,
            windows=windows, window_seconds=window_seconds,
        )  # fmt: skip


def running_pods(plane: ControlPlane) -> dict[str, dict[str, str]]:
    """The names of pods that run, by UID, of each node."""
    pods: dict[str, dict[str, str]] = {
        node["metadata"]["name"]: {} for node in items(plane, "nodes")
    }
    for pod in items(plane, "pods", "-A"):
        node_name = pod["spec"].get("nodeName")
        if node_name and pod["status"]["phase"] == "Running":
            names = pods.setdefault(node_name, {})
            names[pod["metadata"]["uid"]] = pod["metadata"]["name"]
    return pods
