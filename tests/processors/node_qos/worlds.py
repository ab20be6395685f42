"""States of a node for tests of features."""

from collections.abc import Mapping
from typing import Any

import msgspec

from pipeline.processors.node_qos.cgroup_values import Place, Value
from pipeline.processors.node_qos.node_state import ContainerState, Feature, NodeState, PodState
from pipeline.processors.slo.nodeslo import NodeSLOSpec
from pipeline.topics.resource_amounts import Resources

GIB = 2**30
DIRECTORIES = {
    "BestEffort": "kubepods/besteffort", "Burstable": "kubepods/burstable",
    "Guaranteed": "kubepods",
}  # fmt: skip


def amounts(cpu_millicores: int | None = None, memory_bytes: int | None = None) -> Resources:
    return Resources(cpu_millicores=cpu_millicores, memory_bytes=memory_bytes)


def pod(name: str, *containers: ContainerState, **fields: Any) -> PodState:
    """A running pod with the paths that its Kubernetes QoS gives it and its containers."""
    fields = {"kube_qos": "Burstable", "phase": "Running", "namespace": "default", **fields}
    path = f"{DIRECTORIES[fields['kube_qos']]}/pod{name}"
    placed = [msgspec.structs.replace(c, path=f"{path}/{c.name}") for c in containers]
    return PodState(uid=name, name=name, path=path, containers=tuple(placed), **fields)


def container(name: str = "main", **fields: Any) -> ContainerState:
    return ContainerState(name=name, path="", **fields)


def node(*pods: PodState, **fields: Any) -> NodeState:
    return NodeState(**{"node": "n", "at": 1e9, "slo": NodeSLOSpec(), "pods": pods, **fields})


def claimed(
    feature: Feature, state: NodeState, former: Mapping[Place, Value] | None = None
) -> dict[Place, Value]:
    """The claims of a feature by place; each place is claimed once and by its name."""
    claims = feature.claims(state, former or {})
    values = {claim.place: claim.value for claim in claims}
    assert len(values) == len(claims)
    assert {claim.feature for claim in claims} <= {feature.name}
    return values
