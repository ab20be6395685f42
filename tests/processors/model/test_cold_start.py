"""Which pods are cold, and what a cold pod counts."""

from dataclasses import replace

import numpy as np
import pytest

from pipeline.topics.nodes import Strategy
from tests.processors.windows import (
    GIB,
    LENGTH_MS,
    Pod,
    peaks_of,
    warm_bank,
    window,
    with_margin,
)

NAN = np.nan


def test_a_pod_is_cold_up_to_the_limit_of_its_age() -> None:
    bank = warm_bank(cold_start_seconds=100.0)
    pods = [Pod("a", (0.5, GIB), age=100.0), Pod("b", (0.5, GIB), age=100.5)]
    bank.apply([window(1, pods)])
    peaks = peaks_of(bank)
    assert peaks.pod_cold.tolist() == [True, False]
    assert peaks.reclaimable.unpredicted.tolist() == [1000.0, GIB]


def test_a_pod_of_unknown_age_is_cold_until_its_model_is_old_enough() -> None:
    bank = warm_bank(cold_start_seconds=2 * LENGTH_MS / 1000)
    cold = []
    for i in range(1, 6):
        bank.apply([window(i, [Pod("a", (0.5, GIB), age=NAN)])])
        cold.append(bool(peaks_of(bank).pod_cold[0]))
    assert cold == [True, True, True, False, False]


def test_the_strategy_of_a_window_limits_the_cold_start() -> None:
    bank = warm_bank()
    pod = Pod("a", (0.5, GIB / 8), requests=(4000.0, GIB), age=500.0)
    now = window(1, [pod], usage=(0.5, GIB / 8))
    now.strategy = Strategy(cold_start_seconds=500.0, cold_start_samples=0)
    bank.apply([now])
    prod = peaks_of(bank).reclaimable
    assert (prod.amount[0], prod.unpredicted[0]) == (0.0, 4000.0)


def test_a_pod_is_cold_until_it_has_enough_samples() -> None:
    """Upstream asks only how old a pod is: after the loss of its checkpoints an old pod's first
    sample is its peak. Ours wants `cold_start_samples` as well, of each resource it knows."""
    bank = warm_bank(cold_start_samples=3)
    cold, amounts = [], []
    for i in range(1, 6):
        bank.apply([window(i, [Pod("a", (0.25, GIB / 8), age=1e9)], usage=(0.25, GIB / 8))])
        cold.append(bool(peaks_of(bank).pod_cold[0]))
        amounts.append(peaks_of(bank).reclaimable.amount[0])
    assert cold == [True, True, False, False, False]
    assert amounts == [0.0, 0.0, *[1000.0 - with_margin(0.25)] * 3]


@pytest.mark.parametrize(
    ("cpu", "memory", "cold"),
    [(5, 5, False), (5, 2, True), (2, 5, True), (5, 0, False), (0, 5, False), (0, 0, True)],
)
def test_every_measured_resource_needs_enough_samples(cpu: int, memory: int, cold: bool) -> None:
    """A resource with too few samples keeps the pod cold; one that is never measured does not, for
    without a model its request counts anyway."""
    bank = warm_bank(cold_start_samples=3)
    for i in range(5):
        used = 0.5 if i < cpu else NAN, GIB if i < memory else NAN
        bank.apply([window(i, [Pod("a", used)])])
    assert peaks_of(bank).pod_cold.tolist() == [cold]
    assert peaks_of(bank).reclaimable.pods_peak[1] >= GIB


COLD = Pod("a", (0.5, GIB), age=1.0)


@pytest.mark.parametrize(
    ("pod", "peak", "unpredicted"),
    [
        # Without a known request the model counts, of a deleting pod the request.
        (replace(COLD, requests=(NAN, NAN)), with_margin(0.5), 0.0),
        (replace(COLD, active=False), 1000.0, 1000.0),
        # Upstream asks for the age before the phase, so a finished young pod still counts.
        (replace(COLD, ended=True), 0.0, 0.0),
    ],
)
def test_a_cold_pod_counts_by_its_request_and_phase(
    pod: Pod, peak: float, unpredicted: float
) -> None:
    bank = warm_bank(cold_start_seconds=100.0)
    bank.apply([window(1, [pod])])
    prod = peaks_of(bank).reclaimable
    assert (prod.pods_peak[0], prod.unpredicted[0]) == (peak, unpredicted)
    assert (prod.requests[0], prod.pods_amount.tolist()) == (0.0, [0.0, 0.0])
