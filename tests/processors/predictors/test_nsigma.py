"""The predictors `nsigma-v1`, `nsigma-v2` and `pods-nsigma`."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.model.model_config import ENTITIES, NODE, SYSTEM, Profile
from pipeline.processors.model.training_batch import NodeWindow, training_batch
from tests.processors.predictors.answers import LAWS, answer, learned, same, sums_of
from tests.processors.windows import GIB, LENGTH_MS, Pod, streams, window

FAST = Profile(half_life_seconds=(600.0, 1200.0))
USAGE = st.tuples(st.floats(0, 64), st.floats(0, 64 * GIB))
PROD = ENTITIES.index("prod")


@given(st.lists(USAGE, min_size=1, max_size=60), st.sampled_from([0.0, 1.0, 3.0, 7.5]))
@LAWS
def test_version_1_is_numpys_mean_and_deviation(
    series: list[tuple[float, float]], times: float
) -> None:
    windows = [window(i, usage=usage) for i, usage in enumerate(series)]
    result = answer(windows, "nsigma-v1", profile=FAST, nsigma_multiplier=times)
    ages = np.arange(len(series))[::-1] * LENGTH_MS / 1000
    for r, half_life in enumerate(FAST.half_life_seconds):
        weights = 0.5 ** (ages / half_life)
        values = np.array(series)[:, r]
        mean = np.average(values, weights=weights)
        stdev = np.sqrt(np.average((values - mean) ** 2, weights=weights))
        own = result.predictors["nsigma-v1"]
        assert own.raw[NODE, r] == pytest.approx(mean + times * stdev, rel=1e-6, abs=1e-6)
        assert own.terms["mean"][NODE, r] == pytest.approx(mean, rel=1e-9)
        assert same(
            own.raw[NODE, r], own.terms["mean"][NODE, r] + times * own.terms["stdev"][NODE, r]
        )


@given(st.lists(USAGE, min_size=11, max_size=40))
@LAWS
def test_one_pod_adds_up_to_version_1(series: list[tuple[float, float]]) -> None:
    windows = [window(i, [Pod("a", usage)]) for i, usage in enumerate(series)]
    result = answer(windows, "nsigma-v2", "pods-nsigma", "nsigma-v1").predictors
    v1 = result["nsigma-v1"].raw[PROD].tobytes()
    assert result["nsigma-v2"].terms["pods"][PROD].tobytes() == v1
    assert result["nsigma-v2"].raw[PROD].tobytes() == v1
    assert result["pods-nsigma"].raw[PROD].tobytes() == v1


@given(st.lists(st.tuples(USAGE, USAGE, USAGE), min_size=11, max_size=40))
@LAWS
def test_pods_that_are_always_there_add_up_to_version_1_and_more(
    series: list[tuple[tuple[float, float], ...]],
) -> None:
    """deviations of a sum never exceed the sum of deviations."""
    windows = [
        window(i, [Pod(uid, usage) for uid, usage in zip("abc", row, strict=True)])
        for i, row in enumerate(series)
    ]
    terms = answer(windows, "nsigma-v2").predictors["nsigma-v2"].terms
    slack = 1e-6 * (1.0 + terms["v1"][PROD])
    assert (terms["pods"][PROD] >= terms["v1"][PROD] - slack).all()


@given(streams())
@LAWS
def test_pods_nsigma_is_the_sum_of_the_pods_version_1(windows: list[NodeWindow]) -> None:
    """Version 2 is the larger of this and version 1."""
    names = ("pods-nsigma", "nsigma-v1", "nsigma-v2")
    bank = learned(windows, *names, cold_start_samples=3, cold_start_seconds=60.0)
    for result in bank.peaks(bank.nodes):
        own, v1, v2 = (result.predictors[name] for name in names)
        assert own.pod_raw.tobytes() == v1.pod_raw.tobytes()
        assert np.array_equal(v2.raw, np.fmax(v1.raw, own.raw), equal_nan=True)
        assert np.array_equal(own.raw[SYSTEM], v1.raw[SYSTEM], equal_nan=True)
        for entity, name in enumerate(ENTITIES):
            for r in range(2):
                if name == "system":
                    continue
                total = sums_of(result, "pods-nsigma", entity, r).total
                assert same(
                    own.raw[entity, r], total + (v1.raw[SYSTEM, r] if name == "node" else 0.0)
                )


def test_pods_nsigma_is_unknown_where_only_the_node_was_measured() -> None:
    """Where only the node was read, version 2 has version 1 to go by; the pods have no sum."""
    windows = [window(i, [Pod("a", (3.0, GIB))], host_apps=(np.nan, np.nan)) for i in range(3)]
    result = answer(windows, "pods-nsigma", "nsigma-v2", cold_start_samples=0).predictors
    assert np.isnan(result["pods-nsigma"].raw[NODE]).all()
    assert result["nsigma-v2"].raw[NODE].tolist() == [4.0, 8 * GIB]


@given(streams())
@LAWS
def test_version_2_is_the_larger_of_version_1_and_the_pods(windows: list[NodeWindow]) -> None:
    """For any mix of cold, unknown, deleted and ended pods."""
    bank = learned(windows, "nsigma-v1", "nsigma-v2", cold_start_samples=3, cold_start_seconds=60.0)
    for result in bank.peaks(bank.nodes):
        v1, v2 = result.predictors["nsigma-v1"], result.predictors["nsigma-v2"]
        assert v1.pod_raw.tobytes() == v2.pod_raw.tobytes()
        careful, alone = v2.reclaimable.classes_peak, v1.reclaimable.classes_peak
        assert (np.isnan(alone) | (careful >= alone)).all()
        assert v1.raw.tobytes() == v2.terms["v1"].tobytes()
        for entity, name in enumerate(ENTITIES):
            for r in range(2):
                own, alone = v2.raw[entity, r], v1.raw[entity, r]
                if name == "system":
                    assert same(own, alone)
                    continue
                sums = sums_of(result, "nsigma-v2", entity, r)
                for term in ("pods", "requests", "counted", "left_out"):
                    assert v2.terms[term][entity, r] == getattr(sums, term)
                total = sums.total + (v1.raw[SYSTEM, r] if name == "node" else 0.0)
                assert same(own, np.fmax(alone, total))
                assert np.isnan(alone) or own >= alone


def test_a_cold_pod_counts_its_request() -> None:
    windows = [window(1, [Pod("old", (1.0, GIB)), Pod("young", (0.1, GIB), age=5.0)])]
    own = answer(windows, "nsigma-v2", cold_start_samples=1).predictors["nsigma-v2"]
    assert own.raw[PROD, 0] == 1.0 + 1.0
    assert own.pod_raw[:, 0].tolist() == [1.0, 0.1]


def test_an_unmeasured_pod_counts_its_request_or_is_left_out() -> None:
    nothing = (np.nan, np.nan)
    pods = [Pod("a", nothing), Pod("b", nothing, requests=nothing), Pod("c", (2.0, GIB))]
    own = answer([window(1, pods)], "nsigma-v2", cold_start_samples=0).predictors["nsigma-v2"]
    assert own.raw[PROD].tolist() == [1.0 + 2.0, 2 * GIB]
    assert own.terms["left_out"][PROD].tolist() == [1.0, 1.0]


def test_the_sum_of_unknown_pods_is_unknown() -> None:
    """Not to 0: what class free uses is unknown, though it was seen to use 0 of nothing."""
    nothing = (np.nan, np.nan)
    result = answer([window(1, [Pod("a", nothing, "free", nothing)])], "resource-central")
    assert np.isnan(result.predictors["resource-central"].raw[ENTITIES.index("free")]).all()


def test_a_deleted_pod_counts_its_usage_and_an_ended_pod_nothing() -> None:
    pods = [
        Pod("leaving", (1.0, GIB), active=False, age=5.0),
        Pod("ended", (4.0, GIB), ended=True),
        Pod("stays", (2.0, GIB)),
    ]
    result = answer([window(1, pods)], "resource-central", cold_start_samples=0)
    own = result.predictors["resource-central"]
    assert own.terms["pods"][PROD, 0] == pytest.approx(3.0, rel=0.0012)
    assert own.terms["counted"][PROD, 0] == 2.0
    assert own.terms["requests"][PROD, 0] == 0.0


def test_version_1_is_the_peak_where_the_system_is_unknown() -> None:
    now = window(1, [Pod("a", (3.0, GIB))], host_apps=(np.nan, np.nan))
    own = answer([now], "nsigma-v2", cold_start_samples=0).predictors["nsigma-v2"]
    assert np.isnan(own.terms["system"][NODE]).all()
    assert own.raw[NODE].tolist() == [4.0, 8 * GIB]


def test_the_sum_is_the_peak_where_the_node_is_unknown() -> None:
    before = window(1, [Pod("a", (3.0, GIB))])
    bank = learned([before], "nsigma-v2", cold_start_samples=0)
    assert bank.peaks(["node-a"])[0].predictors["nsigma-v2"].raw[NODE, 0] == 4.0
    blind = window(1, [Pod("a", (3.0, GIB))], usage=(np.nan, np.nan))
    bank = learned([], "nsigma-v2", cold_start_samples=0)
    bank.apply(replace(training_batch([blind]), system=np.array([[2.0, GIB]])))
    own = bank.peaks(["node-a"])[0].predictors["nsigma-v2"]
    assert own.raw[NODE].tolist() == [5.0, 2 * GIB]
