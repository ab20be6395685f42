"""Group identities and the idle class, by the CPU policy."""

from typing import Any

import pytest

from pipeline.processors.node_qos.cgroup_values import Knob, Place
from pipeline.processors.node_qos.cpu_identity import CPU_QOS_ANNOTATION, CpuIdentity
from pipeline.processors.node_qos.cpu_idle import CpuIdle
from pipeline.processors.node_qos.node_state import HostAppState, NodeState, PodState
from pipeline.processors.policy import slo_defaults
from pipeline.processors.slo.nodeslo import CpuQos, NodeSLOSpec, QosClass, QosPolicies, QosStrategy
from tests.processors.node_qos.worlds import claimed, node, pod

BATCH_APP = HostAppState(name="batch", path="host/batch", qos="BE")
APPS = (
    HostAppState(name="proxy", path="host/proxy", qos="LS"),
    HostAppState(name="plain", path="host/plain"),
    BATCH_APP,
)


def world(policy: Any, *pods: PodState, **classes: Any) -> NodeState:
    rules = {f"{name}_class": QosClass(cpu_qos=CpuQos(**cpu)) for name, cpu in classes.items()}
    strategy = QosStrategy(policies=QosPolicies(cpu_policy=policy), **rules)
    return node(*pods, slo=NodeSLOSpec(resource_qos_strategy=strategy), host_apps=APPS)


def identities(state: NodeState) -> dict[str, Any]:
    values = claimed(CpuIdentity(), state)
    assert {place.knob for place in values} <= {Knob.CPU_IDENTITY}
    return {place.path.rpartition("/")[2]: value for place, value in values.items()}


def ls_pod(annotation: str) -> PodState:
    return pod("web", qos="LS", qos_label="LS", annotations={CPU_QOS_ANNOTATION: annotation})


ON = {"enable": True, "group_identity": 2}
BE_ON = {"enable": True, "group_identity": -1}


def test_directories_pods_and_host_applications_have_the_value_of_their_class() -> None:
    state = world(
        "groupIdentity",
        pod("lse", qos_label="LSE"),
        pod("agent", qos_label="SYSTEM"),
        pod("plain", kube_qos="Guaranteed"),
        pod("batch", kube_qos="BestEffort"),
        lsr={"enable": True, "group_identity": 1}, ls=ON, be=BE_ON,
    )  # fmt: skip
    assert identities(state) == {
        "kubepods": 0, "burstable": 2, "besteffort": -1, "podlse": 1, "podagent": 0, "podplain": 1,
        "podbatch": -1, "proxy": 2, "batch": -1,
    }  # fmt: skip


def test_a_class_that_is_off_has_zero_while_another_is_on() -> None:
    state = world("groupIdentity", pod("web", qos_label="LS"), ls={**ON, "enable": False}, be=BE_ON)
    assert identities(state)["podweb"] == 0


@pytest.mark.parametrize(
    "state",
    [
        node(slo=None),
        node(slo=NodeSLOSpec()),
        node(slo=NodeSLOSpec(resource_qos_strategy=slo_defaults.QOS)),
        world("coreSched", ls=ON, be=BE_ON),
    ],
    ids=["no policy", "no strategy", "defaults", "another CPU policy"],
)
def test_no_identity_is_claimed_while_all_classes_are_off(state: NodeState) -> None:
    assert identities(state) == {}


@pytest.mark.parametrize(
    ("annotation", "identity"),
    [('{"groupIdentity":1}', 1), ("{}", 2), ("{", 2), ('{"groupIdentity":9}', 2)],
)
def test_the_annotation_of_an_ls_pod_replaces_the_value_of_its_class(
    annotation: str, identity: int
) -> None:
    assert identities(world("groupIdentity", ls_pod(annotation), ls=ON))["podweb"] == identity


def test_the_annotation_has_no_effect_on_other_pods_or_while_the_class_is_off() -> None:
    other = pod("web", qos_label="BE", annotations={CPU_QOS_ANNOTATION: '{"groupIdentity":2}'})
    assert identities(world("groupIdentity", other, be=BE_ON))["podweb"] == -1
    off = world("groupIdentity", ls_pod('{"groupIdentity":2}'), be=BE_ON)
    assert identities(off)["podweb"] == 0


IDLE = {"enable": True, "sched_idle": 1}


def test_the_best_effort_directory_and_applications_elsewhere_become_idle() -> None:
    assert claimed(CpuIdle(), world("coreSched", be=IDLE)) == {
        Place("kubepods/besteffort", Knob.CPU_IDLE): 1, Place("host/batch", Knob.CPU_IDLE): 1,
    }  # fmt: skip


def test_an_application_in_the_directory_is_idle_with_it() -> None:
    inside = HostAppState(
        name="batch", path="kubepods/besteffort/batch", qos="BE", in_best_effort=True
    )
    state = node(slo=world("coreSched", be=IDLE).slo, host_apps=(inside,))
    assert {place.path for place in claimed(CpuIdle(), state)} == {"kubepods/besteffort"}


@pytest.mark.parametrize(
    "state",
    [
        node(slo=None),
        node(slo=NodeSLOSpec()),
        world("groupIdentity", be=IDLE),
        world("coreSched", be={**IDLE, "enable": False}),
        world("coreSched", be={**IDLE, "sched_idle": 0}),
        world("coreSched", ls=IDLE),
    ],
    ids=["no policy", "no strategy", "another CPU policy", "class off", "not idle", "other class"],
)
def test_nothing_becomes_idle_while_it_is_switched_off(state: NodeState) -> None:
    assert claimed(CpuIdle(), state) == {}
