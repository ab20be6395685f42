"""Followed peaks of Prod against a slow reference that keeps every window."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.processors.arrays import FloatArray
from pipeline.processors.model import bank as banks
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.model_config import ModelConfig
from pipeline.processors.model.pending_peaks import MOST_PENDING, EndedPeak, Schedule
from pipeline.processors.model.training_batch import NodeWindow
from tests.processors.windows import LENGTH_MS, Pod, config_with, warm_bank, window

NODE = "node-a"
WINDOW_SECONDS = LENGTH_MS / 1000
HORIZON = 6
"""Windows of a horizon; one peak of three windows is followed."""
UIDS = [f"pod-{i}" for i in range(4)]
PROD = ("prod", "none", "unknown")
CONFIG = {"horizon_seconds": HORIZON * WINDOW_SECONDS, "accuracy_interval_seconds": 360.0}


@dataclass(frozen=True)
class Step:
    """A window that comes `after` so many lengths: pods, and the usage of the system in cores."""

    after: int
    pods: tuple[Pod, ...]
    system: float


CORES = st.integers(0, 64).map(lambda eighths: eighths / 8)
USAGE = st.tuples(CORES, CORES) | st.just((np.nan, 1.0)) | st.just((np.nan, np.nan))
STEPS = st.lists(
    st.builds(
        Step,
        after=st.sampled_from([1, 1, 1, 1, 2, 5, 20]),
        pods=st.lists(
            st.builds(
                Pod,
                uid=st.sampled_from(UIDS),
                usage=USAGE,
                pod_class=st.sampled_from([*PROD, "batch"]),
            ),
            max_size=4,
            unique_by=lambda pod: pod.uid,
        ).map(tuple),
        system=CORES,
    ),
    min_size=8,
    max_size=20,
)


def windows_of(steps: list[Step], node: str = NODE) -> list[NodeWindow]:
    ends = np.cumsum([step.after for step in steps]).tolist()
    windows = []
    for end, step in zip(ends, steps, strict=True):
        used = np.sum([pod.usage for pod in step.pods], axis=0) if step.pods else np.zeros(2)
        windows.append(window(end, step.pods, node=node, usage=tuple(used + step.system)))
    return windows


def judged(bank: Bank, windows: list[NodeWindow]) -> list[EndedPeak]:
    """The peaks that are over after each of these windows of one node."""
    found = []
    for each in windows:
        bank.apply([each])
        node = [(bank, each.node)]
        found += [peak for _, peak in banks.ended_peaks(node, banks.peaks(node))]
    return found


def reference(steps: list[Step], windows: list[NodeWindow]) -> dict[int, tuple[FloatArray, Any]]:
    """Of each judged peak, by the end of the window after which it was predicted: the highest usage
    in millicores and bytes, and for how many milliseconds usage was known."""
    ran = {
        each.end_ms: {pod.uid for pod in step.pods}
        for step, each in zip(steps, windows, strict=True)
    }
    interval_ms, horizon_ms = 360_000, HORIZON * LENGTH_MS
    made, last = [], -1
    for each in windows:
        if each.end_ms // interval_ms > last:
            made.append(each.end_ms)
            last = each.end_ms // interval_ms
    results = {}
    for made_ms in made:
        if windows[-1].end_ms < made_ms + horizon_ms:
            continue
        highest, known_ms = np.zeros(2), np.zeros(2)
        for step, each in zip(steps, windows, strict=True):
            if not made_ms < each.end_ms <= made_ms + horizon_ms:
                continue
            cohort = [pod for pod in step.pods if pod.uid in ran[made_ms]]
            usage = [pod.usage for pod in cohort if pod.pod_class in PROD]
            total = step.system + (np.sum(usage, axis=0) if usage else np.zeros(2))
            known = ~np.isnan([pod.usage for pod in step.pods]).reshape(-1, 2).any(axis=0)
            highest = np.where(known, np.maximum(highest, total * [1000.0, 1.0]), highest)
            known_ms += known * LENGTH_MS
        results[made_ms] = highest, known_ms / horizon_ms
    return results


@settings(max_examples=40)
@given(STEPS)
def test_highest_usage_is_that_of_the_pods_that_ran_and_the_system(steps: list[Step]) -> None:
    windows = windows_of(steps)
    bank = warm_bank(**CONFIG, expiration_seconds=1e9)
    found = judged(bank, windows)
    expected = reference(steps, windows)
    assert [peak.made_ms for peak in found] == sorted(expected)
    for peak in found:
        highest, known = expected[peak.made_ms]
        np.testing.assert_allclose(peak.highest, highest, rtol=1e-12, atol=1e-9)
        assert peak.known.tolist() == known.tolist()


@settings(max_examples=40)
@given(STEPS, STEPS, st.integers(0, 20))
def test_bits_depend_on_the_windows_of_the_node_alone(
    steps: list[Step], others: list[Step], cut: int
) -> None:
    """Neither on other nodes in the same call, nor on a restart from the state."""
    windows = windows_of(steps)
    alone = judged(warm_bank(**CONFIG), windows)
    bank = warm_bank(**CONFIG)
    found = judged(bank, windows[:cut])
    if cut and windows[:cut]:
        restored = warm_bank(**CONFIG)
        restored.restore(NODE, bank.encode_state(NODE))
        bank = restored
    beside = windows_of(others, "node-b")
    for i, each in enumerate(windows[cut:]):
        both = [each, beside[i]] if i < len(beside) else [each]
        bank.apply(both)
        nodes = [(bank, item.node) for item in reversed(both)]
        ended = banks.ended_peaks(nodes, banks.peaks(nodes))
        found += [peak for k, peak in ended if nodes[k][1] == NODE]
    assert [str(peak) for peak in found] == [str(peak) for peak in alone]


def test_prediction_is_what_is_not_given_away() -> None:
    """By each predictor: requests of Prod without what is reclaimable."""
    bank = warm_bank(**CONFIG)
    windows = windows_of([Step(1, (Pod("a", (0.25, 1.0)),), 0.0)] * 10)
    bank.apply([windows[0]])
    node = [(bank, NODE)]
    peaks = banks.peaks(node)
    banks.ended_peaks(node, peaks)
    amounts = {name: found.reclaimable.amount for name, found in peaks[0].predictors.items()}
    (peak,) = judged(bank, windows[1 : HORIZON + 1])
    assert peak.requests.tolist() == [1000.0, float(1 << 30)]
    for name, amount in amounts.items():
        assert peak.peaks[name].tolist() == (peak.requests - amount).tolist()
    assert amounts["percentile"][0] > 0.0


def test_peaks_of_a_machine_that_was_replaced_are_unknown() -> None:
    """They end with their horizon: nothing that the next machine uses counts."""
    bank = warm_bank(**CONFIG)
    windows = windows_of([Step(1, (), 1.0)] * 20)
    for i in range(4, 20):
        windows[i] = replace(windows[i], machine_id="machine-2", start_ms=windows[i].start_ms)
    silent = [replace(w, appended_ms=w.end_ms + 10 * LENGTH_MS) for w in windows[4:]]
    found = judged(bank, [*windows[:4], *silent])
    replaced = [peak for peak in found if peak.made_ms <= windows[3].end_ms]
    later = [peak for peak in found if peak.made_ms > windows[3].end_ms]
    assert [peak.known.tolist() for peak in replaced] == [[0.0, 0.0]] * 2
    assert [peak.known.tolist() for peak in later] == [[1.0, 1.0]] * len(later) != []


def test_peaks_of_a_departed_node_are_taken_out_with_what_is_known() -> None:
    bank = warm_bank(**CONFIG)
    windows = windows_of([Step(1, (Pod("a", (0.25, 1.0)),), 0.5)] * 4)
    assert not judged(bank, windows)
    early, late = bank.unfinished_peaks(NODE)
    assert [early.made_ms, late.made_ms] == [windows[0].end_ms, windows[1].end_ms]
    assert (early.known[0], late.known[0]) == (3 / HORIZON, 2 / HORIZON)
    assert early.highest[0] == 750.0
    assert not bank.unfinished_peaks(NODE)
    assert not bank.unfinished_peaks("node-that-never-was")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (("percentile",), ("percentile", "nsigma-v1")),
        (("percentile", "nsigma-v1"), ("percentile",)),
    ],
)
def test_followed_peaks_outlast_a_change_of_predictors(
    before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    """A peak has the predictors that made it and still run; usage is followed without a gap."""
    windows = windows_of([Step(1, (Pod("a", (0.25, 1.0)),), 0.0)] * (HORIZON + 4))
    old = Bank(config_with(**CONFIG, predictors=before))
    assert not judged(old, windows[:3])
    new = Bank(config_with(**CONFIG, predictors=after))
    new.restore(NODE, old.encode_state(NODE))
    first, second = judged(new, windows[3:])
    unchanged = judged(Bank(config_with(**CONFIG, predictors=before)), windows)[0]
    assert first.made_ms == windows[0].end_ms
    assert [*first.peaks] == ["percentile"]
    assert first.peaks["percentile"].tolist() == unchanged.peaks["percentile"].tolist()
    assert (first.highest.tolist(), first.known.tolist()) == ([250.0, 1.0], [1.0, 1.0])
    assert (second.made_ms, [*second.peaks]) == (windows[1].end_ms, ["percentile"])


def test_followed_peaks_of_another_schedule_are_dropped_and_the_models_stay() -> None:
    bank = Bank(config_with(**CONFIG))
    windows = windows_of([Step(1, (Pod("a", (0.25, 1.0)),), 0.0)] * (HORIZON + 4))
    assert not judged(bank, windows[:3])
    other = Bank(config_with(**CONFIG | {"accuracy_interval_seconds": 240.0}))
    other.restore(NODE, bank.encode_state(NODE))
    assert other.peaks([NODE])[0].samples.max() == 3
    assert judged(other, windows[3:])[0].made_ms == windows[3].end_ms


@pytest.mark.parametrize(
    ("interval", "horizon", "schedule", "pending"),
    [
        (3600.0, 86_400.0, Schedule(3_600_000, 86_400_000), 25),
        (3600.0, 300.0, Schedule(300_000, 300_000), 2),
        (0.001, 86_400.0, Schedule(300_000, 86_400_000), MOST_PENDING + 1),
        (7200.0, 10_000.0, Schedule(7_200_000, 10_000_000), 3),
    ],
)
def test_followed_peaks_are_bounded(
    interval: float, horizon: float, schedule: Schedule, pending: int
) -> None:
    assert Schedule.of(interval, horizon) == schedule
    assert schedule.pending == pending


def test_interval_is_no_part_of_the_fingerprint() -> None:
    assert (
        Bank(ModelConfig()).fingerprint
        == Bank(ModelConfig(accuracy_interval_seconds=60.0)).fingerprint
    )
