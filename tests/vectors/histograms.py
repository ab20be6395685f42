"""Groups of bucket layouts, histograms, their decay and their rounded checkpoints.

Samples go into the columns of a bank, as a worker trains them. Layouts with buckets of equal size
are made here: no model has them, but most cases are written for them.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.processors.arrays import FloatArray
from pipeline.processors.model import histogram
from pipeline.processors.model.entity_models import EntityModels
from pipeline.processors.model.histogram import CPU_LAYOUT, MEMORY_LAYOUT, Layout
from pipeline.processors.model.model_config import Profile
from tests.vectors.cases import Case
from tests.vectors.runner import Difference, NotBuiltError, group

NO_DECAY = 3600.0


_MODELS = "model.entity_models.EntityModels"


def _layout(options: Mapping[str, Any] | str) -> Layout:
    if isinstance(options, str):
        return {"cpu_model": CPU_LAYOUT, "memory_model": MEMORY_LAYOUT}[options]
    if options.get("kind") == "exponential" or "ratio" in options:
        return _exponential(options)
    size, epsilon = options["bucket_size"], options["epsilon"]
    starts = [index * size for index in range(math.ceil(options["max_value"] / size) + 1)]
    return Layout(name="equal", epsilon=epsilon, starts=np.array(starts))


def _exponential(options: Mapping[str, Any]) -> Layout:
    return histogram.exponential_layout(
        max_value=options["max_value"], first_bucket_size=options["first_bucket_size"],
        ratio=options["ratio"], epsilon=options["epsilon"],
    )  # fmt: skip


def _filled(weights: FloatArray) -> dict[str, float]:
    return {str(i): float(weights[i]) for i in np.flatnonzero(weights)}


def _known(values: FloatArray) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]


class Row:
    """One row of a bank's columns, between two others about which nothing is known."""

    def __init__(self, layout: Layout, half_life_seconds: float = NO_DECAY) -> None:
        half_lives = (half_life_seconds, half_life_seconds)
        self.half_life_ms = round(half_life_seconds * 1000)
        self.models = EntityModels(
            [Profile(half_life_seconds=half_lives, layouts=(layout, layout))], {}
        )
        self.rows = self.models.allocate(np.zeros(3, np.int8))[1:2]
        self.reference_ms: int | None = None

    def add(self, value: float, weight: float, unix_seconds: float | None = None) -> None:
        factor, time_ms = 1.0, 0
        if unix_seconds is not None:
            time_ms = round(unix_seconds * 1000)
            new = histogram.shifted_reference_ms(self.reference_ms, time_ms, self.half_life_ms)
            self.move_to(new)
            factor = histogram.decay_factor(time_ms, new, self.half_life_ms)
        self.models.train(
            self.rows, np.array([[value, np.nan]]), np.array([[weight * factor, 0.0]]),
            np.array([time_ms]),
        )  # fmt: skip

    def move_to(self, reference_ms: int) -> None:
        """Express the weights relative to this reference."""
        old = self.reference_ms
        if old is not None and reference_ms != old:
            factor = histogram.shift_factor(old, reference_ms, self.half_life_ms)
            self.models.shift(self.rows, 0, factor)
        self.reference_ms = reference_ms

    def values(self, queries: Sequence[float]) -> list[float | None]:
        rows = np.repeat(self.rows, len(queries))
        return _known(self.models.quantile(rows, np.repeat(queries, 2).reshape(-1, 2))[:, 0])

    def subtract(self, value: float, weight: float) -> None:
        """Take a sample back, as models of workloads do with a memory peak for a higher one."""
        histograms = self.models.histograms[0]
        bucket = histograms.layouts[0].digitize([value])
        histograms.subtract(self.rows, bucket, np.array([weight]))

    def merge(self, other: "Row") -> None:
        """Add the weights of another row, as recommendations add up those of nodes."""
        filled = np.flatnonzero(other.weights[0])
        self.models.histograms[0].add_repeated(
            self.rows.repeat(len(filled)), filled, other.weights[0, filled]
        )

    @property
    def weights(self) -> FloatArray:
        """All buckets, (1, buckets)."""
        return self.models.histograms[0].dense(self.rows)


