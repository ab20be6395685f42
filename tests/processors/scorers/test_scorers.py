"""Every scorer obeys the laws of the shared suite, and the mathematics beneath is exact."""

import math
from decimal import ROUND_HALF_UP, Decimal
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import special

from pipeline.errors import InvalidPolicyError
from pipeline.processors.scorers import (
    beta,
    node_metadata,
    node_resources_allocatable,
    peaks,
    target_load_packing,
)
from pipeline.processors.scorers.registry import SCORERS
from pipeline.processors.scorers.rounding import round_half_away, scale_between_extremes
from pipeline.processors.scorers.scorer import Counts, Scorer
from pipeline.processors.scorers.suite import check_scorer

GPU = "nvidia.com/gpu"
ARGS: dict[str, list[dict[str, Any]]] = {
    "LoadAwareScheduling": [
        {"scoreAccordingProdUsage": True, "dominantResourceWeight": 3},
        {"aggregated": {"scoreAggregationType": "p95"}},
    ],
    "LoadVariationRiskBalancing": [{"safeVarianceMargin": 2, "safeVarianceSensitivity": 3}],
    "LowRiskOverCommitment": [{"riskLimitWeights": {"cpu": 1, "memory": 0}}],
    "NodeMetadata": [{"metadataKey": "k"}, {"metadataKey": "k", "scoringStrategy": "Lowest"}],
    "NodeResourcesAllocatable": [{}, {"mode": "Most"}],
    "NodeResourcesFitPlus": [
        {"resources": {GPU: {"type": "MostAllocated"}, "cpu": {"type": "LeastAllocated"}}}
    ],
    "Peaks": [{"nodePowerModel": {f"node-{i}": {"k0": 1, "k1": i, "k2": 0.01} for i in range(20)}}],
    "ResourceLimits": [{"resources": [{"name": "cpu"}, {"name": GPU, "weight": 3}]}],
    "ScarceResourceAvoidance": [{"resources": [GPU]}],
    "TargetLoadPacking": [{"targetUtilization": 70}, {"targetUtilization": 100}],
}
CASES = [(name, args) for name in SCORERS.points for args in ARGS.get(name, [{}])]


@pytest.mark.parametrize(
    ("name", "args"), CASES, ids=[f"{n}-{i}" for i, (n, _) in enumerate(CASES)]
)
def test_every_scorer_obeys_the_laws(name: str, args: dict[str, Any]) -> None:
    try:
        SCORERS.get(name).read(args)
    except InvalidPolicyError as error:
        pytest.fail(f"add valid arguments of {name} to ARGS in this file: {error}")
    check_scorer(SCORERS.get(name), args, seed=3)


class NoArgs(msgspec.Struct):
    pass


def made(score: Any, **more: Any) -> Scorer[NoArgs]:
    return Scorer(name="Bad", source="a test", text="", args=NoArgs, score=score, **more)


def writes(nodes: Any, demand: Any, args: Any) -> Any:
    nodes.allocatable("cpu")[0] = 1


