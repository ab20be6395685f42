"""The predictor `resource-central`."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.processors.model.model_config import ENTITIES, NODE, SYSTEM
from pipeline.processors.model.training_batch import NodeWindow
from pipeline.processors.predictors.resource_central import ranks_of
from tests.processors.predictors.answers import LAWS, answer, learned, same, sums_of
from tests.processors.windows import GIB, LENGTH_MS, START_MS, Pod, streams, window

USAGE = st.floats(1e-3, 64)
SLOT_MS = 300_000
OFF = 1.0012
"""What a slot may be too high by."""


def exact_percentile(values: list[float], fraction: float) -> float:
    """The lowest value that at least this share of all values does not exceed."""
    return next(
        value
        for value in sorted(values)
        if sum(other <= value for other in values) >= Fraction(str(fraction)) * len(values)
    )


def slot_values(series: list[tuple[int, float]], slots: int) -> list[float]:
    """The highest sample of each slot, of the last ones; `series` are window ends and samples."""
    by_slot: dict[int, float] = {}
    for end, value in series:
        slot = math.ceil((START_MS + end * LENGTH_MS) / SLOT_MS)
        by_slot[slot] = max(by_slot.get(slot, 0.0), value)
    last = max(by_slot)
    return [value for slot, value in by_slot.items() if slot > last - slots]


@given(
    st.lists(st.tuples(st.sampled_from([1, 1, 1, 2, 9, 40]), USAGE), min_size=1, max_size=80),
    st.sampled_from([0.001, 0.5, 0.9, 0.95, 0.99, 1.0]),
    st.sampled_from([300, 1800, 7300, 86_400]),
)
@example([(1, 9.0), (60, 1.0)], 1.0, 7300)  # a slot that the history touches counts whole
@LAWS
def test_the_peak_of_a_pod_is_the_exact_percentile_of_its_slots(
    steps: list[tuple[int, float]], fraction: float, seconds: float
) -> None:
    """never below it, and above it by no more than what slots are rounded up by."""
    end, series = 0, []
    for step, usage in steps:
        end += step
        series.append((end, usage))
    options = {"resource-central": {"cpu": fraction, "history_seconds": seconds}}
    windows = [window(end, [Pod("a", (usage, GIB))]) for end, usage in series]
    result = answer(windows, "resource-central", options=options, expiration_seconds=1e6)
    exact = exact_percentile(slot_values(series, math.ceil(seconds / 300)), fraction)
    peak = result.predictors["resource-central"].pod_raw[0, 0]
    assert exact <= peak <= exact * OFF


@given(st.lists(USAGE, min_size=1, max_size=80), st.sampled_from([0.5, 0.9, 0.95, 0.99, 1.0]))
@LAWS
def test_linear_interpolation_is_that_of_numpy(usages: list[float], fraction: float) -> None:
    windows = [window(10 * (end + 1), [Pod("a", (usage, GIB))]) for end, usage in enumerate(usages)]
    options = {"resource-central": {"cpu": fraction, "interpolation": "linear"}}
    result = answer(windows, "resource-central", options=options, expiration_seconds=1e6)
    exact = np.quantile(usages, fraction)
    peak = result.predictors["resource-central"].pod_raw[0, 0]
    assert exact * (1 - 1e-9) <= peak <= exact * OFF


@given(st.decimals("0", "1", places=4), st.integers(1, 288))
@settings(deadline=None)
def test_ranks_follow_from_exact_fractions(fraction: object, count: int) -> None:
    rank = ranks_of(float(str(fraction)))[count]
    share = Fraction(str(fraction)) * count
    assert rank + 1 >= share
    assert rank == 0 or rank < share


def test_a_rank_is_not_moved_by_rounding() -> None:
    """29 of 100 is the 29th, whatever 0.29 * 100 comes to in floating point."""
    assert [int(ranks_of(percent / 100)[100]) + 1 for percent in range(1, 101)] == [*range(1, 101)]


@given(streams())
@LAWS
def test_the_peak_of_an_entity_is_the_sum_of_its_pods(windows: list[NodeWindow]) -> None:
    """requests of cold pods, and for the node the system."""
    bank = learned(windows, "resource-central", cold_start_samples=3, cold_start_seconds=60.0)
    for result in bank.peaks(bank.nodes):
        own = result.predictors["resource-central"]
        for entity, name in enumerate(ENTITIES):
            for r in range(2):
                if name == "system":
                    assert np.isnan(own.terms["pods"][entity, r])
                    continue
                sums = sums_of(result, "resource-central", entity, r)
                for term in ("pods", "requests", "counted", "left_out"):
                    assert own.terms[term][entity, r] == getattr(sums, term)
                system = own.raw[SYSTEM, r] if name == "node" else 0.0
                assert same(own.raw[entity, r], sums.total + system)
        assert same(own.terms["system"][NODE, 0], own.raw[SYSTEM, 0])


@pytest.mark.parametrize(("spikes", "expected"), [(2, 1.0), (3, 9.0)])
def test_by_default_p99_of_a_day(spikes: int, expected: float) -> None:
    """Of 288 slots the 286th: two spikes a day are not seen, three are; of the day before none."""
    windows = []
    for slot in range(-5, 288):
        usage = 9.0 if slot < spikes else 1.0
        end_ms = START_MS + slot * SLOT_MS
        windows.append(
            replace(window(0, usage=(usage, GIB)), start_ms=end_ms - SLOT_MS, end_ms=end_ms)
        )
    own = answer(windows, "resource-central").predictors["resource-central"]
    assert expected <= own.raw[SYSTEM, 0] <= expected * OFF


def test_peaks_are_unknown_without_a_slot() -> None:
    result = answer([window(1, [Pod("a", (np.nan, GIB), requests=(np.nan, GIB))], coverage=0.1)],
                   "resource-central")  # fmt: skip
    own = result.predictors["resource-central"]
    assert np.isnan(own.pod_raw).all()
    assert np.isnan(own.raw[[SYSTEM, NODE]]).all()
