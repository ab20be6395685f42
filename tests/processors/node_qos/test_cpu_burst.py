"""Bursts and raised quotas never limit a container below its limit, on no input."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.node_qos import cpu_burst
from pipeline.processors.node_qos.cgroup_values import UNLIMITED, Knob, Place, Value
from pipeline.processors.node_qos.cpu_burst import ANNOTATION, CpuBurst
from pipeline.processors.node_qos.cpu_normalization import CpuNormalization
from pipeline.processors.node_qos.node_state import NodeState, PodState
from pipeline.processors.slo.nodeslo import BurstStrategy, NodeSLOSpec
from tests.processors.node_qos.worlds import amounts, claimed, container, node, pod

POD = "kubepods/burstable/poda"
MAIN = f"{POD}/main"
QUOTA, BURST = Knob.CPU_QUOTA, Knob.CPU_BURST


def burst_pod(*limits: int | None, ratio: float | None = 0.5, **fields: Any) -> PodState:
    """A pod whose containers have these CPU limits and were throttled."""
    names = ["main", "b", "c", "d"]
    parts = [
        container(name, limits=amounts(limit), throttled_ratio=ratio, cpu_cores=1.0)
        for name, limit in zip(names, limits, strict=False)
    ]
    whole = sum(limit or 0 for limit in limits) if all(limits) else None
    return pod("a", *parts, **{"qos": "LS", "cgroup_limits": amounts(whole), **fields})


def burst_node(*pods: PodState, policy: Any = "auto", **fields: Any) -> NodeState:
    """A node with this policy; `fields` of the burst strategy or of the state."""
    names = {
        name: fields.pop(name) for name in [*fields] if name in BurstStrategy.__struct_fields__
    }
    slo = NodeSLOSpec(cpu_burst_strategy=BurstStrategy(policy=policy, **names))
    return node(*pods, **{"slo": slo, "capacity": amounts(64_000), "cpu_cores": 1.0, **fields})


def rounds(count: int, *pods: PodState, **fields: Any) -> dict[Place, Value]:
    feature, values = CpuBurst(), dict[Place, Value]()
    for second in range(count):
        values = claimed(feature, burst_node(*pods, at=float(second), **fields), values)
    return values


def test_a_throttled_container_is_raised_step_by_step_to_its_ceiling() -> None:
    throttled = burst_pod(2000)
    for count, quota_us in ((1, 240_000), (2, 288_000), (20, 600_000)):
        values = rounds(count, throttled, policy="cfsQuotaBurstOnly")
        assert values == {Place(MAIN, QUOTA): quota_us, Place(POD, QUOTA): quota_us}


def test_a_quota_above_all_cpus_of_the_node_is_never_claimed() -> None:
    values = rounds(50, burst_pod(2000), cfs_quota_burst_percent=10**9)
    assert values[Place(MAIN, QUOTA)] == 6_400_000


@pytest.mark.parametrize("version", [1, 2])
def test_an_overloaded_node_takes_back_the_raise_and_nothing_else(version: int) -> None:
    """Also on cgroup v2: no step goes below the limit."""
    raised = rounds(5, burst_pod(2000), policy="cfsQuotaBurstOnly")
    feature, values, seen = CpuBurst(), raised, list[Value]()
    for second in range(20):
        state = burst_node(
            burst_pod(2000), policy="cfsQuotaBurstOnly", cpu_cores=64.0, at=float(second),
            cgroup_version=version,
        )  # fmt: skip
        values = claimed(feature, state, values)
        seen.append(values.get(Place(MAIN, QUOTA), 200_000))
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] == 200_000
    # At its limit the container has no claim, so that its original quota is restored.
    assert values == {}


def test_a_container_that_uses_up_its_tokens_goes_back_to_its_limit() -> None:
    busy = burst_pod(1000)
    fields = {"policy": "cfsQuotaBurstOnly", "cfs_quota_burst_period_seconds": 5}
    feature, values, seen = CpuBurst(), dict[Place, Value](), list[Value]()
    for second in range(60):
        used = container("main", limits=amounts(1000), throttled_ratio=0.5, cpu_cores=3.0)
        state = burst_node(
            pod("a", used, qos="LS", cgroup_limits=busy.cgroup_limits), at=float(second), **fields
        )
        values = claimed(feature, state, values)
        seen.append(values.get(Place(MAIN, QUOTA), 100_000))
    assert set(seen[:5]) != {100_000} == set(seen[30:])


def test_a_static_burst_is_at_most_the_quota() -> None:
    values = rounds(1, burst_pod(2000, None), policy="cpuBurstOnly")
    assert values == {Place(MAIN, BURST): 200_000, Place(POD, BURST): 200_000}
    values = rounds(1, burst_pod(2000, 1000), policy="cpuBurstOnly", cpu_burst_percent=50)
    assert values == {
        Place(MAIN, BURST): 100_000, Place(f"{POD}/b", BURST): 50_000, Place(POD, BURST): 150_000,
    }  # fmt: skip


@pytest.mark.parametrize(
    "fields",
    [
        {"qos": "LSE"}, {"qos": "LSR"}, {"qos": "BE"}, {"kube_qos": "BestEffort"},
        {"phase": "Succeeded"}, {"deleting": True},
        {"annotations": {"scheduling.koordinator.sh/resource-status": '{"cpuset": "0-1"}'}},
        {"annotations": {ANNOTATION: '{"policy": "none"}'}},
    ],
)  # fmt: skip
def test_pods_that_do_not_burst_are_left_alone(fields: dict[str, Any]) -> None:
    assert rounds(1, burst_pod(2000))
    assert rounds(1, burst_pod(2000, **fields)) == {}


def test_the_annotation_of_a_pod_overlays_the_node() -> None:
    own = {ANNOTATION: '{"policy": "cfsQuotaBurstOnly", "cfsQuotaBurstPercent": 150}'}
    values = rounds(20, burst_pod(2000, annotations=own), policy="none")
    assert values == {Place(MAIN, QUOTA): 300_000, Place(POD, QUOTA): 300_000}


HOSTILE = [
    "", "{", "[]", "null", '"auto"', '{"policy": "always"}', '{"cpuBurstPercent": -1}',
    '{"cpuBurstPercent": 99999999999999999999}', '{"cfsQuotaBurstPercent": 0}',
    '{"cfsQuotaBurstPeriodSeconds": -2}', '{"cpuBurstPercent": 1e400}', "[" * 10_000,
    '{"cpuBurstPercent": 500, "x": "' + "y" * 20_000 + '"}', '{"policy": "\ud800"}',
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_an_invalid_annotation_is_as_none(text: str) -> None:
    expected = rounds(3, burst_pod(2000), cpu_burst_percent=70)
    hostile = burst_pod(2000, annotations={ANNOTATION: text})
    assert rounds(3, hostile, cpu_burst_percent=70) == expected != {}


def test_claims_stay_while_the_policy_or_the_pod_is_unknown() -> None:
    former = rounds(3, burst_pod(2000))
    assert claimed(CpuBurst(), node(slo=None), former) == former
    assert claimed(CpuBurst(), node(slo=NodeSLOSpec()), former) == former
    assert claimed(CpuBurst(), burst_node(pod("a", listed=False)), former) == former
    # Control: a policy without burst takes all back.
    assert claimed(CpuBurst(), burst_node(burst_pod(2000), policy="none"), former) == {}


@given(
    limits=st.lists(st.one_of(st.none(), st.integers(10, 10**6)), min_size=1, max_size=4),
    percent=st.integers(100, 10**12),
    period=st.integers(-1, 10**9),
    policy=st.sampled_from(["auto", "cfsQuotaBurstOnly", "cpuBurstOnly"]),
    samples=st.lists(
        st.tuples(
            st.floats(-100, 1e6),
            st.one_of(st.none(), st.floats(0, 100)),
            st.one_of(st.none(), st.floats(0, 1)),
        ),
        min_size=1,
        max_size=8,
    ),
    start=st.integers(1000, UNLIMITED),
    ratio=st.one_of(st.none(), st.floats(1, 5)),
)
def test_quotas_are_never_below_the_limit_and_the_pod_has_room_for_its_containers(
    limits: list[int | None],
    percent: int,
    period: int,
    policy: str,
    samples: list[tuple[float, float | None, float | None]],
    start: int,
    ratio: float | None,
) -> None:
    feature, values = CpuBurst(), dict[Place, Value]({Place(MAIN, QUOTA): start})
    for at, cores, throttled in samples:
        state = burst_node(
            burst_pod(*limits, ratio=throttled), policy=policy, cpu_cores=cores, at=at,
            cfs_quota_burst_percent=percent, cfs_quota_burst_period_seconds=period,
            cpu_normalization=ratio,
        )  # fmt: skip
        values = claimed(feature, state, values)
        check_values(limits, ratio or 1.0, values)


def check_values(limits: list[int | None], ratio: float, values: Mapping[Place, Value]) -> None:
    total = 0
    for name, limit in zip(["main", "b", "c", "d"], limits, strict=False):
        place = Place(f"{POD}/{name}", QUOTA)
        if limit is None:
            assert place not in values
            continue
        quota_us = values.get(place, limit * 100)
        assert isinstance(quota_us, int)
        assert limit * 100 / ratio <= quota_us <= max(limit * 100, 6_400_000)
        burst_us = values.get(Place(f"{POD}/{name}", BURST), 0)
        assert isinstance(burst_us, int)
        assert 0 <= burst_us <= quota_us
        total = max(total, quota_us)
    if None in limits:
        assert Place(POD, QUOTA) not in values
        return
    whole = values.get(Place(POD, QUOTA), sum(limit or 0 for limit in limits) * 100)
    assert isinstance(whole, int)
    assert whole >= total, "the kernel refuses a child with more quota than its parent"


def test_quotas_are_normalized_also_while_they_are_not_raised() -> None:
    quiet = burst_pod(2000, ratio=0.0)
    values = rounds(1, quiet, policy="cfsQuotaBurstOnly", cpu_normalization=2.0)
    assert values == {Place(MAIN, QUOTA): 100_000, Place(POD, QUOTA): 100_000}
    values = rounds(1, burst_pod(2000), policy="cfsQuotaBurstOnly", cpu_normalization=2.0)
    assert values == {Place(MAIN, QUOTA): 120_000, Place(POD, QUOTA): 120_000}


NORMALIZED = {Place(MAIN, QUOTA): 133_334, Place(POD, QUOTA): 133_334}


@pytest.mark.parametrize(
    ("pod_fields", "node_fields", "expected"),
    [
        ({}, {"policy": "none"}, NORMALIZED),
        ({"qos_label": "LS"}, {"policy": "cpuBurstOnly"}, NORMALIZED),
        ({}, {"policy": "auto"}, {}),
        ({"qos_label": "LSR"}, {"policy": "none"}, {}),
        ({}, {"policy": "none", "cpu_normalization": 1.0}, {}),
        (
            {"kube_qos": "Guaranteed"},
            {"policy": "none", "cpu_manager_policy": "static"},
            {},
        ),
    ],
)
def test_normalization_lowers_quotas_of_shared_cpus(
    pod_fields: dict[str, Any], node_fields: dict[str, Any], expected: dict[Place, Value]
) -> None:
    state = burst_node(burst_pod(2000, **pod_fields), **{"cpu_normalization": 1.5, **node_fields})
    assert claimed(CpuNormalization(), state) == expected


def test_normalized_quotas_stay_while_the_policy_or_the_pod_is_unknown() -> None:
    for state in (node(slo=None), burst_node(pod("a", listed=False), policy="none")):
        assert claimed(CpuNormalization(), state, NORMALIZED) == NORMALIZED


@pytest.mark.parametrize("step_seconds", [10_800.0, -10_800.0])
@pytest.mark.parametrize("limit", [500, 2000])
def test_a_step_of_the_clock_neither_spends_nor_earns(step_seconds: float, limit: int) -> None:
    feature, tokens = CpuBurst(), list[float]()
    for at in (0.0, 1.0, 1.0 + step_seconds, 2.0 + step_seconds):
        state = burst_node(burst_pod(limit), at=at, cfs_quota_burst_period_seconds=1000)
        feature.claims(state, {})
        tokens += [limiter.tokens for limiter in feature._limiters.values()]
    first, second, after_step, last = tokens
    assert second == after_step
    assert last - after_step == second - first != 0


def test_limiters_of_gone_containers_are_forgotten() -> None:
    feature = CpuBurst()
    for second in range(50):
        one = container(f"c{second}", limits=amounts(1000), cpu_cores=1.0)
        crashing = pod("a", one, qos="LS", cgroup_limits=amounts(1000))
        feature.claims(
            burst_node(crashing, at=float(second), cfs_quota_burst_period_seconds=10**6), {}
        )
    assert len(feature._limiters) == 1


def test_after_an_error_no_values_of_former_pods_are_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    feature = CpuBurst()
    claimed(feature, burst_node(burst_pod(1000, 2000), revision=1))
    alone = burst_node(burst_pod(3000), revision=2)
    with monkeypatch.context() as patch:
        patch.setattr(cpu_burst, "pod_quota_us", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            feature.claims(alone, {})
    assert claimed(feature, alone) == claimed(CpuBurst(), alone)
