"""The state of a node with a container that is about to start."""

from typing import Any

import msgspec

from pipeline.processors.node_qos.cgroup_values import Knob, Place
from pipeline.processors.node_qos.cpu_suppression import CpuSuppression
from pipeline.processors.node_qos.node_state import LogicalCpu, NodeState
from pipeline.processors.node_qos.starting_container import (
    ALL_KNOBS,
    StartingContainer,
    with_container,
)
from pipeline.processors.slo.nodeslo import NodeSLOSpec, ThresholdStrategy
from pipeline.topics.node_views import NodeViewRecord, ViewPod
from pipeline.topics.pods import Container
from tests.processors.node_qos.worlds import amounts, container, node, pod

POD = "kubepods/besteffort/podb"
START = StartingContainer("b", "d", "b", {}, {}, "BestEffort", POD, "new", f"{POD}/1")
RULES = ThresholdStrategy(enable=True, cpu_suppress_policy="cpuset")
IDLE: dict[str, Any] = {
    "slo": NodeSLOSpec(resource_used_threshold_with_be=RULES),
    "cpus": tuple(LogicalCpu(cpu, cpu, 0, 0) for cpu in range(8)),
    "capacity": amounts(8000),
    "cpu_cores": 0.5,
}
FORMER = {Place("kubepods/besteffort", Knob.CPUSET): frozenset({0, 1})}


def state_with_container(state: NodeState, *names: str) -> NodeState:
    view = ViewPod(
        uid="b", cgroup_uid="b", namespace="d", name="b", qos="BE",
        containers=tuple(Container(name=name) for name in names),
    )  # fmt: skip
    with_it = with_container(state, NodeViewRecord(node="n", generation=1, pods=(view,)), START)
    assert with_it is not None
    assert with_it.knobs == ALL_KNOBS
    return with_it.state


def cpus_of_the_container(state: NodeState) -> object:
    claims = CpuSuppression(None, None).claims(state, FORMER)
    return next(claim.value for claim in claims if claim.place == Place(START.path, Knob.CPUSET))


def test_best_effort_work_does_not_grow_because_a_container_starts() -> None:
    state = state_with_container(node(**IDLE), "new")
    assert cpus_of_the_container(state) == frozenset({0, 1})
    regular = msgspec.structs.replace(state, is_early=False)
    assert cpus_of_the_container(regular) > frozenset({0, 1})  # type: ignore[operator]


def test_the_pod_keeps_its_usage_and_its_other_containers() -> None:
    other = pod("b", container("old", cpu_cores=0.2), kube_qos="BestEffort", cpu_cores=0.3)
    state = state_with_container(node(other, pod("c"), **IDLE), "old", "new")
    assert [known.uid for known in state.pods] == ["c", "b"]
    of_pod = state.pods[-1]
    assert of_pod.cpu_cores == 0.3
    assert [(c.path, c.cpu_cores) for c in of_pod.containers] == [
        (f"{POD}/old", 0.2), (f"{POD}/1", None),
    ]  # fmt: skip
    assert state.revision is None


def test_a_container_that_the_pod_does_not_have_is_unknown() -> None:
    view = NodeViewRecord(node="n", generation=1, pods=(
        ViewPod(uid="b", cgroup_uid="b", namespace="d", name="b", qos="BE"),
    ))  # fmt: skip
    assert with_container(node(**IDLE), view, START) is None
