"""A recommendation is a quantile of one histogram of all samples, wherever pods run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.errors import CheckpointError
from pipeline.processors import recommendation
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.model_config import KOORDINATOR, VPA, ModelConfig, Profile
from pipeline.processors.model.training_batch import NodeWindow
from pipeline.processors.recommendation import (
    FRACTIONS,
    Advice,
    PodOwner,
    Recommendation,
    WorkloadSums,
    bounds,
)
from tests.processors.reference import SlowHistogram
from tests.processors.windows import GIB, LENGTH_MS, START_MS, Pod, window

FAST = ModelConfig(
    profile=Profile(half_life_seconds=(600.0, 1200.0)), expiration_seconds=1e9,
    predictors=("percentile", "vpa"),
)  # fmt: skip
LAWS = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=40)
WEB, DB = PodOwner("ReplicaSet", "shop", "web-5d4"), PodOwner("StatefulSet", "shop", "db")
FLOORS = (0.025, 250 * 2**20)
NODES = ("node-a", "node-b", "node-c")

# Of each node and pod the samples: the window, cores and bytes.
Series = Mapping[tuple[str, str], Sequence[tuple[int, float, float]]]


def states(windows: Sequence[NodeWindow], config: ModelConfig = FAST) -> dict[str, bytes]:
    bank = Bank(config)
    bank.apply(windows)
    return {node: bank.encode_state(node) for node in bank.nodes}


def recommended(
    result: Mapping[str, bytes],
    owners: Mapping[str, PodOwner],
    config: ModelConfig = FAST,
    order: Sequence[str] = (),
) -> dict[PodOwner, Recommendation]:
    """By owner, where nodes are added in this order; every pod is on every node, as it were."""
    workloads = WorkloadSums(config)
    numbers = {uid: workloads.count(owner) for uid, owner in owners.items()}
    for node in order or result:
        workloads.add(node, result[node], numbers)
    return {one.owner: one for one in workloads.recommendations()}


def windows_of(series: Series) -> list[NodeWindow]:
    """A window of a node for each time at which one of its pods has a sample."""
    places = sorted({(node, end) for (node, _), own in series.items() for end, _, _ in own})
    return [
        window(
            end,
            [
                Pod(uid, (cpu, memory))
                for (other, uid), own in series.items() if other == node
                for at, cpu, memory in own if at == end
            ],
            node=node,
        )
        for node, end in places
    ]  # fmt: skip


def slow_quantiles(series: Series, resource: int, fraction: float) -> set[float]:
    """The quantile of one histogram of all samples, and what a rounding of the share may make of
    it: one part in a thousand million."""
    profile = FAST.profile
    newest = max(end for own in series.values() for end, _, _ in own)
    histogram = SlowHistogram(profile.layouts[resource].starts.tolist())
    for own in series.values():
        for end, *usage in own:
            age = (newest - end) * LENGTH_MS / profile.half_life_ms[resource]
            histogram.add(usage[resource], Fraction(2.0**-age))
    result = {histogram.quantile(Fraction(fraction) + Fraction(step, 10**9)) for step in (-1, 0, 1)}
    return {value for value in result if value is not None}


SAMPLES = st.lists(
    # Nodes may begin sixty half-lives apart: the references of their histograms differ.
    st.tuples(st.integers(0, 300), st.floats(0.001, 64), st.floats(1e6, 64 * GIB)),
    min_size=1, max_size=8, unique_by=lambda sample: sample[0],
)  # fmt: skip
PLACES = st.dictionaries(
    st.tuples(st.sampled_from(NODES), st.sampled_from(["p", "q", "r"])), SAMPLES,
    min_size=1, max_size=6,
)  # fmt: skip


@given(PLACES, st.permutations(NODES))
@LAWS
def test_pods_on_many_nodes_are_one_histogram_of_all_samples(
    series: dict[tuple[str, str], list[tuple[int, float, float]]], order: list[str]
) -> None:
    result = states(windows_of(series))
    order = [node for node in order if node in result]
    web = recommended(result, dict.fromkeys("pqr", WEB), order=order)[WEB]
    assert web.pods == 3
    for r, advice in enumerate((web.cpu, web.memory)):
        assert (advice.pods, advice.samples) == (len(series), sum(map(len, series.values())))
        allowed = slow_quantiles(series, r, FRACTIONS[1])
        assert advice.target in {max(value * 1.15, FLOORS[r]) for value in allowed}
        days = advice.confidence_days
        for bound, fraction, factor in (
            (advice.lower, FRACTIONS[0], (1 + 0.001 / days) ** -2 if days else 0.0),
            (advice.upper, FRACTIONS[2], 1 + 1 / days if days else math.nan),
        ):
            expected = [
                max(value * 1.15 * factor, FLOORS[r]) if days or factor == 0.0 else math.nan
                for value in slow_quantiles(series, r, fraction)
            ]
            assert any(bound == pytest.approx(one, rel=1e-12, nan_ok=True) for one in expected)


@given(PLACES)
@LAWS
def test_the_order_of_nodes_does_not_matter(
    series: dict[tuple[str, str], list[tuple[int, float, float]]],
) -> None:
    result = states(windows_of(series))
    one, *others = (
        recommended(result, {"p": WEB, "q": WEB, "r": DB}, order=order)
        for order in permutations(result)
    )
    for other in others:
        assert {owner: advice.cpu.samples for owner, advice in one.items()} == {
            owner: advice.cpu.samples for owner, advice in other.items()
        }
        for owner, left in one.items():
            for r, (mine, theirs) in enumerate(
                ((left.cpu, other[owner].cpu), (left.memory, other[owner].memory))
            ):
                own = {
                    place: s for place, s in series.items() if (place[1] == "r") == (owner == DB)
                }
                assert mine.peak_max == theirs.peak_max or math.isnan(mine.peak_max)
                if own:
                    allowed = {
                        max(v * 1.15, FLOORS[r]) for v in slow_quantiles(own, r, FRACTIONS[1])
                    }
                    assert {mine.target, theirs.target} <= allowed


@given(SAMPLES)
@LAWS
def test_the_recommendation_for_one_pod_equals_its_predictors(
    samples: list[tuple[int, float, float]],
) -> None:
    bank = Bank(FAST)
    bank.apply(windows_of({("node-a", "p"): samples}))
    (peaks,) = bank.peaks(["node-a"])
    web = recommended({"node-a": bank.encode_state("node-a")}, {"p": WEB})[WEB]
    for r, advice in enumerate((web.cpu, web.memory)):
        assert advice.target == peaks.predictors["vpa"].pod_raw[0, r]
        own = peaks.predictors["percentile"].pod_raw[0, r]
        assert (advice.peak_median, advice.peak_max) == (own, own)


# -- bounds


@pytest.mark.parametrize(
    ("days", "lower", "upper"),
    [
        # As the comments of the Vertical Pod Autoscaler's recommender have them.
        (5 / 1440, 0.6, 289.0), (30 / 1440, 0.9, 49.0), (60 / 1440, 0.95, 25.0),
        (0.5, 0.996, 3.0), (1.0, 0.998, 2.0), (7.0, 1.0, 1.143),
    ],
)  # fmt: skip
def test_bounds_are_as_wide_as_the_history_is_short(
    days: float, lower: float, upper: float
) -> None:
    result = bounds(np.array([[10.0], [20.0], [30.0]]), np.array([days]), 0.025)
    assert [float(bound[0]) for bound in result] == [
        pytest.approx(10 * 1.15 * lower, rel=0.012), 20 * 1.15,
        pytest.approx(30 * 1.15 * upper, rel=0.001),
    ]  # fmt: skip


def test_without_history_there_is_no_upper_bound_and_the_lower_one_is_the_floor() -> None:
    web = recommended(states([window(1, [Pod("p", (4.0, 8 * GIB))])]), {"p": WEB})[WEB]
    for floor, advice in zip(FLOORS, (web.cpu, web.memory), strict=True):
        assert advice.confidence_days == 0.0
        assert advice.lower == floor
        assert math.isnan(advice.upper)


def test_confidence_days_count_observed_time_only() -> None:
    """Two samples that are a day apart are two windows of history, two pods for a day a day."""
    day = 86_400_000 // LENGTH_MS
    sparse = {("node-a", "p"): [(0, 1.0, GIB), (day, 1.0, GIB)]}
    usual = replace(FAST, profile=KOORDINATOR)
    web = recommended(states(windows_of(sparse), usual), {"p": WEB}, usual)[WEB]
    assert web.cpu.confidence_days == 2 / day
    dense = {("node-a", uid): [(i, 1.0, GIB) for i in range(day + 1)] for uid in ("p", "q")}
    web = recommended(states(windows_of(dense), usual), {"p": WEB, "q": WEB}, usual)[WEB]
    assert web.cpu.confidence_days == 1.0
    assert web.cpu.samples == 2 * (day + 1)


# -- what is unknown


def unknown(advice: Advice) -> bool:
    values = (advice.lower, advice.target, advice.upper, advice.peak_median, advice.peak_max)
    return all(map(math.isnan, values)) and (advice.samples, advice.pods) == (0, 0)


def test_without_samples_nothing_is_recommended() -> None:
    blind = [window(i, [Pod("p", (1.0, math.nan))]) for i in range(3)]
    result = recommended(states(blind), {"p": WEB, "elsewhere": WEB, "q": DB})
    web, db = result[WEB], result[DB]
    assert (web.pods, web.cpu.pods, web.cpu.samples, web.known) == (2, 1, 3, True)
    assert all(map(unknown, (web.memory, db.cpu, db.memory)))
    assert not db.known
    assert not recommended({}, {"p": WEB})[WEB].known


def test_idle_pods_get_the_floor() -> None:
    idle = [window(i, [Pod("p", (0.0, 0.0))]) for i in range(30)]
    web = recommended(states(idle), {"p": WEB})[WEB]
    for floor, advice in zip(FLOORS, (web.cpu, web.memory), strict=True):
        values = (advice.lower, advice.target, advice.upper, advice.peak_median, advice.peak_max)
        assert values == (floor, floor, floor, 0.0, 0.0)


def test_pods_without_an_owner_are_counted_as_strangers() -> None:
    result = states([window(i, [Pod("p", (1.0, GIB)), Pod("q", (9.0, GIB))]) for i in range(3)])
    workloads = WorkloadSums(FAST)
    workloads.add("node-a", result["node-a"], {"p": workloads.count(WEB)})
    (web,) = workloads.recommendations()
    assert (workloads.unrecorded_pods, web.cpu.pods) == (1, 1)
    assert web.cpu.peak_max < 2.0


def test_a_state_that_does_not_fit_adds_nothing() -> None:
    result = states([window(1, [Pod("p", (1.0, GIB))])])
    workloads = WorkloadSums(replace(FAST, profile=VPA))
    numbers = {"p": workloads.count(WEB)}
    for node, state in (("node-a", result["node-a"]), ("node-a", b"nothing"), ("node-b", b"")):
        with pytest.raises(CheckpointError):
            workloads.add(node, state, numbers)
    (web,) = workloads.recommendations()
    assert unknown(web.cpu)


# -- comparison with the pods by themselves


def test_the_recommendation_includes_median_and_maximum_of_pod_peaks() -> None:
    series = {
        (node, uid): [(i, cpu, cpu * GIB) for i in range(40)]
        for node, uid, cpu in (("node-a", "p", 1.0), ("node-b", "q", 2.0), ("node-c", "r", 8.0))
    }
    web = recommended(states(windows_of(series)), dict.fromkeys("pqr", WEB))[WEB]
    assert web.end_ms == START_MS + 39 * LENGTH_MS
    assert 2.0 <= web.cpu.peak_median <= 2.2
    assert 8.0 <= web.cpu.peak_max <= 8.5
    # A third of all samples is of the largest: so is the target, and the median of all is not.
    assert web.cpu.target >= 8.0 * 1.15
    assert web.cpu.lower < 2.2 * 1.15
    even = recommended(states(windows_of(series)), dict.fromkeys("pr", WEB))[WEB]
    assert 4.5 <= even.cpu.peak_median <= 5.0


# -- pods that remember otherwise, and long ago


def test_pods_of_several_profiles_are_decayed_to_one_time_and_one_layout() -> None:
    config = replace(FAST, class_profiles={"batch": replace(VPA, half_life_seconds=(120.0, 120.0))})
    pods = [Pod("p", (1.0, GIB)), Pod("q", (6.0, 6 * GIB), "batch")]
    quiet = [window(10 + i, node="node-b") for i in range(3)]
    result = states([*(window(i, pods) for i in range(10)), *quiet], config)
    owners = {"p": WEB, "q": WEB}
    both = recommended(result, owners, config)[WEB]
    # At the newest window of the node that has them ten of one are worth more than of the other:
    # a half-life of 600 s leaves 5 to 1 of 120 s, 1 + 1/2 + .. = 2.
    weights = [sum(0.5 ** (i * 120 / half_life) for i in range(10)) for half_life in (600.0, 120.0)]
    assert 0.7 < weights[0] / sum(weights) < 0.9
    assert 6.0 * 1.15 <= both.cpu.target <= 6.6 * 1.15
    assert 1.0 <= both.cpu.lower <= 1.1 * 1.15
    assert recommended(result, owners, config, order=[*result][::-1])[WEB] == both


@pytest.mark.parametrize("order", [NODES[:2], NODES[1::-1]])
def test_samples_of_long_ago_weigh_next_to_nothing(order: tuple[str, ...]) -> None:
    """More than a hundred half-lives: the common reference moves on, or is ahead already."""
    series = {
        ("node-a", "p"): [(i, 50.0, 50 * GIB) for i in range(20)],
        ("node-b", "q"): [(5000 + i, 1.0, GIB) for i in range(3)],
    }
    result = states(windows_of(series))
    web = recommended(result, {"p": WEB, "q": WEB}, order=order)[WEB]
    assert web.cpu.target < 1.1 * 1.15
    assert web.cpu.peak_max >= 50.0
    alone = recommended(result, {"p": WEB, "q": DB}, order=order)
    assert alone[WEB].cpu.target >= 50 * 1.15


def test_many_owners_are_as_if_each_were_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recommendation, "OWNERS_AT_ONCE", 7)
    chance = np.random.default_rng(3)
    series = {
        (NODES[i % 3], f"pod-{i:03}"): [
            (int(end), float(chance.exponential()), float(chance.exponential() * GIB))
            for end in sorted(chance.choice(100, 5, replace=False))
        ]
        for i in range(600)
    }
    owners = {uid: PodOwner("Job", "ns", f"job-{int(uid[4:]) // 2:03}") for _, uid in series}
    result = states(windows_of(series))
    together = recommended(result, owners)
    assert [*together] == sorted(together)
    assert len(together) == 300
    for owner in [*together][::37]:
        own = {uid: of for uid, of in owners.items() if of == owner}
        assert recommended(result, own)[owner] == together[owner]
