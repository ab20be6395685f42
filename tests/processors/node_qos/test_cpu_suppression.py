"""Claims of CPU suppression."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.kubernetes.node_reservation import RESOURCE_STATUS, Reservation
from pipeline.processors.node_qos.cgroup_values import CpuSet, Knob, Place, Value, is_wider
from pipeline.processors.node_qos.claims import HELD
from pipeline.processors.node_qos.cpu_suppression import CpuSuppression
from pipeline.processors.node_qos.node_state import HostAppState, NodeState, PodState
from pipeline.processors.slo.nodeslo import NodeSLOSpec, ThresholdStrategy
from tests.processors.node_qos.topologies import topology
from tests.processors.node_qos.worlds import amounts, claimed, container, node, pod

DIRECTORY = "kubepods/besteffort"
QUOTA, CPUSET = Place(DIRECTORY, Knob.CPU_QUOTA), Place(DIRECTORY, Knob.CPUSET)
NUMBERS = st.one_of(st.none(), st.floats(0, 12, allow_nan=False))


def suppression() -> CpuSuppression:
    """Koordinator's suppression, without our additions."""
    return CpuSuppression(pressure_percent=None, forecast_sigmas=None)


def rules(policy: Any = "cpuset", **fields: Any) -> NodeSLOSpec:
    fields = {"enable": True, "cpu_suppress_policy": policy, **fields}
    return NodeSLOSpec(resource_used_threshold_with_be=ThresholdStrategy(**fields))


def web(cores: float | None = 2.0, **fields: Any) -> PodState:
    return pod("web", container("nginx"), cpu_cores=cores, **fields)


def batch(cores: float | None = 3.0) -> PodState:
    return pod("batch", container("worker"), cpu_cores=cores, kube_qos="BestEffort")


def world(*pods: PodState, policy: Any = "cpuset", **fields: Any) -> NodeState:
    """A node of ten CPUs without hyper-threads; by default the others leave 4 cores."""
    known = {
        "slo": rules(policy),
        "capacity": amounts(10_000),
        "allocatable": amounts(10_000),
        "cpus": tuple(topology(1, 10, 1, siblings_apart=False)),
        "cpu_cores": 5.5,
    }
    return node(*(pods or (web(), batch())), **{**known, **fields})


def owner(qos: str, cpus: str) -> PodState:
    status = f'{{"cpuset":"{cpus}"}}'
    return pod(qos, qos=qos, cpu_cores=0.0, annotations={RESOURCE_STATUS: status})


def cpus(*numbers: int) -> CpuSet:
    return frozenset(numbers)


def first(count: int) -> CpuSet:
    return frozenset(range(count))


@pytest.mark.parametrize(
    "slo",
    [
        NodeSLOSpec(), rules(enable=False), rules(enable=None), rules("cfsQuota", enable=False),
    ],
)  # fmt: skip
def test_nothing_is_claimed_while_suppression_is_off(slo: NodeSLOSpec) -> None:
    former: dict[Place, Value] = {CPUSET: first(3), QUOTA: 300_000}
    assert claimed(suppression(), world(slo=slo), former) == {}


def test_the_policy_cpuset_claims_the_directory_its_pods_and_their_containers() -> None:
    values = claimed(suppression(), world())
    assert {place.path for place in values} == {
        DIRECTORY, f"{DIRECTORY}/podbatch", f"{DIRECTORY}/podbatch/worker",
    }  # fmt: skip
    assert {place.knob for place in values} == {Knob.CPUSET}
    assert {*values.values()} == {first(4)}


def test_sandboxes_and_host_applications_in_the_directory_are_narrowed_too() -> None:
    state = world(
        best_effort_cgroups=(f"{DIRECTORY}/podgone", f"{DIRECTORY}/podgone/sandbox"),
        host_apps=(
            HostAppState(
                name="backup", path=f"{DIRECTORY}/backup", in_best_effort=True, cpu_cores=0.0
            ),
            HostAppState(name="database", path="host-latency-sensitive/database", cpu_cores=0.0),
        ),
    )
    assert {place.path.removeprefix(DIRECTORY) for place in claimed(suppression(), state)} == {
        "", "/podbatch", "/podbatch/worker", "/podgone", "/podgone/sandbox", "/backup",
    }  # fmt: skip


