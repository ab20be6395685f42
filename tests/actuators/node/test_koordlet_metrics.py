"""Series with Koordinator's names: suppression, and what CPU burst gave to containers."""

from collections.abc import Mapping

from actuators.node.koordlet_metrics import KoordletMetrics
from pipeline.clock import ManualClock
from pipeline.processors.node_qos.cgroup_values import UNLIMITED, Knob, Place, Value
from pipeline.processors.node_qos.node_state import ContainerState, NodeState, PodState

BEST_EFFORT = Place("kubepods/besteffort", Knob.CPU_QUOTA)
CONTAINER = "kubepods/burstable/podls/cri-containerd-4fa6.scope"
BURST = Place(CONTAINER, Knob.CPU_BURST)

Series = Mapping[tuple[str, tuple[str, ...]], float]


def state(ls_cores: float | None = 0.5) -> NodeState:
    container = ContainerState(name="main", path=CONTAINER)
    ls = PodState(
        uid="ls", path="kubepods/burstable/podls", kube_qos="Burstable", namespace="shop",
        name="web", qos="LS", cpu_cores=ls_cores, containers=(container,),
    )  # fmt: skip
    be = PodState(
        uid="be", path="kubepods/besteffort/podbe", kube_qos="BestEffort", qos="BE", cpu_cores=0.25
    )
    return NodeState(node="n1", at=0.0, pods=(ls, be))


def series_of(metrics: KoordletMetrics) -> Series:
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for metric in metrics.collect()
        for sample in metric.samples
    }


async def series(
    claimed: Mapping[str, Mapping[Place, Value]], ls_cores: float | None = 0.5, age: float = 1.0
) -> Series:
    clock = ManualClock()
    metrics = KoordletMetrics(lambda: claimed, clock)
    metrics.step(state(ls_cores))
    await clock.advance(age)
    return series_of(metrics)


async def test_suppression_has_the_limit_by_its_kind_and_the_usage_of_both_tiers() -> None:
    assert await series({"cpu_suppression": {BEST_EFFORT: 40_000}}) == {
        ("koordlet_be_suppress_cpu_cores", ("n1", "cfsQuota")): 0.4,
        ("koordlet_be_suppress_ls_used_cpu_cores", ("n1",)): 0.5,
        ("koordlet_be_suppress_be_used_cpu_cores", ("n1",)): 0.25,
    }
    cpus = Place("kubepods/besteffort", Knob.CPUSET)
    found = await series({"cpu_suppression": {cpus: frozenset({0, 3})}})
    assert found["koordlet_be_suppress_cpu_cores", ("n1", "cpuset")] == 2


async def test_no_limit_and_an_unknown_usage_have_no_series() -> None:
    found = await series({"cpu_suppression": {BEST_EFFORT: UNLIMITED}}, ls_cores=None)
    assert found == {("koordlet_be_suppress_be_used_cpu_cores", ("n1",)): 0.25}


async def test_burst_and_raised_quota_belong_to_a_container() -> None:
    quota = Place(CONTAINER, Knob.CPU_QUOTA)
    found = await series({"cpu_burst": {BURST: 100_000, quota: 120_000}})
    labels = ("n1", "shop", "web", "4fa6", "main")
    assert found["koordlet_container_scaled_cfs_burst_us", labels] == 100_000
    assert found["koordlet_container_scaled_cfs_quota_us", labels] == 120_000


async def test_before_the_first_round_and_long_after_the_last_there_are_no_series() -> None:
    assert not series_of(KoordletMetrics(dict, ManualClock()))
    assert await series({}, age=9.0)
    assert not await series({}, age=11.0)