@group("exponential_layout, Layout.digitize")
def histogram_buckets(case: Case) -> object:
    if case["kind"] == "linear":
        raise NotBuiltError("no model has buckets of equal size")
    layout = _exponential(case)
    return {
        "num_buckets": layout.num_buckets,
        "find": layout.digitize(case["find_values"]).tolist(),
        "bucket_start": [float(layout.starts[i]) for i in case["start_of_buckets"]],
    }


def _empty_is_unknown(given: Case, expected: Case) -> Difference | None:
    if given.get("samples") or given.get("merge_with") or not expected.get("values"):
        return None
    return Difference(
        "an empty histogram is unknown, not 0",
        "a new workload gets no recommendation of 0",
        expected | {"values": [None for _ in expected["values"]]},
    )


@group(f"{_MODELS}, Histograms.add_repeated", differs=_empty_is_unknown)
def histogram_percentile(case: Case) -> object:
    layout = _layout(case["options"])
    row = Row(layout)
    for value, weight in case.get("samples", ()):
        row.add(value, weight)
    answer: dict[str, object] = {}
    if "steps" in case:
        answer["is_empty_after_each_step"] = _emptiness(row, case["steps"])
    if "merge_with" in case:
        other = Row(layout)
        for value, weight in case["merge_with"]:
            other.add(value, weight)
        row.merge(other)
        answer["bucket_weights"] = _filled(row.weights[0])
    if "queries" in case:
        answer["values"] = row.values(case["queries"])
    return answer


def _emptiness(row: Row, steps: Sequence[tuple[str, float, float]]) -> list[bool]:
    empty = [bool(histogram.is_empty(row.weights)[0])]
    for operation, value, weight in steps:
        {"add": row.add, "subtract": row.subtract}[operation](value, weight)
        empty.append(bool(histogram.is_empty(row.weights)[0]))
    return empty


@group(f"{_MODELS}, Histograms.add_repeated", differs=_empty_is_unknown)
def decaying_histogram(case: Case) -> object:
    layout, half_life, start = (case[k] for k in ("options", "half_life_seconds", "start_unix"))
    row = _decayed(_layout(layout), half_life, start, case["samples"])
    if not case.get("merge_with"):
        return {"values": row.values(case["queries"])}
    other = _decayed(_layout(layout), half_life, start, case["merge_with"])
    latest = max(r.reference_ms for r in (row, other) if r.reference_ms is not None)
    for each in (row, other):
        each.move_to(latest)
    row.merge(other)
    return {"values": row.values(case["queries"])}


def _decayed(layout: Layout, half_life: float, start: float, samples: Any) -> Row:
    row = Row(layout, half_life)
    for value, weight, offset in samples:
        row.add(value, weight, start + offset)
    return row


@group("histogram.load_checkpoint, save_checkpoint")
def histogram_checkpoint(case: Case) -> object:
    layout = _layout(case["options"])
    if case["op"] == "load":
        stored = case["checkpoint"]
        weights = histogram.load_checkpoint(layout, stored)
        loaded: dict[str, object] = {
            "totalWeight": float(np.cumsum(weights)[-1]),
            "weights": _filled(weights),
        }
        if "reference_unix" in stored:
            loaded["reference_unix"] = stored["reference_unix"]
        return loaded
    row = Row(layout, case.get("half_life_seconds", NO_DECAY))
    for sample in case["samples"]:
        row.add(*sample)
    saved = histogram.save_checkpoint(row.weights[0])
    if row.reference_ms is not None:
        saved["reference_unix"] = row.reference_ms // 1000
    return saved
