"""What the peer system's predictor is known to do wrong, and that ours does it right.

A test for each weakness, named after it; the docstring says what upstream does.
"""

import dataclasses
from typing import Any

import numpy as np
import pytest

from pipeline.processors.model.bank import Bank
from pipeline.processors.model.histogram import CPU_LAYOUT, MEMORY_LAYOUT
from pipeline.processors.model.model_config import ENTITIES
from pipeline.processors.model.node_peaks import NodePeaks, ProdReclaimable
from pipeline.topics.resource_amounts import Resources
from tests.processors.joined import (
    NODE_ROW,
    Row,
    header,
    joined,
    known_pod,
    pod_row,
    training,
    view_of,
)
from tests.processors.windows import GIB, Pod, peaks_of, warm_bank, window

NAN = np.nan
NODE, SYSTEM, PROD, NONE = (ENTITIES.index(name) for name in ("node", "system", "prod", "none"))


def _prod(bank: Bank) -> ProdReclaimable:
    return peaks_of(bank).reclaimable


def _milli(cores: float) -> float:
    """What a bucket's end stands for, in millicores with the margin of ten percent."""
    return float(np.trunc(1.1 * _cut(cores)))


def _cut(cores: float) -> float:
    return (
        0.0 if cores == 0.0 else float(np.trunc(CPU_LAYOUT.ends[CPU_LAYOUT.digitize(cores)] * 1000))
    )


def test_percentiles_are_fixed() -> None:
    """Upstream has p95 of cpu and p98 of memory for all; ours are settings, for a class too."""
    usage = [(0.5, GIB)] * 7 + [(2.0, 2 * GIB)] * 3
    result = {}
    for name, classes in {"usual": {}, "own": {"batch": {"cpu": 0.5, "memory": 0.5}}}.items():
        bank = warm_bank(options={"percentile": {"cpu": 0.9, "classes": classes}})
        for i, used in enumerate(usage):
            bank.apply([window(i, [Pod("a", used), Pod("b", used, "batch")])])
        result[name] = peaks_of(bank).predictors["percentile"]
    cpu = {cores: CPU_LAYOUT.ends[CPU_LAYOUT.digitize(cores)] for cores in (0.5, 2.0)}
    memory = {size: MEMORY_LAYOUT.ends[MEMORY_LAYOUT.digitize(size)] for size in (GIB, 2 * GIB)}
    high, low = [cpu[2.0], memory[2 * GIB]], [cpu[0.5], memory[GIB]]
    batch = ENTITIES.index("batch")
    assert result["usual"].pod_raw.tolist() == [high, high]
    assert result["own"].pod_raw.tolist() == [high, low]
    assert result["usual"].raw[batch].tolist() == high
    assert result["own"].raw[batch].tolist() == low
    assert result["own"].raw[PROD].tolist() == high


def test_cold_pods_count_their_requests_in_the_class_view() -> None:
    """Upstream counts a cold pod in the class view's requests and, of its peak, only what it used
    in its first minutes: the class view offers what the pod may still take."""
    bank = warm_bank(cold_start_seconds=100.0)
    warm = Pod("a", (0.5, GIB), requests=(2000.0, 4 * GIB))
    cold = Pod("b", (0.1, GIB), requests=(3000.0, 4 * GIB), age=50.0)
    bank.apply([window(1, [warm, cold], usage=(0.6, 2 * GIB))])
    prod = _prod(bank)
    surplus = 3000.0 - _milli(0.1)
    assert prod.surplus[0] == surplus
    assert prod.classes_peak[0] == np.trunc(1.1 * _cut(0.6)) + surplus
    assert prod.classes_amount[0] == 5000.0 - prod.classes_peak[0]
    assert prod.classes_peak[0] >= 3000.0 + _milli(0.5) - 50.0
    assert prod.amount[0] == min(prod.pods_amount[0], prod.classes_amount[0])


