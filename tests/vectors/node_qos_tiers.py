"""Group of the cgroups of pods that run on Batch."""

from collections.abc import Mapping

from pipeline.processors.node_qos.batch_resources import BatchResources
from pipeline.processors.node_qos.cgroup_values import (
    SMALLEST_QUOTA_US,
    SMALLEST_SHARES,
    UNLIMITED,
    Knob,
    Place,
    Value,
)
from pipeline.processors.node_qos.node_state import ContainerState, NodeState, PodState
from pipeline.processors.node_qos.tier_amounts import container_amounts, pod_amounts
from pipeline.processors.slo.nodeslo import NodeSLOSpec, ThresholdStrategy
from pipeline.topics.pods import Container
from pipeline.topics.resource_amounts import BATCH, Scalars
from tests.vectors.cases import Case
from tests.vectors.runner import Difference, group

_POD = "kubepods/besteffort/pod1"
_FILES = {
    "cpu.shares": (Knob.CPU_SHARES, SMALLEST_SHARES),
    "cpu.cfs_quota_us": (Knob.CPU_QUOTA, UNLIMITED),
    "memory.limit_in_bytes": (Knob.MEMORY_LIMIT, UNLIMITED),
}
"""The knob of each file, and what the kubelet writes for a pod without native amounts."""


def _no_quota_that_the_kernel_refuses(given: Case, expected: Case) -> Difference | None:
    quotas = [files["cpu.cfs_quota_us"] for files in (expected["pod"], *expected["containers"])]
    if not any(0 <= quota < SMALLEST_QUOTA_US for quota in quotas):
        return None
    raised = [
        files | {"cpu.cfs_quota_us": max(files["cpu.cfs_quota_us"], SMALLEST_QUOTA_US)}
        if files["cpu.cfs_quota_us"] >= 0
        else files
        for files in (expected["pod"], *expected["containers"])
    ]
    return Difference(
        "the kernel refuses a quota of less than 1000 us, also one that normalization lowers to it",
        "a pod with a tiny limit on a fast CPU is limited at all",
        {"pod": raised[0], "containers": raised[1:]},
    )


@group("BatchResources.claims", differs=_no_quota_that_the_kernel_refuses)
def batch_resource_cgroup(case: Case) -> object:
    """Containers by their record, as the node's state reads them; then what the feature claims."""
    containers = [_container(given, str(n)) for n, given in enumerate(case["containers"])]
    pod = pod_amounts(containers, (), BATCH)
    states = tuple(
        ContainerState(
            name=c.name, path=f"{_POD}/{c.name}", batch=amounts[0], batch_limits=amounts[1]
        )
        for c in containers
        for amounts in [container_amounts(c, BATCH)]
    )
    owns_quotas = not case["cfs_quota_enabled"]
    threshold = ThresholdStrategy(enable=owns_quotas, cpu_suppress_policy="cfsQuota")
    state = NodeState(
        node="n",
        at=0.0,
        slo=NodeSLOSpec(resource_used_threshold_with_be=threshold),
        cpu_normalization=case["cpu_normalization_ratio"],
        pods=(
            PodState(
                uid="1", path=_POD, kube_qos="BestEffort", qos="BE", batch=pod.requests,
                batch_limits=pod.limits, containers=states,
            ),
        ),
    )  # fmt: skip
    values = {claim.place: claim.value for claim in BatchResources().claims(state, {})}
    return {
        "pod": _files(values, _POD),
        "containers": [_files(values, container.path) for container in states],
    }


def _container(given: Case, name: str) -> Container:
    requests = {BATCH[0]: given["request_milli"]}
    limits = {BATCH[0]: given["limit_milli"], BATCH[1]: given["limit_memory"]}
    return Container(name=name, scalars=_stated(requests), scalar_limits=_stated(limits))


def _stated(amounts: Mapping[str, int | None]) -> Scalars:
    return {name: amount for name, amount in amounts.items() if amount is not None}


def _files(values: Mapping[Place, Value], path: str) -> Case:
    read = {name: values.get(Place(path, knob), left) for name, (knob, left) in _FILES.items()}
    return {name: -1 if value == UNLIMITED else value for name, value in read.items()}
