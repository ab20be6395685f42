"""Which CPUs of a node belong to whom, and which cgroups hold best-effort work."""

from collections.abc import Iterator

from pipeline.processors.node_qos.cgroup_values import CpuSet
from pipeline.processors.node_qos.node_state import BEST_EFFORT, NodeState


def owned_cpus(state: NodeState, *qos: str) -> CpuSet:
    """CPUs that a scheduler gave by number to pods of these QoS classes."""
    return frozenset[int]().union(*(p.own_cpus for p in state.listed_pods() if p.qos in qos))


def has_unknown_owners(state: NodeState) -> bool:
    """Whether an LSE or LSR pod may have CPUs of its own that the view does not say."""
    return any(not pod.listed and pod.qos in ("LSE", "LSR") for pod in state.pods)


def reserved_cpus(state: NodeState) -> CpuSet:
    """CPUs that no pool has: those of the node's reservation, and those of the class SYSTEM unless
    it shares them."""
    system = state.system_cpus if state.system_cpus_exclusive else frozenset[int]()
    return state.reservation.cpus | system


def best_effort_cpus(state: NodeState) -> CpuSet:
    """CPUs that best-effort work may use without suppression.

    LSR pods share their CPUs with it, LSE pods do not.
    """
    return state.all_cpus - reserved_cpus(state) - owned_cpus(state, "LSE")


def shared_pools(state: NodeState) -> dict[int, CpuSet]:
    """CPUs for latency-sensitive pods by NUMA node, without empty pools.

    They are those of the node's annotation, else all; never CPUs that are reserved or owned by an
    LSE or LSR pod.
    """
    taken = reserved_cpus(state) | owned_cpus(state, "LSE", "LSR")
    pools = state.cpu_shared_pools or _cpus_by_node(state)
    usable = state.all_cpus - taken
    return {node: cpus & usable for node, cpus in sorted(pools.items()) if cpus & usable}


def _cpus_by_node(state: NodeState) -> dict[int, CpuSet]:
    cpus: dict[int, list[int]] = {}
    for cpu in state.cpus:
        cpus.setdefault(cpu.node, []).append(cpu.cpu)
    return {node: frozenset(numbers) for node, numbers in cpus.items()}


def best_effort_cpuset_paths(state: NodeState) -> list[str]:
    """The cgroups whose CPU set holds best-effort work down, in the order of their names.

    On v2 the directory is enough, because the kernel trims the sets below it. On v1 a CPU set can
    shrink only after those of its children. With the policy static the kubelet gives containers
    CPU sets outside of a narrow directory, so only containers and host applications are held down.
    Pods of the class BE in another directory are held down by their containers.
    """
    paths = {path for pod in _labelled_elsewhere(state) for path in pod}
    if state.cgroup_version == 2:
        return sorted({*paths, state.best_effort_path})
    for pod in state.pods:
        if pod.kube_qos == BEST_EFFORT:
            paths.update((pod.path, *(container.path for container in pod.containers)))
    paths.update(state.best_effort_cgroups, (state.best_effort_path,))
    if state.cpu_manager_policy == "static":
        pod_depth = state.best_effort_path.count("/") + 1
        paths = {path for path in paths if path.count("/") > pod_depth}
    paths.update(app.path for app in state.host_apps if app.in_best_effort)
    return sorted(paths)


def unknown_elsewhere(state: NodeState) -> set[str]:
    """The paths of pods outside of the directory BestEffort whose class and containers are
    unknown."""
    return {pod.path for pod in state.pods if not pod.listed and pod.kube_qos != BEST_EFFORT}


def _labelled_elsewhere(state: NodeState) -> Iterator[tuple[str, ...]]:
    for pod in state.pods:
        if pod.is_best_effort and pod.kube_qos != BEST_EFFORT:
            yield tuple(container.path for container in pod.containers)
