"""What the peer system's predictor is known to do wrong, and that ours does it right.

A test for each weakness, named after it; the docstring says what upstream does.
"""

from typing import Any

import numpy as np
import pytest

from pipeline.processors.model.bank import Bank
from pipeline.processors.model.histogram import CPU_LAYOUT, MEMORY_LAYOUT
from pipeline.processors.model.model_config import ENTITIES
from pipeline.processors.model.node_peaks import ProdReclaimable
from tests.processors.windows import GIB, Pod, peaks_of, warm_bank, window, with_margin

NAN = np.nan
NODE, SYSTEM, PROD, NONE = (ENTITIES.index(name) for name in ("node", "system", "prod", "none"))


def _prod(bank: Bank) -> ProdReclaimable:
    return peaks_of(bank).reclaimable


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
    usual, own = result["usual"], result["own"]
    assert (usual.pod_raw.tolist(), own.pod_raw.tolist()) == ([high, high], [high, low])
    assert usual.raw[[PROD, batch]].tolist() == [high, high]
    assert own.raw[[PROD, batch]].tolist() == [high, low]


def test_cold_pods_count_their_requests_in_the_class_view() -> None:
    """Upstream counts a cold pod in the class view's requests and, of its peak, only what it used
    in its first minutes: the class view offers what the pod may still take."""
    bank = warm_bank(cold_start_seconds=100.0)
    warm = Pod("a", (0.5, GIB), requests=(2000.0, 4 * GIB))
    cold = Pod("b", (0.1, GIB), requests=(3000.0, 4 * GIB), age=50.0)
    bank.apply([window(1, [warm, cold], usage=(0.6, 2 * GIB))])
    prod = _prod(bank)
    surplus = 3000.0 - with_margin(0.1)
    peak = with_margin(0.6) + surplus
    assert (prod.surplus[0], prod.classes_peak[0]) == (surplus, peak)
    assert prod.classes_amount[0] == prod.amount[0] == 5000.0 - peak


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
    assert (prod.requests[0], prod.unpredicted[0], prod.surplus[0]) == (3000.0, 1000.0, 1000.0)
    peak = with_margin(0.5)
    assert (prod.pods_peak[0], prod.pods_amount[0]) == (peak + 1000.0, 2000.0 - peak)
    assert prod.classes_amount[0] == 2000.0 - (prod.classes_peak[0] - 1000.0)


def test_failed_pod_metrics_train_the_class_with_the_rest() -> None:
    """Upstream leaves a pod whose query fails out of its class: the class seems to use less, and
    what the pod still uses is offered as free. Its report lacks pods whose usage was not read in
    the last minute; ours keeps what it learned, so that a peak does not drop."""
    bank = warm_bank()
    busy = Pod("a", (4.0, 4 * GIB), requests=(8000.0, 8 * GIB))
    bank.apply([window(i, [busy]) for i in range(1, 4)])
    before = peaks_of(bank)
    unread = Pod("a", (NAN, NAN), requests=(8000.0, 8 * GIB))
    bank.apply([window(i, [unread]) for i in range(4, 60)])
    after = peaks_of(bank)
    for name, answer in after.predictors.items():
        assert answer.raw[PROD].tolist() == before.predictors[name].raw[PROD].tolist()
        prod = [peaks.predictors[name].reclaimable for peaks in (before, after)]
        assert prod[1].amount.tolist() == prod[0].amount.tolist()
        assert prod[1].pods_peak.tolist() == prod[0].pods_peak.tolist()


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
    assert _prod(bank).pods_amount[0] == 3000.0 - with_margin(2.0)
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


def test_a_deleting_pod_leaves_the_peak_while_it_still_runs() -> None:
    """It counts its own peak until it has ended, gives nothing, and asks for nothing any more."""
    bank = warm_bank()
    states: tuple[dict[str, Any], ...] = ({}, {"active": False}, {"ended": True})
    result = []
    for i, state in enumerate(states, 1):
        pods = [Pod("a", (0.5, GIB)), Pod("b", (0.25, GIB), requests=(3000.0, GIB), **state)]
        bank.apply([window(i, pods, usage=(0.75, 2 * GIB))])
        prod = _prod(bank)
        result.append((prod.pods_peak[0], prod.pods_amount[0], prod.requests[0]))
    one, other = with_margin(0.5), with_margin(0.25)
    assert result == [
        (one + other, 4000.0 - one - other, 4000.0),
        (one + other, 1000.0 - one, 1000.0),
        (one, 1000.0 - one, 1000.0),
    ]


def test_a_deleting_pod_on_a_full_node_leaves_no_room() -> None:
    bank = warm_bank()
    pods = [Pod("a", (0.5, GIB), requests=(4000.0, GIB)), Pod("b", (0.5, GIB), active=False)]
    bank.apply([window(1, pods, usage=(1.0, 2 * GIB), allocatable=(1500.0, 8 * GIB))])
    assert _prod(bank).pods_amount[0] == 1500.0 - 2 * with_margin(0.5)


def test_the_peak_of_prod_lacks_the_system_where_the_pods_dominate() -> None:
    """Upstream documents `prodPeakMetric` as containing system usage, and takes it from the pod
    view where that is larger, which has none."""
    bank = warm_bank()
    # Their peaks do not coincide, so the class is less than the sum of its pods.
    for i in range(1, 21):
        pods = [Pod("a", (4.0 * (i % 2), GIB)), Pod("b", (4.0 * (1 - i % 2), GIB))]
        bank.apply([window(i, pods, usage=(5.0, 3 * GIB))])
    prod = _prod(bank)
    both, system = 2 * with_margin(4.0), with_margin(1.0)
    assert (prod.pods_peak[0], prod.system[0], prod.peak[0]) == (both, system, both + system)
    assert both > prod.classes_peak[0] > both / 2
