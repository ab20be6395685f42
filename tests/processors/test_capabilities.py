"""Capabilities of the prediction engine."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from pipeline.processors.model.bank import Bank
from pipeline.processors.model.histogram import CPU_LAYOUT, MEMORY_LAYOUT, Layout
from pipeline.processors.model.model_config import ENTITIES, ModelConfig, Profile
from pipeline.processors.model.result_records import encode_prediction
from pipeline.processors.model.state_codec import decode
from pipeline.topics.codec import decode_json
from pipeline.topics.nodes import NodeRecord, NodeStrategy
from pipeline.topics.predictions import PredictionRecord
from pipeline.topics.resource_amounts import Resources
from tests.processors.joined import (
    Row,
    header,
    joined,
    known_pod,
    logged,
    pod_row,
    training,
    view_of,
)
from tests.processors.reference import SlowHistogram
from tests.processors.windows import GIB, LENGTH_MS, START_MS, Pod, peaks_of, warm_bank, window

HOUR_MS = 3_600_000
A_POD = Pod("a", (0.5, GIB))


# -- A peak for each node, from its log


def _usage(i: int) -> dict[str, tuple[float, float]]:
    """What node and pods used in the i-th window; `system` is what they leave."""
    a = 0.3 + (i * 7 % 11) / 8, GIB * (1 + i % 5 / 4)
    b = 0.1 + (i * 5 % 13) / 16, GIB * (0.5 + i % 3 / 8)
    system = 0.2 + i % 4 / 32, GIB * (1 + i % 2 / 16)
    node = a[0] + b[0] + system[0], a[1] + b[1] + system[1]
    return {"node": node, "system": system, "prod": (a[0] + b[0], a[1] + b[1]), "a": a, "b": b}


def _record(windows: int) -> PredictionRecord:
    """The prediction after so many windows of 30 s, each written to the log and read again."""
    asked = Resources(cpu_millicores=4000, memory_bytes=8 << 30)
    view = view_of(
        *(known_pod(uid, pod_class="prod", requests=asked, created_at="2023-11-01T00:00:00Z")
          for uid in "ab"),
        record=NodeRecord(
            node="node-1", allocatable=Resources(cpu_millicores=16_000, memory_bytes=32 << 30),
            strategy=NodeStrategy(safety_margin_percent=10.0, cold_start_samples=1),
        ),
    )  # fmt: skip
    bank = Bank()
    for i in range(windows):
        used = _usage(i)

        def row(kind: str, uid: str, which: str, used: Any = used) -> Row:
            cpu, memory = used[which]
            numbers = {"cpu_cores_p90": cpu, "memory_bytes_p90": memory}
            return {**pod_row(uid), "kind": kind, **numbers}

        seen = logged(
            joined(
                row("node", "", "node"), row("tier", "system", "system"),
                row("pod", "a", "a"), row("pod", "b", "b"), view=view, of=header(end=i),
            )
        )  # fmt: skip
        bank.apply(training(seen))
    (peaks,) = bank.peaks(["node-1"])
    position = {"generation": 0, "offset": windows - 1, "epoch": 1}
    return decode_json(PredictionRecord, encode_prediction(seen, peaks, position))


def _recomputed(windows: int, which: str, r: int) -> float:
    """The quantile of one entity from all its windows, weighted and added as fractions."""
    layout: Layout = (CPU_LAYOUT, MEMORY_LAYOUT)[r]
    half_life = (43_200.0, 86_400.0)[r]
    slow = SlowHistogram(layout.starts.tolist())
    for i in range(windows):
        slow.add(_usage(i)[which][r], Fraction(2.0 ** (30.0 * (i - windows) / half_life)))
    result = slow.quantile(Fraction((95, 98)[r], 100))
    assert result is not None
    return result


@pytest.mark.parametrize("windows", [1, 60])
def test_a_node_has_a_peak_that_can_be_recomputed_from_its_log(windows: int) -> None:
    """The published record against the same mathematics done slowly, offline."""
    record = _record(windows)
    for r, name in enumerate(("cpu_cores", "memory_bytes")):
        unit = (1000, 1)[r]
        exact = {which: _recomputed(windows, which, r) for which in _usage(0)}
        for entity, which in (
            (record.node_peaks, "node"), (record.system, "system"), (record.classes["prod"], "prod")
        ):  # fmt: skip
            assert getattr(entity.raw["percentile"], name) == exact[which]
            assert getattr(entity.peaks["percentile"], name) == exact[which] * 1.1
        whole = {which: math.trunc(value * unit) for which, value in exact.items()}
        pods = [math.trunc(1.1 * whole[uid]) for uid in "ab"]
        request, room = (4000, 8 << 30)[r], (16_000, 32 << 30)[r]
        by_class = math.trunc(1.1 * (whole["system"] + whole["prod"]))
        prod = record.reclaimable["percentile"]
        assert round(getattr(prod.peak, name) * unit) == max(
            sum(pods) + math.trunc(1.1 * whole["system"]), by_class
        )
        assert round(getattr(prod.amount, name) * unit) == min(
            room - sum(pods), 2 * request - sum(pods), room - by_class, 2 * request - by_class
        )


# -- Which models there are


def test_from_an_empty_table_come_the_models_of_node_system_and_classes() -> None:
    """Exactly these, and none of a class `unknown` that no pod is of."""
    bank = Bank()
    bank.apply([window(1, [A_POD])])
    begun: Any = peaks_of(bank).samples.all(axis=1)
    assert [name for name, some in zip(ENTITIES, begun, strict=True) if some] == [
        "node", "system", "prod", "mid", "batch", "free", "none",
    ]  # fmt: skip
    assert len(bank.learner.models) == len(ENTITIES) + 1


def test_a_pod_has_a_model_from_its_first_window_until_half_an_hour_after_its_last() -> None:
    """Created on sight, dropped by the node's own time, gone from the checkpoint, too."""
    bank = Bank()
    last = 3
    bank.apply([window(i, [A_POD]) for i in range(1, last + 1)])
    assert peaks_of(bank).pod_samples.tolist() == [[3, 3]]
    remaining = last + 1_800_000 // LENGTH_MS
    for i in range(last + 1, remaining + 1):
        (outcome,) = bank.apply([window(i)])
        assert outcome.expired == ()
    assert decode(bank.encode_state("node-a")).uids == ("a",)
    (outcome,) = bank.apply([window(remaining + 1)])
    assert outcome.expired == ("a",)
    assert decode(bank.encode_state("node-a")).uids == ()
    assert len(bank.learner.models) == len(ENTITIES)
    bank.forget("node-a")
    assert len(bank.learner.models) == 0


