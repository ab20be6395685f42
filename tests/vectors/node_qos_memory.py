"""Groups of memory QoS."""

import json
from typing import Any

from pipeline.processors.node_qos.cgroup_values import UNLIMITED, Knob, Place
from pipeline.processors.node_qos.memory_qos import ANNOTATION, MemoryProtection
from pipeline.processors.node_qos.node_state import ContainerState, NodeState, PodState
from pipeline.processors.slo.nodeslo import MemoryQos, NodeSLOSpec, QosClass, QosStrategy
from pipeline.topics.resource_amounts import Resources
from tests.vectors.cases import Case
from tests.vectors.runner import group

_PERCENTS = {
    "min_limit_percent": "minLimitPercent", "low_limit_percent": "lowLimitPercent",
    "throttling_percent": "throttlingPercent",
}  # fmt: skip
_DIRECTORIES = {
    "kubepods": "kubepods", "burstable": "kubepods/burstable", "besteffort": "kubepods/besteffort",
}  # fmt: skip
_PROTECTION = {"memory.min": Knob.MEMORY_MIN, "memory.low": Knob.MEMORY_LOW}


def _memory(amount: int | None) -> Resources:
    return Resources(memory_bytes=amount)


def _pod(number: int, given: Case, kube_qos: Any, request: int, **fields: Any) -> PodState:
    """A pod whose annotation has the percentages of a case."""
    own = {"policy": "default"} | {k: given[name] for name, k in _PERCENTS.items() if name in given}
    requests = {"batch" if kube_qos == "BestEffort" else "requests": _memory(request)}
    return PodState(
        uid=str(number), path=f"pod{number}", kube_qos=kube_qos, phase="Running",
        qos="BE" if kube_qos == "BestEffort" else "LS", annotations={ANNOTATION: json.dumps(own)},
        **{**requests, **fields},
    )  # fmt: skip


def _claimed(*pods: PodState, allocatable: int | None = None, **fields: Any) -> dict[Place, Any]:
    slo = NodeSLOSpec(resource_qos_strategy=QosStrategy(**fields))
    state = NodeState(node="n", at=0.0, slo=slo, allocatable=_memory(allocatable), pods=pods)
    return {claim.place: claim.value for claim in MemoryProtection().claims(state, {})}


@group("MemoryProtection.claims")
def memory_qos(case: Case) -> object:
    match case["level"]:
        case "container":
            container = ContainerState(
                name="a", path="pod0/a", requests=_memory(case["request"]),
                limits=_memory(case["limit"]),
            )  # fmt: skip
            pod = _pod(0, case, "Burstable", case["request"], containers=(container,))
            values = _claimed(pod, allocatable=case["node_allocatable"])
            files = _PROTECTION | {"memory.high": Knob.MEMORY_HIGH}
            return {name: values.get(Place("pod0/a", knob)) for name, knob in files.items()}
        case "pod":
            values = _claimed(_pod(0, case, "Burstable", sum(case["container_requests"])))
            return {name: values.get(Place("pod0", knob)) for name, knob in _PROTECTION.items()}
        case "qos":
            pods = [
                _pod(number, given, given["kube_qos"], given["request"])
                for number, given in enumerate(case["pods"])
            ]
            values = _claimed(*pods)
            return {
                name: {file: values.get(Place(path, knob)) for file, knob in _PROTECTION.items()}
                for name, path in _DIRECTORIES.items()
            }
    raise LookupError(case["level"])


@group("MemoryProtection.claims")
def memory_page_cache_limit(case: Case) -> object:
    limit = case["pod_limit"]
    rules = MemoryQos(
        enable=True, page_cache_limit_size=case["page_cache_limit_size"],
        page_cache_limit_percent=case["page_cache_limit_percent"],
        page_cache_enable=case["page_cache_enable"],
        page_cache_reclaim_sync=case["reclaim_sync"],
    )  # fmt: skip
    pod = PodState(
        uid="0", path="pod0", kube_qos="Burstable", qos="LS",
        cgroup_limits=_memory(None if limit == -1 else limit),
    )  # fmt: skip
    values = _claimed(pod, ls_class=QosClass(memory_qos=rules))
    assert UNLIMITED not in values.values()
    knobs = {
        "enable": Knob.PAGE_CACHE_ENABLE, "size": Knob.PAGE_CACHE_SIZE,
        "sync": Knob.PAGE_CACHE_SYNC,
    }  # fmt: skip
    return {name: values.get(Place("pod0", knob)) for name, knob in knobs.items()}
