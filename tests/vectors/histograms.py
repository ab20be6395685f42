"""Vector groups of bucket layouts, histograms, their decay and their rounded checkpoints."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pipeline.processors import histogram
from pipeline.processors.histogram import CPU_LAYOUT, MEMORY_LAYOUT, FloatArray, Layout

Case = dict[str, Any]

UNKNOWN = "an empty histogram is unknown, never 0: that 0 once became a recommendation"


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


def _one(value: float) -> FloatArray:
    return np.array([float(value)])


def _filled(weights: FloatArray) -> dict[str, float]:
    return {str(i): float(weights[i]) for i in np.flatnonzero(weights)}


def _quantiles(weights: FloatArray, layout: Layout, queries: list[float]) -> list[float | None]:
    found = histogram.quantiles(weights, layout, queries)[:, 0]
    return [None if np.isnan(value) else float(value) for value in found]


class DecayingHistogram:
    """One row and its reference, driven through the product's functions."""

    def __init__(self, layout: Layout, half_life_seconds: float | None) -> None:
        self.layout = layout
        self.weights = np.zeros((1, layout.num_buckets))
        self.half_life_ms = None if half_life_seconds is None else round(half_life_seconds * 1000)
        self.reference_ms: int | None = None

    def add(self, value: float, weight: float, unix_seconds: float | None = None) -> None:
        factor = 1.0
        if self.half_life_ms is not None and unix_seconds is not None:
            time_ms = round(unix_seconds * 1000)
            old = self.reference_ms
            new = histogram.shifted_reference_ms(old, time_ms, self.half_life_ms)
            if old is not None and new != old:
                by = histogram.shift_factor(old, new, self.half_life_ms)
                histogram.scale(self.weights, self.layout, by)
            self.reference_ms = new
            factor = histogram.decay_factor(time_ms, new, self.half_life_ms)
        histogram.add(self.weights, self.layout, _one(value), _one(weight * factor))


def histogram_buckets(case: Case) -> object:
    layout = _layout(case)
    return {
        "num_buckets": layout.num_buckets,
        "find": layout.find(case["find_values"]).tolist(),
        "bucket_start": [float(layout.starts[i]) for i in case["start_of_buckets"]],
    }


def histogram_percentile(case: Case) -> object:
    one = DecayingHistogram(_layout(case["options"]), None)
    result: dict[str, object] = {}
    for value, weight in case.get("samples", ()):
        one.add(value, weight)
    if "merge_with" in case:
        other = DecayingHistogram(one.layout, None)
        for value, weight in case["merge_with"]:
            other.add(value, weight)
        histogram.merge(one.weights, other.weights)
        result["bucket_weights"] = _filled(one.weights[0])
    if "steps" in case:
        empty = [bool(histogram.is_empty(one.weights)[0])]
        for operation, value, weight in case["steps"]:
            if operation == "add":
                one.add(value, weight)
            else:
                histogram.subtract(one.weights, one.layout, _one(value), _one(weight))
            empty.append(bool(histogram.is_empty(one.weights)[0]))
        result["is_empty_after_each_step"] = empty
    if "queries" in case:
        result["values"] = _quantiles(one.weights, one.layout, case["queries"])
    return result


def decaying_histogram(case: Case) -> object:
    one = DecayingHistogram(_layout(case["options"]), case["half_life_seconds"])
    for value, weight, offset in case["samples"]:
        one.add(value, weight, case["start_unix"] + offset)
    return {"values": _quantiles(one.weights, one.layout, case["queries"])}


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
    one = DecayingHistogram(layout, case.get("half_life_seconds"))
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
