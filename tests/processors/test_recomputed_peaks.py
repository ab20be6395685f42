"""The published peaks of a node follow from its log, recomputed slowly and exactly."""

import math
from fractions import Fraction
from typing import Any

import pytest

from pipeline.processors.model.bank import Bank
from pipeline.processors.model.histogram import CPU_LAYOUT, MEMORY_LAYOUT, Layout
from pipeline.processors.model.result_records import encode_prediction
from pipeline.topics.codec import decode_json
from pipeline.topics.nodes import NodeRecord, NodeStrategy
from pipeline.topics.predictions import PredictionRecord
from pipeline.topics.resource_amounts import Resources
from tests.processors.joined import (
    GIB,
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
