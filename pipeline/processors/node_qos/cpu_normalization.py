"""CPU normalization of pods of the class LS: lower quotas on faster CPUs, by the node's ratio."""

from collections.abc import Iterator, Mapping
from typing import Final

from pipeline.processors.node_qos.cgroup_values import Knob, Place, Value, quota_us_of_millicores
from pipeline.processors.node_qos.claims import Claim, held
from pipeline.processors.node_qos.cpu_burst import burst_rules
from pipeline.processors.node_qos.node_state import NodeState, PodState
from pipeline.processors.node_qos.normalized_quota import normalized_quota_us


class CpuNormalization:
    """Lower the CPU quotas of pods with the label LS or none, as in Koordinator.

    Pods with CPUs of their own keep their quota. Pods that may exceed it for a while are left to
    the feature `cpu_burst`, which starts from the lowered quota.
    """

    name: Final = "cpu_normalization"
    reads_usage: Final = False

    def claims(self, state: NodeState, former: Mapping[Place, Value]) -> list[Claim]:
        if state.slo is None:
            return held(former, self.name)
        claims = [
            Claim(Place(path, Knob.CPU_QUOTA), lowered_us, self.name, "CPU normalization")
            for pod in state.listed_pods()
            if _is_lowered(state, pod)
            for path, limit in _limits(pod)
            for quota_us in [quota_us_of_millicores(limit or 0)]
            for lowered_us in [normalized_quota_us(quota_us, state.cpu_normalization)]
            if lowered_us < quota_us
        ]
        return claims + held(former, self.name, {p.path for p in state.pods if not p.listed})


def _is_lowered(state: NodeState, pod: PodState) -> bool:
    if pod.qos_label not in ("", "LS") or pod.is_best_effort or _has_own_cpus(state, pod):
        return False
    strategy = state.slo and state.slo.cpu_burst_strategy
    return not (strategy and burst_rules(strategy, pod).raises_quota)


def _has_own_cpus(state: NodeState, pod: PodState) -> bool:
    by_kubelet = state.cpu_manager_policy == "static" and pod.kube_qos == "Guaranteed"
    return by_kubelet or bool(pod.own_cpus)


def _limits(pod: PodState) -> Iterator[tuple[str, int | None]]:
    """Paths with CPU limits in millicores; the limits of a pod are not less than of a container."""
    yield pod.path, pod.cgroup_limits.cpu_millicores
    for container in pod.containers:
        yield container.path, container.limits.cpu_millicores