@pytest.mark.parametrize("resource", [0, 1])
def test_idle_classes_cost_a_bucket_each(resource: int) -> None:
    """Upstream's grid of 5 percent makes 25 m and 5 MiB of nothing, for each idle class and
    before the margin."""
    bank = warm_bank()
    bank.apply([window(i, [Pod("a", (1.0, GIB))], usage=(1.0, GIB)) for i in range(1, 9)])
    peaks = peaks_of(bank)
    idle = [i for i, name in enumerate(ENTITIES) if name not in ("node", "prod", "unknown")]
    assert peaks.predictors["percentile"].raw[idle, resource].tolist() == [0.0] * len(idle)
    of_pod = peaks.reclaimable.pods_peak[resource]
    assert peaks.reclaimable.classes_peak[resource] == of_pod > 0.0


def test_an_idle_class_has_a_peak_again_with_its_first_sample() -> None:
    bank = warm_bank(options={"percentile": {"cpu": 0.5, "memory": 0.5}})
    bank.apply([window(i, usage=(0.0, 0.0)) for i in range(1, 4)])
    assert peaks_of(bank).predictors["percentile"].raw[NODE].tolist() == [0.0, 0.0]
    bank.apply([window(4, usage=(1e-9, 1.0))])
    assert peaks_of(bank).predictors["percentile"].raw[NODE].tolist() == [0.025, 5.0 * (1 << 20)]


def test_a_refused_pod_disappears_from_the_class_requests() -> None:
    """Upstream takes a pod without a model out of the class view's requests and leaves its usage
    in the peak: Prod seems to use what nobody asked for. Ours keeps its request on both sides."""
    bank = warm_bank()
    known, refused = Pod("a", (0.5, GIB), requests=(2000.0, GIB)), Pod("b", (NAN, NAN))
    bank.apply([window(1, [known], usage=(0.5, GIB)), window(2, [known, refused])])
    prod = _prod(bank)
    assert prod.requests[0] == 3000.0
    assert prod.unpredicted[0] == prod.surplus[0] == 1000.0
    assert prod.pods_peak[0] == _milli(0.5) + 1000.0
    assert prod.classes_amount[0] == 2000.0 - (prod.classes_peak[0] - 1000.0)
    assert prod.pods_amount[0] == 2000.0 - _milli(0.5)


def test_failed_pod_metrics_train_the_class_with_the_rest() -> None:
    """Upstream leaves a pod whose query fails out of its class: the class seems to use less, and
    what the pod still uses is offered as free."""
    bank = warm_bank()
    busy = Pod("a", (4.0, 4 * GIB), requests=(8000.0, 8 * GIB))
    bank.apply([window(i, [busy]) for i in range(1, 4)])
    before = peaks_of(bank)
    unread = Pod("a", (NAN, NAN), requests=(8000.0, 8 * GIB))
    bank.apply([window(i, [unread]) for i in range(4, 60)])
    after = peaks_of(bank)
    for name, answer in after.predictors.items():
        assert answer.raw[PROD].tolist() == before.predictors[name].raw[PROD].tolist()
        amounts = [peaks.predictors[name].reclaimable.amount for peaks in (before, after)]
        assert amounts[1].tolist() == amounts[0].tolist()


def test_a_pod_restarted_in_place_keeps_old_history() -> None:
    """That is right, if it is said: a container that restarts runs the same spec under the same
    UID, so what it did before is what it may do again, and it fades with the half-life. What
    starts empty is a new UID, whatever its name; a changed request counts from its window on."""
    bank = warm_bank(cold_start_samples=2)
    for i in range(1, 30):
        bank.apply([window(i, [Pod("a", (2.0, GIB), requests=(4000.0, GIB))])])
    # The restart: seconds without usage, and then less than before.
    bank.apply([window(30, [Pod("a", (0.0, 0.0), requests=(4000.0, GIB))])])
    bank.apply([window(31, [Pod("a", (0.1, GIB), requests=(4000.0, GIB))])])
    peaks = peaks_of(bank)
    assert peaks.predictors["percentile"].pod_raw[0, 0] > 2.0
    assert peaks.pod_samples.tolist() == [[31, 31]]
    # Resized: the model stays, what was asked for is that of the window.
    bank.apply([window(32, [Pod("a", (0.1, GIB), requests=(3000.0, GIB))])])
    assert _prod(bank).pods_amount[0] == 3000.0 - _milli(2.0)
    # Replaced: nothing is inherited.
    bank.apply([window(33, [Pod("a2", (0.1, GIB), requests=(4000.0, GIB))])])
    peaks = peaks_of(bank)
    assert (peaks.pod_samples.tolist(), peaks.pod_cold.tolist()) == ([[1, 1]], [True])
    assert peaks.reclaimable.pods_peak[0] == 4000.0