def test_with_the_static_policy_of_the_kubelet_only_containers_are_narrowed() -> None:
    state = world(
        cpu_manager_policy="static",
        best_effort_cgroups=(f"{DIRECTORY}/podgone", f"{DIRECTORY}/podgone/sandbox"),
    )
    places = {
        Place(f"{DIRECTORY}/podbatch/worker", Knob.CPUSET),
        Place(f"{DIRECTORY}/podgone/sandbox", Knob.CPUSET),
    }
    assert {*claimed(suppression(), state)} == places
    # The next round knows the size of the last one by the containers.
    assert {*claimed(suppression(), state, dict.fromkeys(places, first(2))).values()} == {first(3)}


def test_on_v2_the_directory_is_enough() -> None:
    assert claimed(suppression(), world(cgroup_version=2)) == {CPUSET: first(4)}


def test_a_best_effort_pod_in_another_directory_is_narrowed_by_its_containers() -> None:
    labelled = pod("batch", container("worker"), qos="BE", cpu_cores=3.0)
    values = claimed(suppression(), world(web(), labelled))
    assert {place.path for place in values} == {DIRECTORY, "kubepods/burstable/podbatch/worker"}


@pytest.mark.parametrize("policy", ["cpuset", "cfsQuota"])
def test_claims_do_not_need_a_best_effort_pod(policy: str) -> None:
    """The writer skips a directory that is not there; pods that come find it narrow."""
    (place,) = claimed(suppression(), world(web(), policy=policy))
    assert place.path == DIRECTORY


def test_a_cpu_set_shrinks_at_once_and_grows_by_a_tenth_of_the_node() -> None:
    idle, busy = world(web(0.0), batch(0.0), cpu_cores=0.0), world(web(6.5), batch(0.0))
    assert claimed(suppression(), busy, {CPUSET: first(9)})[CPUSET] == first(2)
    assert claimed(suppression(), idle, {CPUSET: first(2)})[CPUSET] == first(3)


def test_an_early_round_narrows_but_does_not_grow() -> None:
    for policy, place, held, narrow in (
        ("cpuset", CPUSET, first(3), first(4)), ("cfsQuota", QUOTA, 300_000, 400_000),
    ):  # fmt: skip
        state = world(policy=policy, is_early=True)
        assert claimed(suppression(), state, {place: held})[place] == held
        wide: Value = first(8) if policy == "cpuset" else 800_000
        assert claimed(suppression(), state, {place: wide})[place] == narrow


def test_after_a_crash_between_writes_growth_starts_from_the_narrowest_set() -> None:
    former: dict[Place, Value] = {CPUSET: first(8), Place("pod", Knob.CPUSET): first(3)}
    assert claimed(suppression(), world(), former)[CPUSET] == first(4)
    assert claimed(suppression(), world(web(0.0), batch()), former)[CPUSET] == first(4)


def test_reserved_cpus_and_those_of_lse_pods_and_the_system_are_left_out() -> None:
    fields = {"reservation": Reservation(cpus=cpus(0)), "system_cpus": cpus(2)}
    state = world(web(), batch(), owner("LSE", "1"), **fields)
    assert claimed(suppression(), state)[CPUSET] == cpus(3, 4, 5, 6)
    shared = world(web(), batch(), owner("LSE", "1"), system_cpus_exclusive=False, **fields)
    assert claimed(suppression(), shared)[CPUSET] == cpus(2, 3, 4, 5)


def test_lsr_pods_share_their_cpus_by_their_part_of_the_node() -> None:
    state = world(web(), batch(), owner("LSR", "0-4"))
    assert claimed(suppression(), state)[CPUSET] == cpus(0, 1, 5, 6)


def test_with_no_cpu_left_best_effort_work_keeps_what_it_has() -> None:
    state = world(web(), batch(), owner("LSE", "0-9"))
    assert claimed(suppression(), state, {CPUSET: first(3)})[CPUSET] == first(3)
    assert claimed(suppression(), state) == {}


