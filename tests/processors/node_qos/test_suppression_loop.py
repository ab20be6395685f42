"""CPU suppression in a loop with a simulated node: what it claims changes what it sees next.

Two classes of equal weight want the ten cores of the node. Best-effort work wants all of them.
"""

from collections.abc import Callable
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.node_qos.cgroup_values import Knob, Place, Value
from pipeline.processors.node_qos.cpu_suppression import CpuSuppression
from pipeline.processors.node_qos.node_state import PressureLevels
from pipeline.processors.slo.nodeslo import NodeSLOSpec, ThresholdStrategy
from tests.processors.node_qos.worlds import amounts, claimed, node, pod

CORES = 10.0
QUOTA = Place("kubepods/besteffort", Knob.CPU_QUOTA)


class Second(NamedTuple):
    """What the web pod wanted and got, and what best-effort work got, in cores."""

    wanted: float
    web: float
    batch: float
    quota_us: int

    @property
    def missing(self) -> float:
        return self.wanted - self.web


def run(
    feature: CpuSuppression,
    wanted: Callable[[int], float],
    seconds: int,
    threshold_percent: int = 65,
) -> list[Second]:
    """The seconds of a node whose web pod wants so many cores in each second."""
    strategy = ThresholdStrategy(
        enable=True,
        cpu_suppress_policy="cfsQuota",
        cpu_suppress_threshold_percent=threshold_percent,
    )
    state = node(
        slo=NodeSLOSpec(resource_used_threshold_with_be=strategy),
        capacity=amounts(int(CORES * 1000)),
    )
    former: dict[Place, Value] = {}
    history: list[Second] = []
    pressure = 0.0
    for second in range(seconds):
        quota = former.get(QUOTA)
        limit = quota / 100_000 if isinstance(quota, int) else CORES
        want = wanted(second)
        web = min(want, max(CORES - limit, CORES / 2))
        batch = min(limit, CORES - web)
        pressure += (100 * (want - web) / want - pressure) / 10 if want else -pressure / 10
        history.append(Second(want, web, batch, int(limit * 100_000)))
        state = msgspec.structs.replace(
            state,
            at=float(second),
            cpu_cores=web + batch,
            recent_prod_cores=tuple(past.web for past in history[-60:]),
            pods=(
                pod("web", cpu_cores=web, cpu_pressure=PressureLevels(pressure, 0.0)),
                pod("batch", kube_qos="BestEffort", cpu_cores=batch),
            ),
        )
        former = claimed(feature, state, former)
    return history


def koordinator() -> CpuSuppression:
    return CpuSuppression(pressure_percent=None, forecast_sigmas=None)


@given(st.floats(0, 10), st.integers(10, 100))
def test_with_constant_usage_the_quota_settles(web: float, threshold: int) -> None:
    """After as many rounds as the growth limit needs, nothing is written any more."""
    history = run(CpuSuppression(10.0, 3.0), lambda _: min(web, CORES / 2), 40, threshold)
    assert len({second.quota_us for second in history[-20:]}) == 1


def test_best_effort_work_grows_back_when_others_become_idle() -> None:
    history = run(CpuSuppression(10.0, 3.0), lambda second: 6.0 if second < 60 else 0.0, 180)
    assert history[59].batch == pytest.approx(0.5, abs=0.1)
    assert history[-1].batch == pytest.approx(6.5, abs=0.1)


def test_repeated_bursts_hurt_once_with_the_forecast_and_each_time_without() -> None:
    def bursts(second: int) -> float:
        return 9.0 if second % 20 >= 15 else 1.0

    without, with_forecast = (
        run(CpuSuppression(None, sigmas), bursts, 120) for sigmas in (None, 3.0)
    )
    assert [second.missing > 0 for second in without[15:120:20]] == [True] * 6
    assert [second.missing > 0 for second in with_forecast[15:120:20]] == [True] + [False] * 5


def test_pressure_frees_a_pod_whose_starved_usage_looks_modest() -> None:
    """At a threshold of 100% usage alone leaves half of the node to each of two hungry classes."""

    def hungry(second: int) -> float:
        return 9.0 if second >= 5 else 1.0

    assert run(koordinator(), hungry, 60, 100)[-1].web == pytest.approx(5.0)
    history = run(CpuSuppression(10.0, None), hungry, 60, 100)
    # Within ten seconds it waits for less than the threshold, and the quota settles.
    assert all(second.missing < 0.1 * second.wanted for second in history[15:])
    assert len({second.quota_us for second in history[15:]}) == 1
    assert history[-1].batch > 1.0
