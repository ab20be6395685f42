"""The predictor `recent-nsigma`."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.model.model_config import ENTITIES, NODE, SYSTEM
from tests.processors.predictors.answers import LAWS, answer
from tests.processors.windows import GIB, Pod, window

PROD = ENTITIES.index("prod")
WINDOWS = 5
"""Windows between two samples of the tests: they are in slots of their own."""


def peak_of(usage: list[list[float]], requests: list[float], times: float) -> float:
    """Pods by rows, slots by columns, the newest last; rows may be shorter: pods came later."""
    slots = max(map(len, usage))
    shares = []
    for age in range(slots):
        there = [i for i, row in enumerate(usage) if age < len(row)]
        total = sum(usage[i][len(usage[i]) - 1 - age] for i in there)
        shares.append(total / sum(requests[i] for i in there))
    deviation = float(np.std(shares, ddof=1)) if slots > 1 else 0.0
    return min(float(np.mean(shares)) + times * deviation, 1.0) * sum(requests)


@given(
    st.lists(
        st.tuples(st.lists(st.floats(0.01, 8), min_size=1, max_size=20), st.floats(0.5, 8)),
        min_size=1, max_size=4,
    ),
    st.sampled_from([0.0, 1.0, 5.0]),
)  # fmt: skip
@LAWS
def test_peak_is_mean_and_deviation_of_the_shares_of_present_pods(
    pods: list[tuple[list[float], float]], times: float
) -> None:
    slots = max(len(usage) for usage, _ in pods)
    windows = []
    for slot in range(slots):
        present = [
            Pod(f"pod-{i}", (usage[slot - slots + len(usage)], GIB), requests=(request * 1000, GIB))
            for i, (usage, request) in enumerate(pods)
            if slot >= slots - len(usage)
        ]
        windows.append(window(slot * WINDOWS, present, usage=(100.0, 8 * GIB)))
    result = answer(
        windows, "recent-nsigma", nsigma_multiplier=times, cold_start_seconds=0.0,
        cold_start_samples=0,
    )  # fmt: skip
    own = result.predictors["recent-nsigma"]
    expected = peak_of([usage for usage, _ in pods], [request for _, request in pods], times)
    assert own.raw[PROD, 0] == pytest.approx(expected, rel=0.02, abs=0.01)
    assert own.raw[NODE, 0] == pytest.approx(own.raw[PROD, 0] + own.raw[SYSTEM, 0])


def peaks(*pods: Pod) -> tuple[float, float]:
    """The peaks of Prod and the first pod, of three samples."""
    windows = [window(slot * WINDOWS, pods) for slot in range(3)]
    own = answer(windows, "recent-nsigma", cold_start_samples=3).predictors["recent-nsigma"]
    return float(own.raw[PROD, 0]), float(own.pod_raw[0, 0])


def test_peak_is_at_most_the_request() -> None:
    assert peaks(Pod("a", (5.0, GIB), requests=(1000.0, GIB))) == (1.0, 1.0)


def test_pod_without_request_adds_its_own_peak() -> None:
    without = Pod("a", (5.0, GIB), requests=(np.nan, np.nan))
    total, own = peaks(without, Pod("b", (0.5, GIB)))
    assert own == pytest.approx(5.0, rel=0.01)
    assert total == pytest.approx(5.5, rel=0.01)


def test_young_pod_counts_its_request() -> None:
    young = Pod("a", (0.5, GIB), requests=(3000.0, GIB), age=60.0)
    total, own = peaks(young, Pod("b", (0.5, GIB)))
    assert own == pytest.approx(0.5, rel=0.01)
    assert total == pytest.approx(3.5, rel=0.01)


def test_usage_of_the_day_before_does_not_count() -> None:
    """A pod whose usage was not read for an hour: its slots of that hour are those of yesterday."""
    day = 86_400_000 // 120_000
    high, usual = Pod("a", (0.9, GIB)), Pod("a", (0.1, GIB))
    windows = [window(number, [high]) for number in range(0, 30, 5)]
    windows += [window(day - 30, [usual]), window(day - 29, [usual])]
    lost = Pod("a", (np.nan, np.nan))
    windows += [window(day + number, [lost]) for number in range(0, 30, 5)]
    options = {"recent-nsigma": {"history_seconds": 7200}}
    result = answer(windows, "recent-nsigma", options=options, cold_start_samples=1)
    assert result.predictors["recent-nsigma"].raw[PROD, 0] == pytest.approx(0.1, rel=0.01)
