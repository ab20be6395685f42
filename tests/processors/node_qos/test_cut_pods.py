"""A pod whose details a view leaves out keeps its limits."""

from typing import Any

import msgspec
import pytest

from pipeline.processors.kubernetes.node_reservation import RESOURCE_STATUS
from pipeline.processors.node_qos.batch_resources import BatchResources
from pipeline.processors.node_qos.block_io import ANNOTATION as BLKIO
from pipeline.processors.node_qos.block_io import BlockIo
from pipeline.processors.node_qos.cgroup_values import CpuSet, Knob, Place
from pipeline.processors.node_qos.cpu_burst import ANNOTATION as BURST
from pipeline.processors.node_qos.cpu_burst import CpuBurst
from pipeline.processors.node_qos.cpu_identity import CPU_QOS_ANNOTATION, CpuIdentity
from pipeline.processors.node_qos.cpu_suppression import CpuSuppression
from pipeline.processors.node_qos.cut_pods import with_former_details
from pipeline.processors.node_qos.memory_qos import ANNOTATION as MEMORY
from pipeline.processors.node_qos.memory_qos import MemoryProtection
from pipeline.processors.node_qos.node_state import BlockDevices, Feature, PodState
from pipeline.processors.node_qos.share_pool import SharePool
from pipeline.processors.slo.nodeslo import (
    BurstStrategy,
    CpuQos,
    NodeSLOSpec,
    QosClass,
    QosStrategy,
    ThresholdStrategy,
)
from pipeline.topics.node_views import NodeViewRecord, ViewPod
from pipeline.topics.pods import Container
from tests.processors.node_qos.topologies import topology
from tests.processors.node_qos.worlds import GIB, amounts, claimed, container, node, pod

ALL: CpuSet = frozenset(range(8))


def full(**fields: Any) -> PodState:
    annotations = {
        BLKIO: '{"blocks": [{"name": "sda", "type": "device", "ioCfg": {"readBPS": 4096}}]}',
        MEMORY: '{"policy": "auto"}',
        BURST: '{"policy": "auto", "cpuBurstPercent": 300}',
        CPU_QOS_ANNOTATION: '{"groupIdentity": 1}',
    }
    part = container(limits=amounts(500, GIB), requests=amounts(500, GIB))
    stated = {"qos": "LS", "qos_label": "LS", "annotations": annotations, **fields}
    return pod("web", part, limits=amounts(500, GIB), requests=amounts(500, GIB),
               cgroup_limits=amounts(500, GIB), **stated)  # fmt: skip


def batch() -> PodState:
    both: dict[str, Any] = {"batch": amounts(500, GIB), "batch_limits": amounts(500, GIB)}
    return pod("web", container(**both), kube_qos="BestEffort", qos="BE", qos_label="BE", **both)


def burstable_batch() -> PodState:
    return pod("web", container(), qos="BE", qos_label="BE")


def owner() -> PodState:
    status = '{"cpuset": "6-7"}'
    return full(qos="LSE", qos_label="LSE", annotations={RESOURCE_STATUS: status})


def cut(state: PodState) -> PodState:
    """What a view without the details of a pod says."""
    return msgspec.structs.replace(
        state, listed=False, labels={}, annotations={}, containers=(), qos_label="",
        batch=amounts(), batch_limits=amounts(), cgroup_limits=amounts(),
    )  # fmt: skip


SUPPRESS = NodeSLOSpec(
    resource_used_threshold_with_be=ThresholdStrategy(enable=True, cpu_suppress_policy="cpuset")
)
IDENTITY = NodeSLOSpec(
    resource_qos_strategy=QosStrategy(
        ls_class=QosClass(cpu_qos=CpuQos(enable=True, group_identity=2))
    )
)


