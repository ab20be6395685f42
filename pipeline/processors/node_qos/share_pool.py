"""Give each pod the CPUs of its class: its own, the pool of latency-sensitive pods, or the rest."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from pipeline.processors.kubernetes.cpu_shared_pools import numa_nodes
from pipeline.processors.node_qos.cgroup_values import UNLIMITED, CpuSet, Knob, Place, Value
from pipeline.processors.node_qos.claims import Claim, held
from pipeline.processors.node_qos.cpu_pools import (
    best_effort_cpus,
    best_effort_cpuset_paths,
    has_unknown_owners,
    shared_pools,
    unknown_elsewhere,
)
from pipeline.processors.node_qos.node_state import NodeState, PodState

_NAME: Final = "share_pool"


class _Pools(NamedTuple):
    """All CPUs of the node, those that LS pods share by NUMA node and in all, and the system's."""

    all_cpus: CpuSet
    by_node: Mapping[int, CpuSet]
    shared: CpuSet
    system: CpuSet

    @classmethod
    def of(cls, state: NodeState) -> "_Pools":
        by_node = shared_pools(state)
        all_cpus = state.all_cpus
        return cls(all_cpus, by_node, _union(by_node, by_node), state.system_cpus & all_cpus)


class _Given(NamedTuple):
    cpus: CpuSet
    why: str
    is_own: bool = False


class SharePool:
    """Koordinator's CPU sets by QoS class.

    A pod with CPUs of its own gets these, and no quota: its CPUs limit it, and throttling would
    leave them idle. Pods and host applications of the class LS, and pods without a class, get the
    shared pools; best-effort work gets what LSE pods leave; SYSTEM pods get the CPUs of the system.
    Pods without a class keep their CPUs where the kubelet's policy is static. All CPUs are no
    claim.
    """

    name = _NAME
    reads_usage: Final = False

    def claims(self, state: NodeState, former: Mapping[Place, Value]) -> list[Claim]:
        """CPU sets of containers, host applications and best-effort work."""
        if state.slo is None or not state.cpus or has_unknown_owners(state):
            return held(former, _NAME)
        pools = _Pools.of(state)
        return [
            *_pod_claims(state, pools),
            *_app_claims(state, pools),
            *_best_effort_claims(state, pools),
            *held(former, _NAME, unknown_elsewhere(state)),
        ]


def _pod_claims(state: NodeState, pools: _Pools) -> Iterator[Claim]:
    for pod in state.listed_pods():
        given = _cpus_of(pod, pools, state.cpu_manager_policy)
        if given is None or not given.cpus:
            continue
        # The directory of the pod stays wide: on v1 it could not be narrower than its sandbox.
        for container in pod.containers:
            yield from _cpuset(container.path, given, pools)
        if given.is_own:
            for path in (pod.path, *(container.path for container in pod.containers)):
                yield Claim(Place(path, Knob.CPU_QUOTA), UNLIMITED, _NAME, given.why)


def _cpus_of(pod: PodState, pools: _Pools, cpu_manager_policy: str) -> _Given | None:
    if pod.is_best_effort:
        return None
    own = pod.own_cpus & pools.all_cpus
    if own or pod.qos_label in ("LSE", "LSR"):
        return _Given(own, "the scheduler gave the pod these CPUs", is_own=True)
    if pod.qos_label == "SYSTEM":
        return _Given(pools.system, "the CPUs of the class SYSTEM")
    if pod.qos_label == "LS":
        nodes = numa_nodes(pod.annotations)
        cpus = _union(pools.by_node, nodes) if nodes else pools.shared
        return _Given(cpus, "the shared pool of LS pods")
    if cpu_manager_policy == "static":
        return None
    return _Given(pools.shared, "the shared pool, which has pods without a class")


def _app_claims(state: NodeState, pools: _Pools) -> Iterator[Claim]:
    given = _Given(pools.shared, "the shared pool of LS host applications")
    for app in state.host_apps:
        if app.qos == "LS":
            yield from _cpuset(app.path, given, pools)


def _best_effort_claims(state: NodeState, pools: _Pools) -> Iterator[Claim]:
    given = _Given(best_effort_cpus(state), "what reserved CPUs and LSE pods leave")
    for path in best_effort_cpuset_paths(state):
        yield from _cpuset(path, given, pools)


def _cpuset(path: str, given: _Given, pools: _Pools) -> Iterator[Claim]:
    if given.cpus and given.cpus != pools.all_cpus:
        yield Claim(Place(path, Knob.CPUSET), given.cpus, _NAME, given.why)


def _union(pools: Mapping[int, CpuSet], nodes: Iterable[int]) -> CpuSet:
    return frozenset[int]().union(*(pools.get(node, frozenset()) for node in nodes))
