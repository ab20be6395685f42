"""Metrics of suppression and burst with Koordinator's names, so that its dashboards work unchanged.

Series are made at each scrape from the last round: those of containers that ended need no clean-up,
and unknown values have no series.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pipeline.clock import Clock
from pipeline.metrics import REGISTRY
from pipeline.processors.node_qos.cgroup_values import UNLIMITED, Knob, Place, Value
from pipeline.processors.node_qos.cpu_burst import CpuBurst
from pipeline.processors.node_qos.cpu_suppression import CpuSuppression
from pipeline.processors.node_qos.node_state import ContainerState, NodeState, PodState

STALE_SECONDS: Final = 10.0
"""Without a round for longer there are no series."""
_PERIOD_US: Final = 100_000
_CONTAINER: Final = ("node", "pod_namespace", "pod_name", "container_id", "container_name")

Claimed = Mapping[str, Mapping[Place, Value]]
"""What features hold in cgroups, by their names."""


class KoordletMetrics(Collector):
    """The series of a node. `claimed` returns what features hold now."""

    def __init__(self, claimed: Callable[[], Claimed], clock: Clock) -> None:
        self._claimed, self._clock = claimed, clock
        self._last: tuple[float, NodeState] | None = None

    def step(self, state: NodeState) -> None:
        """Note the state of a round."""
        self._last = self._clock.monotonic(), state

    def serve(self) -> None:
        """Add the series to the metrics page."""
        REGISTRY.register(self)

    def close(self) -> None:
        """Remove them from it."""
        REGISTRY.unregister(self)

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        last = self._last
        if last is None or self._clock.monotonic() - last[0] > STALE_SECONDS:
            return
        state, claimed = last[1], self._claimed()
        yield _suppressed(state, claimed.get(CpuSuppression.name, {}))
        yield _used(
            state, "ls", "CPU usage of pods that are not best-effort.",
            [pod for pod in state.pods if not pod.is_best_effort],
        )  # fmt: skip
        yield _used(
            state, "be", "CPU usage of best-effort pods.",
            [pod for pod in state.pods if pod.is_best_effort],
        )  # fmt: skip
        values = claimed.get(CpuBurst.name, {})
        yield _scaled(state, values, "burst", Knob.CPU_BURST, "Burst of a container by CPU burst.")
        yield _scaled(state, values, "quota", Knob.CPU_QUOTA, "Quota of a container by CPU burst.")


def _suppressed(state: NodeState, values: Mapping[Place, Value]) -> Metric:
    """CPU that best-effort pods may use; no series without a limit."""
    family = GaugeMetricFamily(
        "koordlet_be_suppress_cpu_cores", "CPU that best-effort pods are held down to.",
        labels=["node", "type"],
    )  # fmt: skip
    quota = values.get(Place(state.best_effort_path, Knob.CPU_QUOTA))
    if isinstance(quota, int) and quota < UNLIMITED:
        family.add_metric([state.node, "cfsQuota"], quota / _PERIOD_US)
    cpus = [value for value in values.values() if isinstance(value, frozenset)]
    if cpus:
        family.add_metric([state.node, "cpuset"], min(map(len, cpus)))
    return family


def _used(state: NodeState, tier: str, text: str, pods: list[PodState]) -> Metric:
    """Usage of pods; no series while that of one of them is unknown."""
    family = GaugeMetricFamily(f"koordlet_be_suppress_{tier}_used_cpu_cores", text, labels=["node"])
    cores = [pod.cpu_cores for pod in pods if pod.cpu_cores is not None]
    if len(cores) == len(pods):
        family.add_metric([state.node], sum(cores))
    return family


def _scaled(
    state: NodeState, values: Mapping[Place, Value], name: str, knob: Knob, text: str
) -> Metric:
    family = GaugeMetricFamily(
        f"koordlet_container_scaled_cfs_{name}_us", text, labels=list(_CONTAINER)
    )
    for pod in state.pods:
        for container in pod.containers:
            value = values.get(Place(container.path, knob))
            if isinstance(value, int):
                labels = [state.node, pod.namespace, pod.name, _id(container), container.name]
                family.add_metric(labels, value)
    return family


def _id(container: ContainerState) -> str:
    """The id in the name of a container's cgroup, such as cri-containerd-ID.scope."""
    return container.path.rpartition("/")[2].removesuffix(".scope").rpartition("-")[2]
