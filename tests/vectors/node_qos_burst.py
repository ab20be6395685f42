"""Groups of CPU burst."""

from collections.abc import Mapping
from typing import Any

import msgspec

from pipeline.processors.node_qos.burst_limiter import BurstLimiter
from pipeline.processors.node_qos.cgroup_values import (
    UNLIMITED,
    Knob,
    Place,
    Value,
    quota_us_of_millicores,
)
from pipeline.processors.node_qos.cpu_burst import LONGEST_STEP_SECONDS, CpuBurst
from pipeline.processors.node_qos.node_state import ContainerState, NodeState, PodState
from pipeline.processors.node_qos.share_pool_load import SharePoolLoad
from pipeline.processors.slo.nodeslo import BurstStrategy, NodeSLOSpec
from pipeline.topics.resource_amounts import Resources
from tests.vectors.cases import Case
from tests.vectors.runner import Difference, group

_POD = "kubepods/burstable/pod1"
_LARGE = Resources(cpu_millicores=10**9)
_THRESHOLD = 50
_CORES_USED = {"idle": 0.0, "cooling": 0.47e6, "overload": 1e6, "unknown": None}
"""Of a million cores, where the threshold is 50%."""


def _quota_us(limit_millicores: int | None) -> int:
    return quota_us_of_millicores(limit_millicores or 0)


def _no_burst_above_the_quota(given: Case, expected: Case) -> Difference | None:
    limits = [container["limit_milli"] for container in given["containers"]]
    bursts = [
        min(burst, _quota_us(limit))
        for burst, limit in zip(expected["container_burst_us"], limits, strict=True)
    ]
    answer = {"container_burst_us": bursts, "pod_burst_us": sum(bursts)}
    if answer == expected:
        return None
    return Difference(
        "the kernel refuses a burst above the quota, which also the default of 1000 % is",
        "containers get the largest burst that the kernel accepts instead of none",
        answer,
    )


def _pod(containers: list[ContainerState], limit_millicores: int | None) -> PodState:
    return PodState(
        uid="1", path=_POD, kube_qos="Burstable", qos="LS", phase="Running",
        cgroup_limits=Resources(cpu_millicores=limit_millicores), containers=tuple(containers),
    )  # fmt: skip


def _container(name: str, given: Case, **fields: Any) -> ContainerState:
    limits = Resources(cpu_millicores=given["limit_milli"])
    return ContainerState(name=name, path=f"{_POD}/{name}", limits=limits, **fields)


def _state(strategy: BurstStrategy, pod: PodState, **fields: Any) -> NodeState:
    slo = NodeSLOSpec(cpu_burst_strategy=strategy)
    return NodeState(**{"node": "n", "at": 0.0, "slo": slo, "pods": (pod,), **fields})


@group("CpuBurst.claims", differs=_no_burst_above_the_quota, truncated=True)
def cpu_burst_static(case: Case) -> object:
    containers = [_container(str(n), given) for n, given in enumerate(case["containers"])]
    limits = [container.limits.cpu_millicores for container in containers]
    pod = _pod(containers, sum(limit or 0 for limit in limits) if all(limits) else None)
    strategy = BurstStrategy(policy=case["policy"], cpu_burst_percent=case["cpu_burst_percent"])
    claims = CpuBurst().claims(_state(strategy, pod), {})
    values = {claim.place: claim.value for claim in claims}
    paths = [container.path for container in containers]
    return {
        "container_burst_us": [values.get(Place(path, Knob.CPU_BURST), 0) for path in paths],
        "pod_burst_us": values.get(Place(_POD, Knob.CPU_BURST), 0),
    }


@group("CpuBurst.claims")
def cpu_burst(case: Case) -> object:
    """A round in which limiters start, and one after a minute in which the containers that the
    limiter refuses used far more than their limit; quotas as the feature claimed them before."""
    strategy = BurstStrategy(
        policy=case["policy"], cfs_quota_burst_percent=case["cfs_quota_burst_percent"],
        cfs_quota_burst_period_seconds=1000, share_pool_threshold_percent=_THRESHOLD,
    )  # fmt: skip
    containers, former, extra = [], dict[Place, Value](), 0
    for number, each in enumerate(case["containers"]):
        used = 0.0 if each["limiter_allows"] else (each["limit_milli"] or 0) * 1.0
        container = _container(
            str(number), each, throttled_ratio=each["throttled_ratio"], cpu_cores=used
        )
        containers.append(container)
        quota_us = each["quota_us"]
        former[Place(container.path, Knob.CPU_QUOTA)] = quota_us if quota_us > 0 else UNLIMITED
        if each["limit_milli"] is not None:
            extra += quota_us - _quota_us(each["limit_milli"])
    quota_us = case["pod_quota_us"]
    pod = _pod(containers, (quota_us - extra) // 100 if quota_us > 0 else None)
    if quota_us > 0:
        former[Place(_POD, Knob.CPU_QUOTA)] = quota_us
    cores = _CORES_USED[case["node_state"]]
    state = _state(strategy, pod, capacity=_LARGE, cpu_cores=cores)
    feature = CpuBurst()
    feature.claims(state, former)
    claims = feature.claims(msgspec.structs.replace(state, at=LONGEST_STEP_SECONDS), former)
    values = {claim.place: claim.value for claim in claims}
    return {
        "container_quota_us": [
            _claimed(values, container.path, _quota_us(container.limits.cpu_millicores))
            for container in containers
        ],
        "pod_quota_us": _claimed(values, _POD, _quota_us(pod.cgroup_limits.cpu_millicores)),
    }


def _claimed(values: Mapping[Place, Value], path: str, original: int) -> Value:
    """The claimed quota, or what is restored: that by the limit."""
    value = values.get(Place(path, Knob.CPU_QUOTA), original)
    return -1 if value == UNLIMITED else value


@group("SharePoolLoad.load")
def cpu_burst_node_state(case: Case) -> object:
    pods = tuple(
        PodState(
            uid=str(number), path=f"kubepods/pod{number}", qos=pod["qos"],
            kube_qos="BestEffort" if pod["qos"] == "BE" else "Burstable",
            requests=Resources(cpu_millicores=pod["request_milli"]), cpu_cores=pod["used_cores"],
        )
        for number, pod in enumerate(case["pods"])
    )  # fmt: skip
    state = NodeState(
        node="n", at=0.0, capacity=Resources(cpu_millicores=1000 * case["total_cpus"]),
        cpu_cores=case["node_used_cores"], pods=pods,
    )  # fmt: skip
    return {"state": SharePoolLoad().load(state, case["share_pool_threshold_percent"]).value}


@group("BurstLimiter.use")
def cpu_burst_limiter(case: Case) -> object:
    limiter = BurstLimiter(case["period_s"], case["max_percent"], tokens=case["tokens"], at=0.0)
    limiter.use(case["usage_percent"], case["elapsed_s"])
    return {
        "capacity": limiter.capacity, "tokens": limiter.tokens, "allowed": limiter.allows,
    }  # fmt: skip
