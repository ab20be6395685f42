"""What holds for every scorer: whole scores from 0 to 100, each node by itself, and a node of which
nothing is known never the best."""

import math
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.scorers import (
    beta,
    fit_plus,
    load_statistics,
    load_variation,
    low_risk,
    node_metadata,
    node_size,
    power_peaks,
    resource_limits,
    scarce_resources,
    target_load,
)
from pipeline.processors.scorers.rounding import between_extremes, half_away

Columns = tuple[FloatArray, FloatArray, FloatArray, FloatArray]
"""Capacity, usage in percent, its deviation, and what pods ask for, of each node."""


def by_target(columns: Columns) -> IntArray:
    capacity, used, _, asked = columns
    return target_load.target_load(target_load.predicted_percent(used, capacity, asked), 40)


def by_variation(columns: Columns) -> IntArray:
    capacity, used, deviation, _ = columns
    of = load_statistics.of_percent(capacity, used, deviation)
    return load_variation.load_variation([load_variation.risk_score(capacity, of, 100.0)])


def by_risk(columns: Columns) -> IntArray:
    capacity, used, deviation, asked = columns
    found = low_risk.asked(asked, 1.5 * asked, 100.0, 200.0).capped(capacity)
    of = load_statistics.of_percent(capacity, used, deviation)
    return low_risk.low_risk([low_risk.risk(capacity, found, of)])


def by_power(columns: Columns) -> IntArray:
    capacity, used, _, _ = columns
    constants = np.full_like(capacity, 0.05)
    rise = power_peaks.power_rise(
        power_peaks.PowerModel(capacity, capacity, constants), used, capacity, 100.0
    )
    return power_peaks.cheapest_first(power_peaks.costs(rise), ~np.isnan(rise))


def by_limits(columns: Columns) -> IntArray:
    capacity, _, _, asked = columns
    room = resource_limits.limit_room({"cpu": capacity}, {"cpu": asked}, {"cpu": 100.0}, {"cpu": 1})
    return resource_limits.limit_aware(room)


def by_fit(columns: Columns) -> IntArray:
    whole = np.nan_to_num(columns[0]).astype(np.int64)
    used = {"cpu": np.nan_to_num(columns[3]).astype(np.int64)}
    wanted = {"cpu": fit_plus.Resource("LeastAllocated", 2)}
    return fit_plus.fit_plus({"cpu": 100}, used, {"cpu": whole}, wanted, len(whole))


def by_scarcity(columns: Columns) -> IntArray:
    gpus = (np.nan_to_num(columns[3]) > 1000).astype(np.int64)
    kinds = {"cpu": np.nan_to_num(columns[0]).astype(np.int64), "nvidia.com/gpu": gpus}
    return scarce_resources.scarce_resources(kinds, {"memory": 1}, ["nvidia.com/gpu"], len(gpus))


def by_size(columns: Columns) -> IntArray:
    whole = np.nan_to_num(columns[0]).astype(np.int64)
    return node_size.by_size(node_size.raw_size({"cpu": whole}, {"cpu": 2**20}, "Most"))


def by_label(columns: Columns) -> IntArray:
    texts = [None if math.isnan(one) else str(one) for one in columns[1].tolist()]
    return node_metadata.by_metadata(node_metadata.raw_metadata(texts, "Number", "Highest", 0.0))


ALONE: dict[str, Callable[[Columns], IntArray]] = {
    "target": by_target, "variation": by_variation, "risk": by_risk, "fit": by_fit,
    "scarcity": by_scarcity,
}  # fmt: skip
TOGETHER: dict[str, Callable[[Columns], IntArray]] = {
    "power": by_power, "limits": by_limits, "size": by_size, "label": by_label,
}  # fmt: skip
EVERY = ALONE | TOGETHER

AMOUNT = st.integers(0, 10**15).map(float) | st.sampled_from([0.0, 1.0, 4000.0, math.nan])
PERCENT = st.floats(0, 300) | st.sampled_from([0.0, 40.0, 100.0, math.nan])
NODES = st.lists(st.tuples(AMOUNT, PERCENT, PERCENT, AMOUNT), min_size=1, max_size=6)


def columns_of(nodes: list[Any]) -> Columns:
    a, b, c, d = (np.array(column, np.float64) for column in zip(*nodes, strict=True))
    return a, b, c, d


@pytest.mark.parametrize("name", EVERY)
@given(NODES)
def test_scores_are_whole_and_from_0_to_100(name: str, nodes: list[Any]) -> None:
    found = EVERY[name](columns_of(nodes))
    assert found.dtype == np.int64
    assert found.shape == (len(nodes),)
    assert ((found >= 0) & (found <= 100)).all()


@pytest.mark.parametrize("name", ALONE)
@given(NODES)
def test_a_node_has_its_score_whoever_else_is_asked_for(name: str, nodes: list[Any]) -> None:
    together = ALONE[name](columns_of(nodes)).tolist()
    assert together == [int(ALONE[name](columns_of([node]))[0]) for node in nodes]