@pytest.mark.parametrize(
    ("scorer", "says"),
    [
        (made(lambda nodes, *_: np.full(len(nodes), 101)), "from 0 to 100': it answers"),
        (made(lambda nodes, *_: np.zeros(len(nodes))), "it answers array"),
        (made(lambda nodes, *_: np.zeros(3, np.int64)), "it answers array"),
        (made(lambda nodes, *_: np.arange(len(nodes))), "order of nodes"),
        (made(lambda nodes, *_: nodes.counted("gpus")), "'gpus', which it does not declare"),
        (made(writes), "raises ValueError.*read-only"),
        (
            made(lambda nodes, *_: np.ones(len(nodes), np.int64), expiration_seconds=lambda _: 1.0),
            "unknown usage scores 0",
        ),
    ],
)
def test_the_suite_names_the_law_that_a_scorer_breaks(scorer: Scorer[Any], says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        check_scorer(scorer)


def test_a_scorer_may_count_amounts_of_its_own() -> None:
    scorer = made(
        lambda nodes, demand, _: np.minimum(nodes.counted("gpus") + demand.counted["gpus"], 100),
        counts=lambda _: Counts(amounts={"gpus": lambda pod: 2}),
    )
    check_scorer(scorer)


@given(st.lists(st.integers(-(10**15), 10**15), min_size=1))
def test_halves_round_away_from_zero(doubled: list[int]) -> None:
    values = np.array(doubled) / 2
    exact = [int(Decimal(value).quantize(Decimal(1), ROUND_HALF_UP)) for value in values.tolist()]
    assert round_half_away(values).tolist() == exact


@given(st.lists(st.floats(-1e6, 1e6), min_size=2))
def test_extremes_score_0_and_100(raw: list[float]) -> None:
    scores = scale_between_extremes(np.array(raw))
    if max(raw) - min(raw) > 1e-3:
        assert scores[raw.index(min(raw))] == 0
        assert scores[raw.index(max(raw))] == 100


# The parameters of a fit: their sum is at most 1e6.
POSITIVE = st.floats(1e-3, 5e5)


@given(st.lists(st.tuples(POSITIVE, POSITIVE, st.floats(0, 1)), min_size=1, max_size=20))
@example([(89318.5689689251, 0.0011090271387322566, 0.99999173029389)])
@example([(493916.10090247594, 0.015322250400381215, 0.9999991763984073)])
def test_the_incomplete_beta_function_equals_scipys(cases: list[Any]) -> None:
    """scipy's is exact to 1e-16 here, compared with sums of 60 digits. Logarithms of the gamma
    function are up to 1.3e7, so ours has an absolute error of up to 3e-9, also where the value is
    small. A score is a whole number of 100: a probability to 1e-8 is enough.
    """
    alpha, beta_, x = (np.array(column) for column in zip(*cases, strict=True))
    exact = special.betainc(alpha, beta_, x)
    np.testing.assert_allclose(beta.incomplete_beta(alpha, beta_, x), exact, rtol=0, atol=1e-8)


def test_a_threshold_that_is_nan_does_not_prolong_the_fraction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As of a node without allocatable: two thousand terms for ten thousand nodes took 0.7 s."""
    terms = 0

    def counted(values: np.ndarray) -> np.ndarray:
        nonlocal terms
        terms += 1
        return values

    monkeypatch.setattr(beta, "_not_zero", counted)
    x = np.array([0.3, math.nan])
    below = beta.probability_below(np.full(2, 0.25), np.full(2, 0.05), x)
    assert below[0] == beta.probability_below(np.array([0.25]), np.array([0.05]), x[:1])[0]
    assert math.isnan(below[1])
    assert terms < 400


@given(st.floats(0.001, 0.999), st.floats(0.01, 0.999))
def test_a_fit_has_the_given_mean_and_deviation(mean: float, share: float) -> None:
    deviation = share * math.sqrt(mean * (1 - mean))
    fit = beta.fit(np.array([mean]), np.array([deviation]))
    assert fit.is_fit.all()
    a, b = fit.alpha.item(), fit.beta.item()
    assert a / (a + b) == pytest.approx(mean)
    assert math.sqrt(a * b / ((a + b) ** 2 * (a + b + 1))) == pytest.approx(deviation)


def test_a_negligible_deviation_is_a_step() -> None:
    mean, narrow = np.full(3, 0.5), np.array([1e-9, 1e-200, 0.0])
    assert not beta.fit(mean, narrow).is_fit.any()
    assert beta.probability_below(mean, narrow, np.array([0.51, 0.5, 0.49])).tolist() == [
        1.0,
        1.0,
        0.0,
    ]


@given(st.floats(0, 100), st.floats(1, 99))
def test_packing_scores_best_at_the_target(percent: float, target: float) -> None:
    score, best = (
        int(target_load_packing.target_load(np.array([used]), target)[0])
        for used in (percent, target)
    )
    assert score <= best == 100


def test_averages_lack_pods_bound_less_than_a_minute_before_the_windows_end() -> None:
    bound = np.array([0.0, 939.0, 940.0, 941.0, 2000.0])
    unmeasured = target_load_packing.is_unmeasured(bound, np.full(5, 1000.0))
    assert unmeasured.tolist() == [False, False, False, True, True]


def test_costs_beyond_64_bits_keep_their_order() -> None:
    rise = np.array([1e3, 1e10, -1e10, math.nan])
    cost = peaks.costs(rise)
    assert peaks.cheapest_first(cost, ~np.isnan(rise)).tolist() == [45, 0, 100, 0]


@given(st.lists(st.integers(-9_200_000_000_000_000_000, 9_200_000_000_000_000_000), min_size=1))
@example([-9_200_000_000_000_000_000, 9_200_000_000_000_000_000, 0])
@example([5, 5])
def test_costs_become_scores_as_by_integers_of_any_size(costs: list[int]) -> None:
    scores = peaks.cheapest_first(np.array(costs), np.ones(len(costs), np.bool_)).tolist()
    spread = max(max(costs) - min(costs), 1)
    expected = [100 - 100 * (cost - min(costs)) // spread for cost in costs]
    assert scores == (expected if any(costs) else [0] * len(costs))


@given(
    st.lists(st.tuples(st.integers(0, 2**53), st.integers(0, 2**53)), min_size=1),
    st.tuples(st.integers(1, 2**31), st.integers(1, 2**31)),
)
@example([(2**53, 2**53)], (2**31, 2**31))
@example([(2**53, 2**53 - 1)], (2**20, 1))
def test_sizes_are_means_by_integers_of_any_size(
    amounts: list[tuple[int, int]], weights: tuple[int, int]
) -> None:
    by_resource = dict(zip(("cpu", "memory"), np.array(amounts).T, strict=True))
    args = node_resources_allocatable.SCORER.read(
        {
            "mode": "Most",
            "resources": [
                {"name": name, "weight": weight}
                for name, weight in zip(by_resource, weights, strict=True)
            ],
        }
    )
    nodes: Any = SimpleNamespace(allocatable=by_resource.__getitem__)
    sizes = node_resources_allocatable.node_sizes(nodes, args).tolist()
    assert sizes == [
        (cpu * weights[0] + memory * weights[1]) // sum(weights) for cpu, memory in amounts
    ]


@pytest.mark.parametrize(
    ("text", "kind", "raw"),
    [
        ("12.9", "Number", 12.0), ("1_000", "Number", 1000.0), (" 12", "Number", None),
        ("inf", "Number", None), ("1e30", "Number", None), ("", "Number", None),
        ("2023-11-14T22:13:20Z", "Timestamp", 100.0), ("yesterday", "Timestamp", None),
    ],
)  # fmt: skip
def test_invalid_metadata_counts_as_missing(
    text: str, kind: node_metadata.Kind, raw: float | None
) -> None:
    values = node_metadata.raw_metadata([text, None], kind, "Oldest", 1_700_000_100.0)
    assert [None if math.isnan(value) else value for value in values.tolist()] == [raw, None]
