"""Metrics of suppression and burst with Koordinator's names, so that its dashboards work unchanged.

Series are made at each scrape from the last round: those of containers that ended need no clean-up,
and unknown values have no series.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pipeline.clock import Clock
from pipeline.metrics import REGISTRY, foreign_scraped_gauge
from pipeline.processors.node_qos.cgroup_values import UNLIMITED, Knob, Place, Value
from pipeline.processors.node_qos.cpu_burst import CpuBurst
from pipeline.processors.node_qos.cpu_suppression import CpuSuppression
from pipeline.processors.node_qos.node_state import ContainerState, NodeState, PodState

STALE_SECONDS: Final = 10.0
"""Without a round for longer there are no series."""
_PERIOD_US: Final = 100_000
_CONTAINER: Final = ("node", "pod_namespace", "pod_name", "container_id", "container_name")

_SUPPRESSED: Final = foreign_scraped_gauge(
    "koordlet_be_suppress_cpu_cores",
    "CPU that best-effort pods are held down to.",
    ["node", "type"],
)
_LS_USED: Final = foreign_scraped_gauge(
    "koordlet_be_suppress_ls_used_cpu_cores",
    "CPU usage of pods that are not best-effort.",
    ["node"],
)
_BE_USED: Final = foreign_scraped_gauge(
    "koordlet_be_suppress_be_used_cpu_cores", "CPU usage of best-effort pods.", ["node"]
)
_BURST: Final = foreign_scraped_gauge(
    "koordlet_container_scaled_cfs_burst_us", "Burst of a container by CPU burst.", _CONTAINER
)
_QUOTA: Final = foreign_scraped_gauge(
    "koordlet_container_scaled_cfs_quota_us", "Quota of a container by CPU burst.", _CONTAINER
)

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
        others = [pod for pod in state.pods if not pod.is_best_effort]
        yield _used(_LS_USED(), state.node, others)
        yield _used(_BE_USED(), state.node, [pod for pod in state.pods if pod.is_best_effort])
        values = claimed.get(CpuBurst.name, {})
        yield _scaled(_BURST(), state, values, Knob.CPU_BURST)
        yield _scaled(_QUOTA(), state, values, Knob.CPU_QUOTA)


def _suppressed(state: NodeState, values: Mapping[Place, Value]) -> Metric:
    """CPU that best-effort pods may use; no series without a limit."""
    family = _SUPPRESSED()
    quota = values.get(Place(state.best_effort_path, Knob.CPU_QUOTA))
    if isinstance(quota, int) and quota < UNLIMITED:
        family.add_metric([state.node, "cfsQuota"], quota / _PERIOD_US)
    cpus = [value for value in values.values() if isinstance(value, frozenset)]
    if cpus:
        family.add_metric([state.node, "cpuset"], min(map(len, cpus)))
    return family


def _used(family: GaugeMetricFamily, node: str, pods: list[PodState]) -> Metric:
    """The family with the usage of pods; no series while that of one of them is unknown."""
    cores = [pod.cpu_cores for pod in pods if pod.cpu_cores is not None]
    if len(cores) == len(pods):
        family.add_metric([node], sum(cores))
    return family


def _scaled(
    family: GaugeMetricFamily, state: NodeState, values: Mapping[Place, Value], knob: Knob
) -> Metric:
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
