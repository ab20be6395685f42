"""What a view says about its node and pods, decoded once for each view.

An invalid annotation counts as none. An invalid policy is none: features then claim what they
claimed before.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeVar

import msgspec

from pipeline.errors import InvalidPolicyError
from pipeline.processors.kubernetes.cpu_shared_pools import cpu_shared_pools
from pipeline.processors.kubernetes.node_reservation import (
    Reservation,
    cpu_numbers,
    valid_reservation,
)
from pipeline.processors.kubernetes.pod_classes import LABEL_QOS_CLASS, QOS_CLASSES
from pipeline.processors.node_qos.cgroup_values import CpuSet
from pipeline.processors.node_qos.extended_resource_spec import with_extended_resources
from pipeline.processors.node_qos.node_state import ContainerState, PodState
from pipeline.processors.node_qos.tier_amounts import (
    cgroup_limits,
    container_amounts,
    pod_amounts,
)
from pipeline.processors.policy.normalization import LARGEST_RATIO, RATIO
from pipeline.processors.slo.nodeslo import NodeSLOSpec
from pipeline.topics.node_views import NodeViewRecord, ViewPod
from pipeline.topics.pods import Container
from pipeline.topics.resource_amounts import BATCH, MID, Resources

SYSTEM_QOS: Final = "node.koordinator.sh/system-qos-resource"
"""Annotation of a node with the CPUs of the class SYSTEM."""
CPU_MANAGER: Final = "kubelet.koordinator.sh/cpu-manager-policy"
"""Annotation of a node with the kubelet's CPU manager policy."""

_T = TypeVar("_T")


class _SystemQos(msgspec.Struct, frozen=True, rename="camel"):
    cpuset: str = ""
    cpuset_exclusive: bool | None = None


class _CpuManager(msgspec.Struct, frozen=True):
    policy: str = "none"


class ViewFacts(NamedTuple):
    """A decoded view. `pods` are by the uid in the name of their cgroup, without paths and usage;
    `containers` has those of each pod by id."""

    slo: NodeSLOSpec | None
    problem: str
    """Why the policy is invalid; empty if it is valid, or if there is none."""
    reservation: Reservation
    system_cpus: CpuSet
    system_cpus_exclusive: bool
    cpu_shared_pools: Mapping[int, CpuSet]
    cpu_manager_policy: str
    cpu_normalization: float | None
    offered_batch: Resources
    offered_mid: Resources
    pods: Mapping[str, PodState]
    containers: Mapping[str, Mapping[str, ContainerState]]


def view_facts(view: NodeViewRecord) -> ViewFacts:
    """Decode a view."""
    slo, problem = _slo(view)
    pods = [with_extended_pod_resources(pod) for pod in view.pods]
    system = _json(view.annotations.get(SYSTEM_QOS), _SystemQos)
    manager = _json(view.annotations.get(CPU_MANAGER), _CpuManager)
    resources = view.resources
    return ViewFacts(
        slo=slo,
        problem=problem,
        reservation=valid_reservation(view.annotations),
        system_cpus=_cpus(system.cpuset),
        system_cpus_exclusive=system.cpuset_exclusive is not False,
        cpu_shared_pools=cpu_shared_pools(view.annotations),
        cpu_manager_policy=manager.policy,
        cpu_normalization=_ratio(view.annotations.get(RATIO)),
        offered_batch=(resources.batch if resources else None) or Resources(),
        offered_mid=(resources.mid if resources else None) or Resources(),
        pods={pod.cgroup_uid: pod_state(pod) for pod in pods},
        containers={pod.cgroup_uid: _containers(pod) for pod in pods},
    )


def with_extended_pod_resources(pod: ViewPod) -> ViewPod:
    """A pod with the Batch and Mid of its annotation in its containers."""
    return msgspec.structs.replace(
        pod,
        containers=with_extended_resources(pod.containers, pod.annotations),
        init_containers=with_extended_resources(pod.init_containers, pod.annotations),
    )


def _slo(view: NodeViewRecord) -> tuple[NodeSLOSpec | None, str]:
    try:
        return msgspec.json.decode(view.slo, type=NodeSLOSpec | None), ""
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return None, f"{error!s:.200}"


def pod_state(pod: ViewPod) -> PodState:
    """A pod of a view, without what its cgroups say."""
    batch = pod_amounts(pod.containers, pod.init_containers, BATCH)
    mid = pod_amounts(pod.containers, pod.init_containers, MID)
    return PodState(
        uid=pod.uid,
        path="",
        listed=not pod.cut,
        kube_qos="Burstable",
        namespace=pod.namespace,
        name=pod.name,
        qos=pod.qos,
        qos_label=label if (label := pod.labels.get(LABEL_QOS_CLASS, "")) in QOS_CLASSES else "",
        pod_class=pod.pod_class,
        priority=pod.priority,
        phase=pod.phase,
        deleting=pod.deleting,
        requests=pod.requests,
        limits=pod.limits,
        cgroup_limits=cgroup_limits(pod.limits, (*pod.containers, *pod.init_containers)),
        batch=batch.requests,
        batch_limits=batch.limits,
        mid=mid.requests,
        mid_limits=mid.limits,
        labels=pod.labels,
        annotations=pod.annotations,
    )


def _containers(pod: ViewPod) -> dict[str, ContainerState]:
    by_name = {container.name: container for container in (*pod.init_containers, *pod.containers)}
    return {
        id: container_state(by_name[name])
        for name, id in pod.container_ids.items()
        if name in by_name
    }


def container_state(container: Container, path: str = "") -> ContainerState:
    """A container of a view, without usage."""
    batch, mid = container_amounts(container, BATCH), container_amounts(container, MID)
    return ContainerState(
        name=container.name,
        path=path,
        requests=container.requests,
        limits=container.limits,
        batch=batch.requests,
        batch_limits=batch.limits,
        mid=mid.requests,
        mid_limits=mid.limits,
    )


def _json(text: str | None, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(text or "{}", type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return kind()


def _cpus(text: str) -> CpuSet:
    try:
        return cpu_numbers(text, f"annotation {SYSTEM_QOS}")
    except InvalidPolicyError:
        return frozenset()


def _ratio(text: str | None) -> float | None:
    try:
        ratio = float(text) if text else None
    except ValueError:
        return None
    return ratio if ratio is not None and 1 <= ratio <= LARGEST_RATIO else None