# -- What a window adds


def test_a_sample_counts_half_after_its_half_life_and_every_window_once() -> None:
    """1 core, then 4 cores one half-life later: weights 1 and 2, whatever comes late, twice
    or between."""
    config = ModelConfig(
        profile=Profile(half_life_seconds=(LENGTH_MS / 1000, 2 * LENGTH_MS / 1000))
    )
    bank = Bank(config)
    windows = [window(1, usage=(1.0, GIB)), window(2, usage=(4.0, 4 * GIB))]
    again = [windows[0], windows[1], window(1, usage=(50.0, GIB), epoch=2)]
    outcomes = bank.apply([*windows, *again])
    assert [o.status for o in outcomes] == ["applied", "applied", "late", "duplicate", "late"]
    peaks = peaks_of(bank)
    mean, stdev = (peaks.predictors["nsigma-v1"].terms[name][0] for name in ("mean", "stdev"))
    assert mean[0] == pytest.approx((1 * 1 + 2 * 4) / 3, rel=1e-15)
    assert stdev[0] == pytest.approx(
        math.sqrt((1 * (1 - 3) ** 2 + 2 * (4 - 3) ** 2) / 3), rel=1e-15
    )
    # The half-life of memory is twice as long: weights 1 and 2**0.5.
    root = math.sqrt(2)
    assert mean[1] == pytest.approx((1 + 4 * root) / (1 + root) * GIB, rel=1e-15)
    assert peaks.samples[0].tolist() == [2, 2]


# -- State


def test_state_is_restored_bit_by_bit_and_deleted_pods_are_dropped() -> None:
    """A pod of the checkpoint that is not on the node any more is dropped when it would
    have been without the restart; times are those of its samples, not of the checkpoint."""
    whole, before, after = Bank(), Bank(), Bank()
    pods = [A_POD, Pod("b", (1.0, GIB))]
    first = [window(i, pods) for i in range(1, 5)]
    rest = [window(i, [A_POD]) for i in range(5, 25)]
    before.apply(first)
    after.restore("node-a", before.encode_state("node-a"))
    undisturbed = whole.apply([*first, *rest])[len(first) :]
    assert after.apply(rest) == undisturbed
    removed = [outcome.end_ms for outcome in undisturbed if outcome.expired == ("b",)]
    assert removed == [START_MS + 4 * LENGTH_MS + 1_800_000 + LENGTH_MS]
    assert after.encode_state("node-a") == whole.encode_state("node-a")


# -- How long a peak of Prod is remembered


@pytest.mark.parametrize(("half_life_hours", "remembers"), [(1, False), (12, True)])
def test_the_peak_of_prod_is_that_of_a_horizon(half_life_hours: int, remembers: bool) -> None:
    """An hour at 4 cores, and twelve quiet ones. Half of what a half-life of twelve hours
    holds is older than that; of one hour, next to nothing."""
    profile = Profile(half_life_seconds=(half_life_hours * 3600.0,) * 2)
    bank = warm_bank(class_profiles={"prod": profile})
    end = 0
    for hours, cores in ((1, 4.0), (12, 0.5)):
        for _ in range(hours * HOUR_MS // LENGTH_MS):
            end += 1
            bank.apply([window(end, [Pod("a", (cores, GIB))], usage=(cores, GIB))])
    prod = peaks_of(bank).reclaimable
    low, high = (np.trunc(1.1 * np.trunc(_end(cores) * 1000)) for cores in (0.5, 4.0))
    # The pod remembers as its class does.
    assert prod.classes_peak[0] == prod.pods_peak[0] == (high if remembers else low)


def _end(cores: float) -> float:
    return float(CPU_LAYOUT.ends[CPU_LAYOUT.digitize(cores)])
