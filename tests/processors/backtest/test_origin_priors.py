"""Priors that leave the origin of a suite out."""

import numpy as np
import pytest

from pipeline.errors import UsageError
from pipeline.processors.arrays import FloatArray
from pipeline.processors.backtest.judge import predict_suites, settings_hash
from pipeline.processors.backtest.origin_priors import (
    OriginPriors,
    check_origins,
    margins_of,
    priors_of_others,
)
from pipeline.processors.backtest.replay import calibrated
from pipeline.processors.backtest.suites import Suite
from pipeline.processors.calibrated import fleet_prior
from pipeline.processors.calibrated.pooled_margins import BINS
from tests.processors.backtest.test_replay import tables, trace_of

ORIGINS = {"a_1": "a", "a_2": "a", "b": "b", "c": "c"}


def outcomes_at(bin: int) -> FloatArray:
    margins = np.zeros(BINS)
    margins[bin] = 1.0
    return margins


def margins() -> dict[str, list[FloatArray]]:
    return {name: [outcomes_at(100 + 50 * n)] for n, name in enumerate(ORIGINS)}


def test_the_prior_of_an_origin_is_that_of_all_others() -> None:
    priors = priors_of_others(margins(), ORIGINS).by_origin
    assert sorted(priors) == ["a", "b", "c"]
    for origin, prior in priors.items():
        others = [own[0] for name, own in margins().items() if ORIGINS[name] != origin]
        quantiles = fleet_prior.quantiles_of(others)
        assert quantiles is not None
        expected = fleet_prior.histogram_of(quantiles)
        np.testing.assert_array_equal(prior, expected)


def test_outcomes_of_an_origin_change_the_priors_of_others_only() -> None:
    before = priors_of_others(margins(), ORIGINS)
    after = priors_of_others(margins() | {"a_2": [outcomes_at(400)]}, ORIGINS)
    np.testing.assert_array_equal(before.by_origin["a"], after.by_origin["a"])
    assert not np.array_equal(before.by_origin["b"], after.by_origin["b"])
    assert before.hash != after.hash


def test_one_origin_is_refused() -> None:
    check_origins(["a", "b", "a"])
    with pytest.raises(UsageError, match="all data sets have the origin 'a'"):
        check_origins(["a", "a"])


def test_outcomes_of_a_trace_are_those_of_its_resources() -> None:
    trace = trace_of(tables())
    learned = margins_of(trace)
    assert learned.shape == (BINS,)
    assert learned.sum() == pytest.approx(len(trace.resources))


def test_each_suite_starts_from_the_prior_of_its_origin() -> None:
    trace = trace_of(tables())
    suites = [
        Suite(name=origin, dataset=trace.dataset, scenario=trace.scenario, origin=origin,
              horizon_hours=6, burn_in_hours=6, stride_steps=1)
        for origin in ("a", "b", "c")
    ]  # fmt: skip
    package = fleet_prior.histogram()
    priors = OriginPriors({"a": package, "b": outcomes_at(BINS - 1)}, "hash")
    variants = [calibrated(0.1), calibrated(0.1, others=priors)]
    for predicted in predict_suites(trace, suites, variants):
        with_package, with_others = predicted.predictions
        # An origin without a prior of its own has that of the package.
        is_equal = predicted.suite.origin != "b"
        assert np.array_equal(with_package, with_others, equal_nan=True) == is_equal


def test_priors_have_hashes_of_their_own() -> None:
    priors = priors_of_others(margins(), ORIGINS)
    other = priors._replace(hash="other")
    variants = [calibrated(0.1), calibrated(0.1, others=priors), calibrated(0.1, others=other)]
    assert len({settings_hash(variant) for variant in variants}) == 3
    assert variants[1].name == "calibrated 10%, prior of others"
