"""Any predictor may decide what Prod leaves unused."""

import numpy as np
import pytest

from pipeline.processors.model.node_peaks import NodePeaks
from pipeline.processors.model.predictor import may_decide
from pipeline.processors.model.reclaimable import surplus_in_peaks
from pipeline.processors.model.training_batch import NodeWindow
from pipeline.processors.predictors.registry import PREDICTORS, build
from pipeline.topics.nodes import Strategy
from tests.processors.predictors.answers import answer
from tests.processors.windows import GIB, LENGTH_MS, Pod, window

DECIDING = [name for name, made in build([*PREDICTORS.points], {}).items() if may_decide(made)]
PODS = [
    Pod("steady", (1.0, GIB), requests=(8000.0, 8 * GIB)),
    Pod("young", (0.5, GIB / 2), requests=(2000.0, 2 * GIB), age=60.0),
]


def day_of(pods: list[Pod], predictor: str) -> list[NodeWindow]:
    hour = 3_600_000 // LENGTH_MS
    windows = [window(i * hour, pods, usage=(2.0, 2 * GIB), length_ms=3_600_000) for i in range(27)]
    windows[-1].strategy = Strategy(predictor=predictor, safety_margin_percent=0.0)
    return windows


def decided_by(predictor: str, pods: list[Pod]) -> NodePeaks:
    return answer(day_of(pods, predictor), "percentile", *{predictor} - {"percentile"})


# `calibrated` is more careful until it has outcomes of its own: `test_calibrated.py`.
@pytest.mark.parametrize("predictor", [name for name in DECIDING if name != "calibrated"])
def test_the_unused_request_of_a_quiet_pod_is_reclaimable(predictor: str) -> None:
    result = decided_by(predictor, PODS[:1])
    assert result.decides == predictor
    amount, peak = result.reclaimable.amount[0], result.reclaimable.peak[0]
    # The pod and the system use a core each; `max` goes by the request, divided by 1.1. The last
    # digit is cut.
    used = 1000.0 + (8000.0 / 1.1 if predictor == "max" else 1000.0)
    assert used - 1 <= peak <= used * 1.2
    assert max(8000.0 - peak, 0.0) <= amount <= max(8000.0 - used, 0.0)


@pytest.mark.parametrize("predictor", ["nsigma-v2", "pods-nsigma", "resource-central", "max"])
def test_the_request_of_a_cold_pod_counts_once(predictor: str) -> None:
    """It is in the sum over the pods of its class; nothing comes on top."""
    result = decided_by(predictor, PODS)
    young = 2000.0
    steady = {"max": 10_000.0 / 1.1 - young}.get(predictor, 1000.0)
    system = result.decided.peaks[1, 0] * 1000
    expected = system + steady + young
    assert result.reclaimable.surplus.tolist() == [0.0, 0.0]
    assert expected - 1 <= result.reclaimable.classes_peak[0] <= expected * 1.01
    assert result.reclaimable.unpredicted[0] == young


def test_a_cold_pods_request_counts_where_version_1_is_higher() -> None:
    """The past of the class is more than the pods that are left: `nsigma-v2` goes by it, too."""
    before = [window(i, [Pod("old", (6.0, 6 * GIB))], usage=(6.5, 7 * GIB)) for i in range(60)]
    young = Pod("young", (0.2, GIB / 4), requests=(5000.0, 5 * GIB), age=60.0)
    after = [window(60 + i, [young], usage=(0.7, GIB)) for i in range(3)]
    result = answer(before + after, "nsigma-v2", "nsigma-v1")
    v1, v2 = (result.predictors[name].reclaimable for name in ("nsigma-v1", "nsigma-v2"))
    assert v2.classes_peak.tolist() == v1.classes_peak.tolist()
    assert v2.surplus[0] > 4000.0


def test_only_requests_outside_the_sum_are_added() -> None:
    surplus, margin = np.array([[5.0, 5.0]] * 3), np.ones(3)
    used = np.array([[9.0, 7.0], [9.0, np.nan], [9.0, 9.0]])
    without_requests = np.array([[2.0, 4.0], [9.0, 1.0], [np.nan, 9.0]])
    included = surplus_in_peaks(
        surplus=surplus, peaks=used, peaks_without_requests=without_requests, margin=margin
    )
    assert included.tolist() == [[5.0, 3.0], [0.0, 0.0], [5.0, 0.0]]


@pytest.mark.parametrize("predictor", ["percentile", "nsigma-v2"])
def test_unknown_pods_are_counted_as_left_out(predictor: str) -> None:
    nothing = (np.nan, np.nan)
    hidden = [
        Pod("neither", nothing, requests=nothing),
        Pod("cpu-is-known", (1.0, np.nan), requests=nothing),
        Pod("asks", nothing),
        Pod("not-of-prod", nothing, "batch", requests=nothing),
        Pod("ended", nothing, requests=nothing, ended=True),
    ]
    assert decided_by(predictor, PODS).reclaimable.left_out.tolist() == [0.0, 0.0]
    assert decided_by(predictor, hidden).reclaimable.left_out.tolist() == [1.0, 2.0]


def test_a_maximum_reclaims_no_more_than_any_member() -> None:
    """`percentile` alone adds the rest of a cold pod's request to the peak of its class."""
    members = ["percentile", "resource-central"]
    windows = day_of(PODS, "max")
    result = answer(windows, "max", *members, options={"max": {"members": members}})
    for member in members:
        theirs = result.predictors[member].reclaimable
        assert (result.reclaimable.amount <= theirs.amount).all()
        assert (result.reclaimable.classes_peak >= theirs.classes_peak).all()


@pytest.mark.parametrize("predictor", ["percentile", "nsigma-v1", "autopilot", "hourly-nsigma"])
def test_class_peaks_of_usage_get_the_rest_of_cold_requests(predictor: str) -> None:
    result = decided_by(predictor, PODS)
    assert 1400.0 <= result.reclaimable.surplus[0] <= 1500.0
    whole = result.reclaimable.classes_peak[0] - result.reclaimable.surplus[0]
    assert 2000.0 <= whole <= 2200.0
    assert not np.isnan(result.reclaimable.amount).any()
