"""What the node actuator relies on of every feature."""

from typing import Any

import msgspec
import pytest

from pipeline.processors.node_qos.cgroup_values import Knob, Place
from pipeline.processors.node_qos.claims import Claim
from pipeline.processors.node_qos.features import built_features
from pipeline.processors.node_qos.node_state import (
    BlockDevices,
    Feature,
    HostAppState,
    NodeState,
    PressureLevels,
)
from pipeline.processors.slo.nodeslo import NodeSLOSpec
from tests.processors.node_qos.topologies import topology
from tests.processors.node_qos.worlds import GIB, amounts, container, node, pod

MEMORY = {"memoryQOS": {"enable": True, "minLimitPercent": 50, "throttlingPercent": 80}}
DISKS = {"blkioQOS": {"enable": True, "blocks": [{"name": "vda", "ioCfg": {"readIOPS": 100}}]}}
STATED = amounts(1000, GIB)


def slo(cpu_policy: str) -> NodeSLOSpec:
    batch = {"cpuQOS": {"enable": True, "groupIdentity": -1, "schedIdle": 1}, **MEMORY, **DISKS}
    strategy = {"policies": {"cpuPolicy": cpu_policy}, "lsClass": MEMORY, "beClass": batch}
    spec = {"resourceQOSStrategy": strategy, "systemStrategy": {"watermarkScaleFactor": 150}}
    return msgspec.convert(spec, NodeSLOSpec)


def idle_node(cpu_policy: str) -> NodeState:
    """A node with something for each feature, of unknown usage."""
    batch: dict[str, Any] = {"batch": STATED, "batch_limits": STATED}
    mid: dict[str, Any] = {"mid": STATED, "mid_limits": STATED}
    latency: dict[str, Any] = {"requests": STATED, "limits": STATED}
    return node(
        pod("ls", container(**latency), qos="LS", qos_label="LS", cgroup_limits=STATED, **latency),
        pod("be", container(**batch), qos="BE", qos_label="BE", kube_qos="BestEffort", **batch),
        pod("mid", container(**mid), pod_class="mid", **mid),
        pod("unlisted", listed=False),
        slo=slo(cpu_policy), capacity=amounts(8000, 16 * GIB), cpu_normalization=1.5,
        cpus=tuple(topology(1, 4, 2, siblings_apart=False)), system_cpus=frozenset({0}),
        block_devices=BlockDevices(devices={"vda": "8:0"}),
        host_apps=(HostAppState(name="app", path="app", qos="BE"),),
    )  # fmt: skip


def busy_node(cpu_policy: str) -> NodeState:
    """The same node a second later, with a lot of usage."""
    state, replace = idle_node(cpu_policy), msgspec.structs.replace
    cpu, memory = {"cpu_cores": 2.5}, {"memory_bytes": 2 * GIB}
    throttled, pressure = {"throttled_ratio": 0.5}, PressureLevels(40.0, 1.0)
    return replace(
        state, at=state.at + 1, **cpu, **memory, memory_available_bytes=GIB,
        best_effort_limit_millicores=4000, recent_prod_cores=(1.0, 2.0), cpu_pressure=pressure,
        memory_pressure=pressure,
        host_apps=tuple(replace(app, **cpu, **memory) for app in state.host_apps),
        pods=tuple(
            replace(
                pod, **cpu, **memory, **throttled, cpu_pressure=pressure,
                containers=tuple(replace(c, **cpu, **throttled) for c in pod.containers),
            )
            for pod in state.pods
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    "feature", [f for f in built_features(None, None) if not f.reads_usage], ids=lambda f: f.name
)
def test_a_feature_that_reads_no_usage_repeats_its_claims(feature: Feature) -> None:
    seen: list[Claim] = []
    for policy in ("coreSched", "groupIdentity"):
        first = feature.claims(idle_node(policy), {})
        former = {claim.place: claim.value for claim in first}
        assert feature.claims(idle_node(policy), former) == first
        assert feature.claims(busy_node(policy), former) == first
        seen += first
    assert seen


@pytest.mark.parametrize("feature", built_features(None, None), ids=lambda f: f.name)
def test_without_a_valid_policy_a_feature_repeats_what_was_written_before_a_restart(
    feature: Feature,
) -> None:
    former = {Place("kubepods/besteffort", Knob.CPU_QUOTA): 50_000}
    without_policy = msgspec.structs.replace(busy_node("coreSched"), slo=None)
    claims = feature.claims(without_policy, former)
    assert {claim.place: claim.value for claim in claims} == former