def test_a_failed_node_query_trains_the_system_with_zero() -> None:
    """What remains of the unknown is unknown, and trains nothing."""
    bank = warm_bank()
    bank.apply([window(1, [Pod("a", (1.0, GIB))], usage=(NAN, 9 * GIB))])
    peaks = peaks_of(bank)
    assert peaks.samples[[NODE, SYSTEM, PROD]].tolist() == [[0, 1], [0, 1], [1, 1]]
    assert np.isnan(peaks.predictors["percentile"].raw[SYSTEM]).tolist() == [True, False]


def test_a_pod_with_failed_metrics_raises_the_system_model() -> None:
    """Upstream takes from the node what the other pods used, and calls the rest the system's."""
    bank, whole = warm_bank(), warm_bank()
    for i in range(1, 20):
        used = (4.0, NAN) if i % 2 else (4.0, GIB)
        bank.apply([window(i, [Pod("a", used), Pod("b", (1.0, GIB))], usage=(5.5, 4 * GIB))])
        whole.apply([window(i, [Pod("a", (4.0, GIB)), Pod("b", (1.0, GIB))], usage=(5.5, 4 * GIB))])
    peaks, expected = peaks_of(bank), peaks_of(whole)
    assert peaks.samples[SYSTEM].tolist() == [19, 9]
    result = peaks.predictors["percentile"].raw[SYSTEM]
    assert result.tolist() == expected.predictors["percentile"].raw[SYSTEM].tolist()


def test_a_pod_with_failed_metrics_leaves_the_report() -> None:
    """Upstream predicts only for pods whose usage was read in the last minute; ours keeps what it
    learned, so that a peak does not drop because a reading failed."""
    bank = warm_bank()
    bank.apply([window(i, [Pod("a", (2.0, GIB))]) for i in range(1, 9)])
    before = _prod(bank).pods_peak
    bank.apply([window(9, [Pod("a", (NAN, NAN))])])
    assert _prod(bank).pods_peak.tolist() == before.tolist()


def test_a_deleting_pod_leaves_the_peak_while_it_still_runs() -> None:
    """It counts its own peak until it has ended, gives nothing, and asks for nothing any more."""
    bank = warm_bank()
    states: dict[str, dict[str, Any]] = {
        "before": {}, "deleting": {"active": False}, "ended": {"ended": True},
    }  # fmt: skip
    pods = {
        when: [Pod("a", (0.5, GIB)), Pod("b", (0.25, GIB), requests=(3000.0, GIB), **state)]
        for when, state in states.items()
    }  # fmt: skip
    result = {}
    for i, (when, listed) in enumerate(pods.items(), 1):
        bank.apply([window(i, listed, usage=(0.75, 2 * GIB))])
        result[when] = _prod(bank)
    both = _milli(0.5) + _milli(0.25)
    assert [prod.pods_peak[0] for prod in result.values()] == [both, both, _milli(0.5)]
    left = 1000.0 - _milli(0.5)
    assert [prod.pods_amount[0] for prod in result.values()] == [
        left + 3000.0 - _milli(0.25), left, left,
    ]  # fmt: skip
    assert [prod.requests[0] for prod in result.values()] == [4000.0, 1000.0, 1000.0]


def test_a_deleting_pod_on_a_full_node_leaves_no_room() -> None:
    bank = warm_bank()
    pods = [Pod("a", (0.5, GIB), requests=(4000.0, GIB)), Pod("b", (0.5, GIB), active=False)]
    bank.apply([window(1, pods, usage=(1.0, 2 * GIB), allocatable=(1500.0, 8 * GIB))])
    assert _prod(bank).pods_amount[0] == 1500.0 - 2 * _milli(0.5)


