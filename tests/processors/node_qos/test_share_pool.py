"""CPU sets by class."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.kubernetes.node_reservation import Reservation
from pipeline.processors.node_qos.cgroup_values import UNLIMITED, CpuSet, Knob, Place, Value
from pipeline.processors.node_qos.node_state import HostAppState, NodeState, PodState
from pipeline.processors.node_qos.share_pool import SharePool
from pipeline.processors.slo.nodeslo import NodeSLOSpec
from tests.processors.node_qos.topologies import topology
from tests.processors.node_qos.worlds import claimed, container, node, pod

STATUS = "scheduling.koordinator.sh/resource-status"
CPUS = topology(2, 4, 1, siblings_apart=False)
"""NUMA node 0 has the CPUs 0 to 3, node 1 has 4 to 7."""
LSE_OF_7 = '{"cpuset":"7"}'
REST: CpuSet = frozenset(range(7))


def labelled(name: str, qos: str, status: str = "{}", **fields: Any) -> PodState:
    fields = {"qos": qos, "qos_label": qos, "annotations": {STATUS: status}, **fields}
    return pod(name, container("main"), **fields)


def lse() -> PodState:
    return labelled("lse", "LSE", LSE_OF_7)


def world(*pods: PodState, **fields: Any) -> NodeState:
    return node(*pods, **{"cpus": tuple(CPUS), **fields})


def cpus_of(name: str, state: NodeState, directory: str = "burstable") -> Value | None:
    place = Place(f"kubepods/{directory}/pod{name}/main", Knob.CPUSET)
    return claimed(SharePool(), state).get(place)


def test_with_nothing_reserved_or_owned_nothing_is_claimed() -> None:
    apps = (HostAppState(name="proxy", path="proxy", qos="LS"),)
    state = world(labelled("web", "LS"), labelled("batch", "BE"), host_apps=apps)
    assert claimed(SharePool(), state) == {}


def test_a_pod_with_own_cpus_gets_them_and_no_quota() -> None:
    """Its container has the CPU set; its directory stays as wide as the sandbox."""
    path = "kubepods/burstable/podlse"
    values = claimed(SharePool(), world(lse()))
    assert {place: value for place, value in values.items() if place.path.startswith(path)} == {
        Place(f"{path}/main", Knob.CPUSET): frozenset({7}),
        Place(path, Knob.CPU_QUOTA): UNLIMITED,
        Place(f"{path}/main", Knob.CPU_QUOTA): UNLIMITED,
    }


@pytest.mark.parametrize("status", ['{"cpuset":"90-95"}', "{", "{}"])
@pytest.mark.parametrize("qos", ["LSE", "LSR"])
def test_a_pod_whose_own_cpus_are_unknown_keeps_what_it_has(qos: str, status: str) -> None:
    values = claimed(SharePool(), world(labelled("own", qos, status), lse()))
    assert not [place for place in values if "podown" in place.path]


@pytest.mark.parametrize("qos", ["LS", ""])
def test_ls_pods_and_pods_without_a_class_share_a_pool_without_owned_cpus(qos: str) -> None:
    lsr = labelled("lsr", "LSR", '{"cpuset":"0"}')
    assert cpus_of("web", world(labelled("web", qos), lse(), lsr)) == REST - {0}


def test_a_pod_that_is_given_cpus_the_node_lacks_shares_the_pool_and_keeps_its_quota() -> None:
    values = claimed(SharePool(), world(labelled("web", "LS", '{"cpuset":"90"}'), lse()))
    place = Place("kubepods/burstable/podweb/main", Knob.CPUSET)
    assert {p: v for p, v in values.items() if "podweb" in p.path} == {place: REST}


def test_the_pool_excludes_reserved_cpus_and_exclusive_ones_of_the_system() -> None:
    state = world(
        labelled("web", "LS"),
        reservation=Reservation(cpus=frozenset({0, 1})),
        system_cpus=frozenset({2}),
    )
    assert cpus_of("web", state) == frozenset({3, 4, 5, 6, 7})
    shared = msgspec.structs.replace(state, system_cpus_exclusive=False)
    assert cpus_of("web", shared) == frozenset({2, 3, 4, 5, 6, 7})


def test_a_pod_on_a_numa_node_gets_the_pool_of_that_node() -> None:
    status = '{"numaNodeResources":[{"node":1,"resources":{"cpu":"2"}}]}'
    assert cpus_of("web", world(labelled("web", "LS", status), lse())) == frozenset({4, 5, 6})


def test_pools_of_the_nodes_annotation_are_used_without_owned_cpus() -> None:
    pools = {0: frozenset({1, 2}), 1: frozenset({6, 7, 90})}
    state = world(labelled("web", "LS"), lse(), cpu_shared_pools=pools)
    assert cpus_of("web", state) == frozenset({1, 2, 6})


def test_with_the_static_policy_pods_without_a_class_keep_their_cpus() -> None:
    state = world(labelled("web", "LS"), labelled("other", ""), lse(), cpu_manager_policy="static")
    assert cpus_of("web", state) == REST
    assert cpus_of("other", state) is None


def test_system_pods_get_the_cpus_of_the_system_if_there_are_any() -> None:
    state = world(labelled("agent", "SYSTEM"), system_cpus=frozenset({0, 1}))
    assert cpus_of("agent", state) == frozenset({0, 1})
    assert cpus_of("agent", world(labelled("agent", "SYSTEM"), lse())) is None


def test_host_applications_of_the_class_ls_follow_the_pool_others_do_not() -> None:
    apps = tuple(HostAppState(name=q, path=f"host/{q}", qos=q) for q in ("LS", "LSR", "SYSTEM", ""))
    values = claimed(SharePool(), world(lse(), host_apps=apps))
    assert values[Place("host/LS", Knob.CPUSET)] == REST
    assert {place.path for place in values if place.path.startswith("host/")} == {"host/LS"}


def test_best_effort_work_leaves_cpus_of_lse_pods_but_not_those_of_lsr_pods() -> None:
    batch = pod("batch", container("main"), kube_qos="BestEffort", qos="BE")
    lsr = labelled("lsr", "LSR", '{"cpuset":"0"}')
    values = claimed(SharePool(), world(batch, lse(), lsr))
    directory = "kubepods/besteffort"
    for path in (directory, f"{directory}/podbatch", f"{directory}/podbatch/main"):
        assert values[Place(path, Knob.CPUSET)] == REST


def test_with_no_cpu_left_nobody_is_moved() -> None:
    every = labelled("lse", "LSE", '{"cpuset":"0-7"}')
    values = claimed(SharePool(), world(every, labelled("web", "LS"), labelled("batch", "BE")))
    assert {place.path.split("/")[2] for place in values} == {"podlse"}


def test_pods_that_the_view_does_not_have_keep_their_cpus() -> None:
    unlisted = msgspec.structs.replace(labelled("web", "LS"), listed=False)
    assert cpus_of("web", world(unlisted, lse())) is None


def test_nothing_new_is_claimed_before_the_first_policy() -> None:
    former: dict[Place, Value] = {Place("web", Knob.CPUSET): REST}
    assert claimed(SharePool(), world(lse(), slo=None)) == {}
    assert claimed(SharePool(), world(lse(), slo=None), former) == former


def test_without_a_topology_claims_stay() -> None:
    former: dict[Place, Value] = {Place("web", Knob.CPUSET): REST}
    assert claimed(SharePool(), world(lse(), cpus=(), slo=NodeSLOSpec()), former) == former


@given(
    st.frozensets(st.integers(0, 9)),
    st.frozensets(st.integers(0, 7)),
    st.booleans(),
    st.lists(st.tuples(st.sampled_from(["LSE", "LSR", "LS", "BE", "SYSTEM", ""]),
                       st.frozensets(st.integers(0, 9), max_size=3)), max_size=5),
)  # fmt: skip
def test_no_pool_has_a_reserved_cpu_and_no_claim_is_empty(
    reserved: CpuSet, system: CpuSet, exclusive: bool, owners: list[tuple[str, CpuSet]]
) -> None:
    pods = [
        labelled(f"p{index}", qos, f'{{"cpuset":"{",".join(map(str, sorted(cpus)))}"}}')
        for index, (qos, cpus) in enumerate(owners)
    ]
    state = world(
        *pods,
        labelled("web", "LS"),
        reservation=Reservation(cpus=reserved),
        system_cpus=system,
        system_cpus_exclusive=exclusive,
    )
    left_out = reserved | (system if exclusive else frozenset())
    for place, value in claimed(SharePool(), state).items():
        if not isinstance(value, frozenset):
            assert value == UNLIMITED
            continue
        assert value
        assert value < state.all_cpus
        if place.path.endswith("podweb/main") or place.path == "kubepods/besteffort":
            assert not value & left_out