@pytest.mark.parametrize(
    ("feature", "slo", "running"),
    [
        (BlockIo(), NodeSLOSpec(resource_qos_strategy=QosStrategy()), full()),
        (MemoryProtection(), NodeSLOSpec(resource_qos_strategy=QosStrategy()), full()),
        (CpuBurst(), NodeSLOSpec(cpu_burst_strategy=BurstStrategy()), full()),
        (CpuIdentity(), IDENTITY, full()),
        (BatchResources(), NodeSLOSpec(), batch()),
        (SharePool(), NodeSLOSpec(), owner()),
        (CpuSuppression(None, None), SUPPRESS, burstable_batch()),
    ],
)
def test_the_limits_of_a_cut_pod_stay(
    feature: Feature, slo: NodeSLOSpec, running: PodState
) -> None:
    fields: dict[str, Any] = {
        "slo": slo, "capacity": amounts(8000, 64 * GIB), "allocatable": amounts(8000, 64 * GIB),
        "cpus": tuple(topology(1, 8, 1, siblings_apart=False)), "cpu_cores": 1.0,
        "block_devices": BlockDevices(devices={"sda": "8:0"}), "cgroup_version": 2,
    }  # fmt: skip
    running = msgspec.structs.replace(running, cpu_cores=0.5)
    before = claimed(feature, node(running, **fields))
    of_pod = {place: value for place, value in before.items() if "podweb" in place.path}
    assert of_pod
    after = claimed(feature, node(cut(running), **fields), before)
    assert {place: after.get(place) for place in of_pod} == of_pod


def test_no_pool_grows_into_cpus_that_a_cut_pod_may_own() -> None:
    fields: dict[str, Any] = {
        "capacity": amounts(8000), "cpus": tuple(topology(1, 8, 1, siblings_apart=False)),
        "cpu_cores": 0.0, "cgroup_version": 2,
    }  # fmt: skip
    web = pod("other", container(), qos="LS", qos_label="LS", cpu_cores=0.0)
    lse = msgspec.structs.replace(owner(), cpu_cores=0.0)
    pool = Place("kubepods/burstable/podother/main", Knob.CPUSET)
    before = claimed(SharePool(), node(web, lse, **fields))
    assert before[pool] == ALL - {6, 7}
    assert claimed(SharePool(), node(web, cut(lse), **fields), before)[pool] == ALL - {6, 7}
    place = Place("kubepods/besteffort", Knob.CPUSET)
    state = node(web, cut(lse), slo=SUPPRESS, **fields)
    assert claimed(CpuSuppression(None, None), state, {place: frozenset({0})}) == {
        place: frozenset({0})
    }


def test_a_held_pod_does_not_hold_the_others_down() -> None:
    fields: dict[str, Any] = {
        "slo": SUPPRESS, "capacity": amounts(8000), "cpu_cores": 0.0, "cgroup_version": 2,
        "cpus": tuple(topology(1, 8, 1, siblings_apart=False)),
    }  # fmt: skip
    hidden = cut(msgspec.structs.replace(burstable_batch(), cpu_cores=0.0))
    held_place = Place("kubepods/burstable/podweb/main", Knob.CPUSET)
    place = Place("kubepods/besteffort", Knob.CPUSET)
    former = {held_place: frozenset({0}), place: frozenset({0, 1, 2, 3})}
    values = claimed(CpuSuppression(None, None), node(hidden, **fields), former)
    assert values[held_place] == frozenset({0})
    assert len(values[place]) == 5  # type: ignore[arg-type]


def view(*pods: ViewPod) -> NodeViewRecord:
    return NodeViewRecord(node="n", generation=1, pods=pods)


def test_a_cut_pod_has_the_details_of_the_view_before() -> None:
    first = ViewPod(
        uid="a", cgroup_uid="a", namespace="d", name="a", phase="Pending", labels={"x": "y"},
        annotations={BURST: "{}"}, containers=(Container(name="main"),),
        container_ids={"main": "1"},
    )  # fmt: skip
    short = ViewPod(uid="a", cgroup_uid="a", namespace="d", name="a", phase="Running", cut=True)
    other = ViewPod(uid="b", cgroup_uid="b", namespace="d", name="b", cut=True)
    filled = with_former_details(view(short, other), view(first))
    assert filled.pods == (msgspec.structs.replace(first, phase="Running"), other)
    # A view after that has them, too.
    assert with_former_details(view(short), filled).pods == filled.pods[:1]
    assert with_former_details(view(short), None).pods == (short,)
    assert with_former_details(view(first), filled).pods == (first,)