@pytest.mark.parametrize(
    ("phase", "deleted_at", "state"),
    [
        ("Running", None, (True, False)),
        ("Running", "2023-11-14T22:13:00Z", (False, False)),
        ("Succeeded", None, (False, True)),
        ("Failed", "2023-11-14T22:13:00Z", (False, True)),
    ],
)
def test_phase_and_deletion_decide_whether_a_pod_is_active(
    phase: str, deleted_at: str | None, state: tuple[bool, bool]
) -> None:
    pod = known_pod("a", pod_class="prod", phase=phase, deleted_at=deleted_at)
    pods = training(joined(NODE_ROW, pod_row("a"), view=view_of(pod))).heads[0].pods
    assert (pods.active.tolist(), pods.ended.tolist()) == ([state[0]], [state[1]])


def test_the_peak_of_prod_lacks_the_system_where_the_pods_dominate() -> None:
    """Upstream documents `prodPeakMetric` as containing system usage, and takes it from the pod
    view where that is larger, which has none."""
    bank = warm_bank()
    # Their peaks do not coincide, so the class is less than the sum of its pods.
    for i in range(1, 21):
        pods = [Pod("a", (4.0 * (i % 2), GIB)), Pod("b", (4.0 * (1 - i % 2), GIB))]
        bank.apply([window(i, pods, usage=(5.0, 3 * GIB))])
    prod = _prod(bank)
    assert prod.pods_peak[0] == 2 * _milli(4.0)
    assert prod.system[0] == _milli(1.0)
    assert prod.pods_peak[0] > prod.classes_peak[0] > prod.pods_peak[0] / 2
    assert prod.peak[0] == 2 * _milli(4.0) + _milli(1.0)


@pytest.mark.parametrize(
    ("policy", "size"),
    [
        ("usageWithoutPageCache", GIB),
        ("usageWithHotPageCache", 2 * GIB),
        ("usageWithPageCache", 4 * GIB),
    ],
)
def test_prediction_ignores_the_memory_collect_policy(policy: str, size: float) -> None:
    """Upstream always learns memory without page cache, whatever is reported."""
    sizes = {
        "memory_bytes_p90": GIB,
        "memory_with_hot_page_cache_bytes_p90": 2 * GIB,
        "memory_with_page_cache_bytes_p90": 4 * GIB,
    }
    bank = warm_bank()
    row = pod_row("a", cpu_cores_p90=0.5, **sizes)
    bank.apply(training(joined(NODE_ROW | sizes, row), memory_policy=policy))
    (peaks,) = bank.peaks(["node-1"])
    means = peaks.predictors["nsigma-v1"]
    assert (means.raw[NODE, 1], means.pod_raw[0, 1]) == (size, size)


def test_metric_and_pod_are_matched_by_name() -> None:
    """Upstream gives a pod that was recreated under the same name the usage of its predecessor;
    ours knows pods by UID alone."""
    asked = Resources(cpu_millicores=2000, memory_bytes=1 << 30)
    same: dict[str, Any] = {
        "name": "db-0", "pod_class": "prod", "requests": asked,
        "created_at": "2023-11-01T00:00:00Z",
    }  # fmt: skip
    old, new = known_pod("uid-old", **same), known_pod("uid-new", **same)
    bank = warm_bank(cold_start_samples=3)

    def see(end: int, *uids: str, cpu: float) -> NodePeaks:
        rows: list[Row] = [
            pod_row(uid, cpu_cores_p90=cpu, memory_bytes_p90=GIB / 2) for uid in uids
        ]
        seen = joined(NODE_ROW, *rows, view=view_of(old, new), of=header(end=end))
        taken = training(seen)
        # With the strategy of the bank.
        heads = [head._replace(strategy=None) for head in taken.heads]
        bank.apply(dataclasses.replace(taken, heads=heads))
        return bank.peaks(["node-1"])[0]

    for end in range(5):
        assert see(end, "uid-old", cpu=1.5).pod_uids == ("uid-old",)
    both = see(5, "uid-old", "uid-new", cpu=0.25)
    assert both.pod_uids == ("uid-new", "uid-old")
    assert (both.pod_samples[:, 0].tolist(), both.pod_cold.tolist()) == ([1, 6], [True, False])
    alone = see(6, "uid-new", cpu=0.25)
    assert alone.predictors["percentile"].pod_raw[0, 0] < 0.3
    assert alone.reclaimable.pods_peak[0] == 2000.0
