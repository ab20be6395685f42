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
    v2 = result["nsigma-v2"]
    sums = (v2.terms["pods"], v2.raw, result["pods-nsigma"].raw)
    v1 = result["nsigma-v1"].raw[PROD].tobytes()
    assert [values[PROD].tobytes() for values in sums] == [v1] * 3


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


def test_pods_nsigma_is_unknown_where_only_the_node_was_measured() -> None:
    """Where only the node was read, version 2 has version 1 to go by; the pods have no sum."""
    windows = [window(i, [Pod("a", (3.0, GIB))], host_apps=(np.nan, np.nan)) for i in range(3)]
    result = answer(windows, "pods-nsigma", "nsigma-v2", cold_start_samples=0).predictors
    v2 = result["nsigma-v2"]
    assert np.isnan([result["pods-nsigma"].raw[NODE], v2.terms["system"][NODE]]).all()
    assert v2.raw[NODE].tolist() == [4.0, 8 * GIB]


@given(streams())
@LAWS
def test_version_2_is_the_larger_of_version_1_and_the_sum_of_pods(
    windows: list[NodeWindow],
) -> None:
    """For any mix of cold, unknown, deleted and ended pods. `pods-nsigma` is the sum."""
    names = ("pods-nsigma", "nsigma-v1", "nsigma-v2")
    bank = learned(windows, *names, cold_start_samples=3, cold_start_seconds=60.0)
    for result in bank.peaks(bank.nodes):
        pods, v1, v2 = (result.predictors[name] for name in names)
        assert pods.pod_raw.tobytes() == v1.pod_raw.tobytes() == v2.pod_raw.tobytes()
        careful, alone = v2.reclaimable.classes_peak, v1.reclaimable.classes_peak
        assert (np.isnan(alone) | (careful >= alone)).all()
        assert v1.raw.tobytes() == v2.terms["v1"].tobytes()
        assert np.array_equal(v2.raw, np.fmax(v1.raw, pods.raw), equal_nan=True)
        assert np.array_equal(pods.raw[SYSTEM], v1.raw[SYSTEM], equal_nan=True)
        for entity, name in enumerate(ENTITIES):
            for r in range(2):
                if name == "system":
                    continue
                sums = sums_of(result, "nsigma-v2", entity, r)
                for term in ("pods", "requests", "counted", "left_out"):
                    assert v2.terms[term][entity, r] == getattr(sums, term)
                system = v1.raw[SYSTEM, r] if name == "node" else 0.0
                assert same(pods.raw[entity, r], sums.total + system)


def test_the_sum_is_the_peak_where_the_node_is_unknown() -> None:
    before = window(1, [Pod("a", (3.0, GIB))])
    bank = learned([before], "nsigma-v2", cold_start_samples=0)
    assert bank.peaks(["node-a"])[0].predictors["nsigma-v2"].raw[NODE, 0] == 4.0
    blind = window(1, [Pod("a", (3.0, GIB))], usage=(np.nan, np.nan))
    bank = learned([], "nsigma-v2", cold_start_samples=0)
    bank.apply(replace(training_batch([blind]), system=np.array([[2.0, GIB]])))
    own = bank.peaks(["node-a"])[0].predictors["nsigma-v2"]
    assert own.raw[NODE].tolist() == [5.0, 2 * GIB]