def test_the_policy_cfs_quota_claims_the_directory_alone() -> None:
    assert claimed(suppression(), world(policy="cfsQuota")) == {QUOTA: 400_000}


@pytest.mark.parametrize(
    ("web_cores", "current", "quota"),
    [
        (2.0, 500_000, 400_000),  # shrinks at once
        (2.0, 100_000, 200_000),  # grows by a tenth of ten CPUs
        (2.0, 400_000, 400_000),
        (2.0, 390_001, 390_001),  # less than 1% of the node
        (2.0, 390_000, 400_000),
        (2.0, 409_999, 409_999),
        (7.0, 2_900, 2_000),  # the least quota is always reached
    ],
)
def test_quotas_shrink_at_once_grow_slowly_and_ignore_small_changes(
    web_cores: float, current: int, quota: int
) -> None:
    state = world(web(web_cores), batch(), policy="cfsQuota", cpu_cores=web_cores + 3.5)
    assert claimed(suppression(), state, {QUOTA: current}) == {QUOTA: quota}


@pytest.mark.parametrize("policy", ["cpuset", "cfsQuota"])
def test_the_room_is_at_least_the_minimum(policy: str) -> None:
    slo = rules(policy, cpu_suppress_min_percent=30)
    values = claimed(suppression(), world(web(9.0), batch(), slo=slo, cpu_cores=10.0))
    assert values.get(QUOTA, 300_000) == 300_000
    assert values.get(CPUSET, first(3)) == first(3)


@pytest.mark.parametrize("former", [{CPUSET: first(3)}, {}])
def test_without_capacity_the_cpu_set_stays(former: dict[Place, Value]) -> None:
    state = world(capacity=amounts())
    claims = suppression().claims(state, former)
    assert {claim.value for claim in claims} == {*former.values()}
    assert {claim.why for claim in claims} == ({HELD} if former else set())
    # A new pod gets it as well.
    assert len(claims) == (3 if former else 0)


def test_without_capacity_the_quota_stays() -> None:
    state = world(policy="cfsQuota", capacity=amounts())
    assert claimed(suppression(), state, {QUOTA: 5000}) == {QUOTA: 5000}
    assert claimed(suppression(), state) == {}


def test_before_the_first_usage_nothing_changes_later_requests_stand_for_it() -> None:
    """A restart does not hold best-effort work down, an exporter that went away does."""
    unknown = world(
        web(None, requests=amounts(4000)), batch(None), policy="cfsQuota", cpu_cores=None
    )
    feature = suppression()
    assert claimed(feature, unknown) == {}
    assert claimed(feature, unknown, {QUOTA: 300_000}) == {QUOTA: 300_000}
    assert claimed(feature, world(policy="cfsQuota"), {QUOTA: 300_000}) == {QUOTA: 400_000}
    assert claimed(feature, unknown, {QUOTA: 300_000}) == {QUOTA: 250_000}


@given(
    st.sampled_from(["cpuset", "cfsQuota"]),
    NUMBERS,
    NUMBERS,
    NUMBERS,
    st.frozensets(st.integers(0, 9), min_size=1),
    st.integers(2_000, 1_000_000),
    st.frozensets(st.integers(0, 9)),
)
def test_growth_is_limited_and_needs_the_usage_of_the_node(
    policy: str,
    web_cores: float | None,
    batch_cores: float | None,
    node_cores: float | None,
    old: CpuSet,
    quota: int,
    reserved: CpuSet,
) -> None:
    state = world(
        web(web_cores, requests=amounts(1500)),
        batch(batch_cores),
        policy=policy,
        cpu_cores=node_cores,
        reservation=Reservation(cpus=reserved),
    )
    feature = suppression()
    claimed(feature, world())
    for place, value in claimed(feature, state, {CPUSET: old, QUOTA: quota}).items():
        before = old if isinstance(value, frozenset) else quota
        if isinstance(value, frozenset):
            assert value <= state.all_cpus - reserved or value == old
            assert len(value) <= len(old) + 1
        else:
            assert 2_000 <= value <= quota + 100_000
        if node_cores is None:
            assert not is_wider(place.knob, value, before)
