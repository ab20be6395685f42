"""Groups of CPU by class: the room of best-effort work, its CPU set or quota, identities."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from pipeline.processors.kubernetes.node_reservation import (
    RESOURCE_STATUS,
    Reservation,
    cpu_numbers,
)
from pipeline.processors.node_qos.best_effort_room import best_effort_room
from pipeline.processors.node_qos.cgroup_values import (
    UNLIMITED,
    CpuSet,
    Knob,
    Place,
    Value,
    cpu_list_text,
)
from pipeline.processors.node_qos.cpu_identity import CpuIdentity
from pipeline.processors.node_qos.cpu_pools import best_effort_cpus
from pipeline.processors.node_qos.cpu_suppression import CpuSuppression
from pipeline.processors.node_qos.cpuset_choice import choose_cpus, next_cpuset
from pipeline.processors.node_qos.node_state import (
    HostAppState,
    KubeQos,
    LogicalCpu,
    NodeState,
    PodState,
)
from pipeline.processors.node_qos.share_pool import SharePool
from pipeline.processors.slo.nodeslo import (
    CpuQos,
    NodeSLOSpec,
    QosClass,
    QosPolicies,
    QosStrategy,
    ThresholdStrategy,
)
from pipeline.topics.resource_amounts import Resources
from tests.vectors.cases import Case
from tests.vectors.runner import Difference, group

_DIRECTORY = "kubepods/besteffort"
_QUOTA, _CPUSET = Place(_DIRECTORY, Knob.CPU_QUOTA), Place(_DIRECTORY, Knob.CPUSET)


@group("best_effort_room", truncated=True)
def cpu_suppress_cores(case: Case) -> object:
    room = best_effort_room(
        NodeState(
            node="n",
            at=0.0,
            capacity=Resources(cpu_millicores=case["capacity_milli"]),
            allocatable=Resources(cpu_millicores=case["allocatable_milli"]),
            reservation=Reservation(cpu_millicores=case["annotation_reserved_milli"]),
            cpu_cores=case["node_used_cores"],
            pods=tuple(map(_pod, case["pods"])),
            host_apps=tuple(map(_host_app, case["host_apps"])),
        ),
        case["threshold_percent"],
        case["min_percent"],
    )
    assert room is not None
    return {
        "be_allowed_milli": room.allowed_millicores,
        "non_be_pods_used_cores": room.pods_cores,
        "non_be_host_apps_used_cores": room.host_apps_cores,
        "system_used_cores": room.system_cores,
    }


def _pod(pod: Case) -> PodState:
    # A pod that is not listed has no class but that of its directory, which the case leaves out.
    kube_qos: Any = pod["kube_qos"] or "Burstable"
    return PodState(
        uid=pod["uid"],
        path=pod["uid"],
        qos=pod["qos_label"],
        kube_qos=kube_qos,
        listed=pod["listed"],
        cpu_cores=pod["used_cores"],
    )


def _host_app(app: Case) -> HostAppState:
    return HostAppState(
        name=app["name"],
        path=app["name"],
        qos=app["qos"],
        in_best_effort=app["base"] == "KubepodsBesteffort",
        cpu_cores=app["used_cores"],
    )


@group("choose_cpus")
def cpu_suppress_cpuset_choice(case: Case) -> object:
    cpus = choose_cpus(case["want_cpus"], _processors(case))
    return {"cpus": list(cpus)}


def _processors(case: Case) -> tuple[LogicalCpu, ...]:
    return tuple(
        LogicalCpu(cpu=p["cpu"], core=p["core"], socket=p["socket"], node=p["node"])
        for p in case["processors"]
    )


def _cpus(text: str) -> CpuSet:
    return cpu_numbers(text, "case")


def _uses_what_there_is(given: Case, expected: Case) -> Difference | None:
    usable = _usable(given)
    if not usable or expected["target_cpus"] <= len(usable):
        return None
    return Difference(
        "where fewer CPUs may be used than are wanted, best-effort work gets all of these, not the "
        "CPUs that it had before",
        "best-effort work leaves CPUs that became reserved or owned by an LSE pod",
        {
            "target_cpus": expected["target_cpus"],
            "from_lsr": len(_cpus(given["lsr_cpus"]) & usable),
            "cpuset": cpu_list_text(usable),
            "changed": _cpus(given["old_cpuset"]) != usable,
        },
    )


def _usable(case: Case) -> CpuSet:
    system = case["system_qos_cpus"] if case["system_qos_exclusive"] else ""
    cpus = frozenset(processor["cpu"] for processor in case["processors"])
    return cpus - _cpus(case["lse_cpus"]) - _cpus(case["reserved_cpus"]) - _cpus(system)


@group("CpuSuppression.claims, next_cpuset", differs=_uses_what_there_is)
def cpu_suppress_cpuset_adjust(case: Case) -> object:
    """The CPU set is that of the claims; its parts are those of the step that they come from."""
    old, lsr = _cpus(case["old_cpuset"]), _cpus(case["lsr_cpus"])
    processors, allowed = _processors(case), case["be_allowed_milli"]
    state = _owned(case, processors)
    cpus = _claimed(_with_room(state, "cpuset", allowed), {_CPUSET: old}).get(_CPUSET, old)
    assert isinstance(cpus, frozenset)
    step = next_cpuset(
        allowed,
        processors,
        old_size=len(old),
        usable=best_effort_cpus(state),
        lsr_owned=lsr,
        node_cpus=len(processors),
    )
    assert cpus == (step.cpus or old)
    return {
        "target_cpus": step.wanted,
        "from_lsr": step.from_lsr,
        "cpuset": cpu_list_text(cpus),
        "changed": cpus != old,
    }


@group("CpuSuppression.claims")
def cpu_suppress_cfs_quota(case: Case) -> object:
    current = case["current_quota_us"]
    state = NodeState(node="n", at=0.0, capacity=Resources(cpu_millicores=case["capacity_milli"]))
    state = _with_room(state, "cfsQuota", case["be_allowed_milli"])
    quota = _claimed(state, {} if current < 0 else {_QUOTA: current})[_QUOTA]
    assert isinstance(quota, int)
    # The writer writes what differs.
    return {
        "new_quota_us": -1 if quota >= UNLIMITED else quota,
        "written": quota != (UNLIMITED if current < 0 else current),
    }


def _no_empty_set(given: Case, expected: Case) -> Difference | None:
    if expected["cpuset"] or not given["all_cpus"]:
        return None
    return Difference(
        "a cgroup cannot run on no CPU",
        "best-effort work keeps its CPUs where all are owned or reserved",
        {"cpuset": given["all_cpus"]},
    )


@group("SharePool.claims", differs=_no_empty_set)
def cpu_suppress_recover_cpuset(case: Case) -> object:
    """What best-effort work may use when suppression claims nothing."""
    processors = tuple(LogicalCpu(cpu, cpu, 0, 0) for cpu in sorted(_cpus(case["all_cpus"])))
    state = _owned(case, processors)
    claims = {claim.place: claim.value for claim in SharePool().claims(state, {})}
    cpus = claims.get(_CPUSET, state.all_cpus)
    assert isinstance(cpus, frozenset)
    return {"cpuset": cpu_list_text(cpus)}


def _owned(case: Case, processors: tuple[LogicalCpu, ...]) -> NodeState:
    """A node with idle pods that own the CPUs of the case."""
    owners = {"LSE": case["lse_cpus"], "LSR": case.get("lsr_cpus", "")}
    return NodeState(
        node="n",
        at=0.0,
        slo=NodeSLOSpec(),
        capacity=Resources(cpu_millicores=1000 * max(len(processors), 1)),
        reservation=Reservation(cpus=_cpus(case["reserved_cpus"])),
        cpus=processors,
        system_cpus=_cpus(case["system_qos_cpus"]),
        system_cpus_exclusive=case["system_qos_exclusive"],
        pods=tuple(
            PodState(
                uid=qos,
                path=f"kubepods/pod{qos}",
                kube_qos="Guaranteed",
                qos=qos,
                cpu_cores=0.0,
                annotations={RESOURCE_STATUS: json.dumps({"cpuset": text})},
            )
            for qos, text in owners.items()
        ),
    )


def _with_room(state: NodeState, policy: Any, allowed_milli: int) -> NodeState:
    """The node with so much room for best-effort work: the rest is reserved for the system."""
    capacity = state.capacity.cpu_millicores or 0
    percent = 100 if allowed_milli <= capacity else -(-allowed_milli * 100 // capacity)
    rules = ThresholdStrategy(
        enable=True, cpu_suppress_policy=policy, cpu_suppress_threshold_percent=percent
    )
    return msgspec.structs.replace(
        state,
        slo=NodeSLOSpec(resource_used_threshold_with_be=rules),
        reservation=state.reservation._replace(
            cpu_millicores=capacity * percent // 100 - allowed_milli
        ),
        cpu_cores=0.0,
    )


def _claimed(state: NodeState, former: Mapping[Place, Value]) -> dict[Place, Value]:
    claims = CpuSuppression(None, None).claims(state, former)
    return {claim.place: claim.value for claim in claims}


_DIRECTORIES: dict[KubeQos, str] = {
    "Guaranteed": "kubepods", "Burstable": "kubepods/burstable",
    "BestEffort": "kubepods/besteffort",
}  # fmt: skip


@group("CpuIdentity.claims")
def group_identity(case: Case) -> object:
    """Values of directories, of pods by their label, and of pods without one. What is not claimed
    has the 0 that the kernel gives to a new group."""
    classes = {
        f"{name}_class": QosClass(
            cpu_qos=CpuQos(enable=case[name]["enable"], group_identity=case[name]["value"])
        )
        for name in ("lsr", "ls", "be")
    }
    policies = QosPolicies(cpu_policy=case["policy"])
    pods: list[PodState] = []
    for qos in ("LSE", "LSR", "LS", "BE"):
        kube_qos: KubeQos = "BestEffort" if qos == "BE" else "Guaranteed"
        pods.append(PodState(uid=qos, path=qos, kube_qos=kube_qos, qos=qos, qos_label=qos))
    pods += [PodState(uid=qos, path=qos, kube_qos=qos) for qos in _DIRECTORIES]
    slo = NodeSLOSpec(resource_qos_strategy=QosStrategy(policies=policies, **classes))
    state = NodeState(node="n", at=0.0, slo=slo, pods=tuple(pods))
    values = {claim.place.path: claim.value for claim in CpuIdentity().claims(state, {})}
    return {
        "pod_by_label": {qos: values.get(qos, 0) for qos in ("LSE", "LSR", "LS", "BE")},
        "dir": {qos: values.get(path, 0) for qos, path in _DIRECTORIES.items()},
        "pod_by_kube_qos": {qos: values.get(qos, 0) for qos in _DIRECTORIES},
    }
