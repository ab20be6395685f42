"""Vector groups of bucket layouts, histograms, their decay and their rounded checkpoints.

What each passes through:

- `histogram_buckets`: `histogram.exponential_layout` and `Layout.find`, by which the columns of a
  bank find buckets. `linear_layout` has no caller of ours: no model has such buckets.
- `histogram_percentile`, `decaying_histogram`: `rows.Rows`, the columns of a bank: `train`,
  `shift` and `quantile`, with reference and factor as the learner has them from
  `shifted_reference_ms`, `shift_factor` and `decay_factor`. Emptiness by `is_empty`; two rows are
  one by `merge`, and then read by `quantiles`.
- `histogram_checkpoint`: loaded by `load_checkpoint`, as `springtide model import` does. Samples
  are learned as above; `save_checkpoint` has no caller of ours, whose own checkpoints are exact.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.processors.arrays import FloatArray
from pipeline.processors.model import histogram
from pipeline.processors.model.entity_columns import Rows
from pipeline.processors.model.histogram import CPU_LAYOUT, MEMORY_LAYOUT, Layout
from pipeline.processors.model.model_config import Profile

Case = dict[str, Any]

UNKNOWN = "an empty histogram is unknown, never 0: that 0 once became a recommendation"
NO_DECAY = 3600.0


def _layout(options: Mapping[str, Any] | str) -> Layout:
    if options == "cpu_model":
        return CPU_LAYOUT
    if options == "memory_model":
        return MEMORY_LAYOUT
    assert not isinstance(options, str), options
    if options.get("kind") == "exponential" or "ratio" in options:
        return histogram.exponential_layout(
            max_value=options["max_value"],
            first_bucket_size=options["first_bucket_size"],
            ratio=options["ratio"],
            epsilon=options["epsilon"],
        )
    return histogram.linear_layout(
        max_value=options["max_value"],
        bucket_size=options["bucket_size"],
        epsilon=options["epsilon"],
    )


def _filled(weights: FloatArray) -> dict[str, float]:
    return {str(i): float(weights[i]) for i in np.flatnonzero(weights)}


def _known(values: FloatArray) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]


class Row:
    """One row of a bank's columns, between two others of which nothing is known."""

    def __init__(self, layout: Layout, half_life_seconds: float = NO_DECAY) -> None:
        half_lives = (half_life_seconds, half_life_seconds)
        self.half_life_ms = round(half_life_seconds * 1000)
        self.rows = Rows([Profile(half_life_seconds=half_lives, layouts=(layout, layout))], {})
        self.at = self.rows.allocate(np.zeros(3, np.int8))[1:2]
        self.reference_ms: int | None = None

    def add(self, value: float, weight: float, unix_seconds: float | None = None) -> None:
        factor, time_ms = 1.0, 0
        if unix_seconds is not None:
            time_ms, old = round(unix_seconds * 1000), self.reference_ms
            new = histogram.shifted_reference_ms(old, time_ms, self.half_life_ms)
            if old is not None and new != old:
                self.rows.shift(self.at, 0, histogram.shift_factor(old, new, self.half_life_ms))
            self.reference_ms = new
            factor = histogram.decay_factor(time_ms, new, self.half_life_ms)
        self.rows.train(
            self.at,
            np.array([[value, np.nan]]),
            np.array([[weight * factor, 0.0]]),
            np.array([time_ms]),
        )

    def values(self, queries: Sequence[float]) -> list[float | None]:
        rows = np.repeat(self.at, len(queries))
        return _known(self.rows.quantile(rows, np.repeat(queries, 2).reshape(-1, 2))[:, 0])

    @property
    def weights(self) -> FloatArray:
        """All buckets, (1, buckets)."""
        return self.rows.buckets[0].dense(self.at)


def histogram_buckets(case: Case) -> object:
    layout = _layout(case)
    return {
        "num_buckets": layout.num_buckets,
        "find": layout.find(case["find_values"]).tolist(),
        "bucket_start": [float(layout.starts[i]) for i in case["start_of_buckets"]],
    }


def histogram_percentile(case: Case) -> object:
    layout = _layout(case["options"])
    one = Row(layout)
    for value, weight in case.get("samples", ()):
        one.add(value, weight)
    if not case.keys() & {"merge_with", "steps"}:
        return {"values": one.values(case["queries"])}
    result: dict[str, object] = {}
    if "steps" in case:
        result["is_empty_after_each_step"] = _emptiness(one, case["steps"])
    weights = one.weights
    if "merge_with" in case:
        other = Row(layout)
        for value, weight in case["merge_with"]:
            other.add(value, weight)
        histogram.merge(weights, other.weights)
        result["bucket_weights"] = _filled(weights[0])
    if "queries" in case:
        values = histogram.quantiles(weights, layout, case["queries"])[:, 0]
        result["values"] = _known(values)
    return result


def _emptiness(one: Row, steps: Sequence[tuple[str, float, float]]) -> list[bool]:
    empty = [bool(histogram.is_empty(one.weights)[0])]
    for operation, value, weight in steps:
        if operation != "add":
            raise LookupError(f"{operation}: what a model has learned fades, nobody takes it back")
        one.add(value, weight)
        empty.append(bool(histogram.is_empty(one.weights)[0]))
    return empty


def decaying_histogram(case: Case) -> object:
    one = Row(_layout(case["options"]), case["half_life_seconds"])
    for value, weight, offset in case["samples"]:
        one.add(value, weight, case["start_unix"] + offset)
    return {"values": one.values(case["queries"])}


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
    one = Row(layout, case.get("half_life_seconds", NO_DECAY))
    for sample in case["samples"]:
        one.add(*sample)
    saved = histogram.save_checkpoint(one.weights[0])
    if one.reference_ms is not None:
        saved["reference_unix"] = one.reference_ms // 1000
    return saved


def _empty_is_unknown(given: Case, expected: Case) -> tuple[str, Case] | None:
    if given.get("samples") or given.get("merge_with") or not expected.get("values"):
        return None
    return UNKNOWN, expected | {"values": [None for _ in expected["values"]]}


ADAPTERS: dict[str, Callable[[Case], object]] = {
    "histogram_buckets": histogram_buckets,
    "histogram_percentile": histogram_percentile,
    "decaying_histogram": decaying_histogram,
    "histogram_checkpoint": histogram_checkpoint,
}
DIFFERENCES = {
    "histogram_percentile": _empty_is_unknown,
    "decaying_histogram": _empty_is_unknown,
}