@pytest.mark.parametrize("name", TOGETHER)
@given(NODES, st.randoms())
def test_the_order_of_nodes_does_not_matter(name: str, nodes: list[Any], random: Any) -> None:
    order = list(range(len(nodes)))
    random.shuffle(order)
    found = TOGETHER[name](columns_of(nodes))
    shuffled = TOGETHER[name](columns_of([nodes[i] for i in order]))
    assert shuffled.tolist() == found[order].tolist()


@pytest.mark.parametrize("name", ["target", "variation", "power", "label"])
def test_a_node_without_a_measurement_is_not_the_best(name: str) -> None:
    known, unknown = (4000.0, 30.0, 5.0, 100.0), (4000.0, math.nan, math.nan, 100.0)
    other = (4000.0, 60.0, 5.0, 100.0)
    found = EVERY[name](columns_of([known, unknown, other])).tolist()
    assert found[1] == 0 < max(found[0], found[2])


@given(st.lists(st.integers(-(10**15), 10**15), min_size=1))
def test_halves_go_away_from_zero(doubled: list[int]) -> None:
    values = np.array(doubled) / 2
    exact = [int(Decimal(value).quantize(Decimal(1), ROUND_HALF_UP)) for value in values.tolist()]
    assert half_away(values).tolist() == exact


@given(st.lists(st.floats(-1e6, 1e6), min_size=2))
def test_extremes_are_0_and_100(raw: list[float]) -> None:
    found = between_extremes(np.array(raw))
    if max(raw) - min(raw) > 1e-3:
        assert found[raw.index(min(raw))] == 0
        assert found[raw.index(max(raw))] == 100


POSITIVE = st.floats(1e-3, 1e5)


@given(st.lists(st.tuples(POSITIVE, POSITIVE, st.floats(0, 1)), min_size=1, max_size=20))
def test_the_incomplete_beta_function_is_that_of_scipy(cases: list[Any]) -> None:
    alpha, beta_, at = (np.array(column) for column in zip(*cases, strict=True))
    exact = special.betainc(alpha, beta_, at)
    np.testing.assert_allclose(beta.regularized(alpha, beta_, at), exact, rtol=1e-7, atol=1e-10)


@given(st.floats(0.001, 0.999), st.floats(0.01, 0.999))
def test_a_fit_has_the_mean_and_deviation_asked_for(mean: float, share: float) -> None:
    deviation = share * math.sqrt(mean * (1 - mean))
    found = beta.fit(np.array([mean]), np.array([deviation]))
    assert found.is_fit.all()
    a, b = found.alpha.item(), found.beta.item()
    assert a / (a + b) == pytest.approx(mean)
    assert math.sqrt(a * b / ((a + b) ** 2 * (a + b + 1))) == pytest.approx(deviation)


def test_a_deviation_that_is_as_good_as_none_is_a_step() -> None:
    mean, narrow = np.full(3, 0.5), np.array([1e-9, 1e-200, 0.0])
    assert not beta.fit(mean, narrow).is_fit.any()
    assert beta.below(mean, narrow, np.array([0.51, 0.5, 0.49])).tolist() == [1.0, 1.0, 0.0]


@given(st.floats(0, 100), st.floats(1, 99))
def test_the_target_is_where_packing_is_best(percent: float, target: float) -> None:
    here, best = (int(target_load.target_load(np.array([p]), target)[0]) for p in (percent, target))
    assert here <= best == 100


def test_a_window_that_ended_long_before_a_pod_came_does_not_have_it() -> None:
    bound = np.array([0.0, 939.0, 940.0, 941.0, 2000.0])
    found = target_load.is_unmeasured(bound, np.full(5, 1000.0))
    assert found.tolist() == [False, False, False, True, True]


def test_costs_beyond_64_bits_keep_their_order() -> None:
    rise = np.array([1e3, 1e10, -1e10, math.nan])
    cost = power_peaks.costs(rise)
    assert power_peaks.cheapest_first(cost, ~np.isnan(rise)).tolist() == [45, 0, 100, 0]


@pytest.mark.parametrize(
    ("text", "kind", "raw"),
    [
        ("12.9", "Number", 12.0),
        ("1_000", "Number", 1000.0),
        (" 12", "Number", None),
        ("inf", "Number", None),
        ("1e30", "Number", None),
        ("", "Number", None),
        ("2023-11-14T22:13:20Z", "Timestamp", 100.0),
        ("yesterday", "Timestamp", None),
    ],
)
def test_metadata_that_is_no_value_counts_as_missing(
    text: str, kind: node_metadata.Kind, raw: float | None
) -> None:
    found = node_metadata.raw_metadata([text, None], kind, "Oldest", 1_700_000_100.0)
    assert [None if math.isnan(one) else one for one in found.tolist()] == [raw, None]
