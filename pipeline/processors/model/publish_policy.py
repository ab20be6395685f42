"""Decide when the peaks of a node are published: at once when they get worse, later when they ease.

The decision is a function of the node's own windows. The values last published are columns per
node that the bank saves, so that a replay publishes the same peaks at the same windows. A peak that
is too low is unsafe at once; one that is too high only wastes room, and every publication costs all
readers. Peaks are published

- if they never were, if the last ones are older than the force interval, or rest on other terms;
- if a value becomes known or unknown;
- if a value got worse by more than the threshold, in percent of the value last published;
- if a value eased by more than the threshold and stayed so for the report interval. So a value
  that swings is published at its worst. If it gets worse again within the force interval after its
  easing was published, it must stay twice as long the next time, up to the force interval. However
  slowly a value swings, it alone causes little more than one publication per force interval.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.kubernetes.pod_classes import CLASS_CODES
from pipeline.processors.model.column_store import Column, Columns
from pipeline.processors.model.entity_models import NEVER
from pipeline.processors.model.model_config import FIRST_CLASS, NODE
from pipeline.processors.model.node_peaks import PeakBatch, PeakColumns
from pipeline.topics.nodes import Strategy

VALUES: Final = ("node_peak", "prod_class_peak", "prod_peak", "prod_reclaimable")
"""The watched values, each of cpu and memory."""

_WORSE: Final = np.array([1.0, 1.0, 1.0, -1.0])[:, None]
"""Higher peaks are worse, and lower reclaimable amounts."""
_PROD: Final = FIRST_CLASS + CLASS_CODES["prod"]

COLUMNS: Final = {
    "published": Column((len(VALUES), 2), "<f8", np.nan),
    "published_ms": Column((), "<i8", NEVER),
    "published_terms": Column((), "<i8"),
    "eased_ms": Column((len(VALUES), 2), "<i8", NEVER),
    "relaxed_ms": Column((len(VALUES), 2), "<i8", NEVER),
    "hold_ms": Column((len(VALUES), 2), "<i8"),
}
"""`published` are the values last published, `published_ms` the end of their window,
`published_terms` a hash of the terms that they rest on. `eased_ms` is the end of the first window
since which a value has been better than published, `relaxed_ms` that of the window at which its
easing was published, until it gets worse again. `hold_ms` is how long a value that swings must stay
better."""


def watched_values(peaks: PeakBatch) -> FloatArray:
    """The watched values of k nodes by their deciding predictors, (k, 4, 2), NaN unknown."""
    return peaks.decided(_watched)


def _watched(columns: PeakColumns) -> FloatArray:
    prod = columns.reclaimable
    values = (columns.peaks[:, NODE], columns.peaks[:, _PROD], prod.peak, prod.amount)
    return np.concatenate(values, axis=1).reshape(-1, len(values), 2)


@lru_cache(maxsize=4096)
def terms_hash(strategy: Strategy, predictor: str, prediction_settings: str) -> int:
    """A hash of the strategy, the deciding predictor, and all settings that shape the peaks
    (`ModelConfig.prediction_settings`)."""
    text = msgspec.json.encode((strategy, predictor, prediction_settings))
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little", signed=True)


def due(
    columns: Columns,
    rows: IntArray,
    values: FloatArray,
    terms: IntArray,
    end_ms: IntArray,
    strategies: Mapping[str, npt.NDArray[Any]],
) -> BoolArray:
    """Whether the peaks of each of k nodes are to be published, (k,); those count as published.

    `rows` (k,) are distinct rows of `columns`, which are changed in place; `values` (k, 4, 2) come
    from `watched_values`, `terms` (k,) from `terms_hash`. `end_ms` and the columns of `strategies`
    are (k,).
    """
    threshold_percent = strategies["resource_diff_threshold_percent"]
    report_interval_ms = _milliseconds(strategies["report_interval_seconds"])
    force_update_ms = _milliseconds(strategies["force_update_seconds"])
    published, ends = columns["published"].take(rows, axis=0), end_ms[:, None, None]
    change = values - published
    # Amounts are whole numbers, so a change of exactly the threshold is not above it.
    moved = np.abs(change) * 100.0 > threshold_percent[:, None, None] * published
    worse = moved & (change * _WORSE > 0.0)
    eased = moved & ~worse
    before = columns["eased_ms"].take(rows, axis=0)
    since = np.where(eased, np.where(before == NEVER, ends, before), NEVER)
    hold_ms = np.maximum(columns["hold_ms"].take(rows, axis=0), report_interval_ms[:, None, None])
    lasting = eased & (ends - since >= hold_ms)
    appeared_or_vanished = np.isnan(values) != np.isnan(published)
    last = columns["published_ms"].take(rows)
    is_due = (
        (worse | lasting | appeared_or_vanished).any(axis=(1, 2))
        | (terms != columns["published_terms"].take(rows))
        | (last == NEVER)
        | (end_ms - last >= force_update_ms)
    )
    columns["eased_ms"][rows] = np.where(is_due[:, None, None], NEVER, since)
    if is_due.any():
        columns["published"][rows[is_due]] = values[is_due]
        columns["published_ms"][rows[is_due]] = end_ms[is_due]
        columns["published_terms"][rows[is_due]] = terms[is_due]
        _lengthen_holds(
            columns, rows[is_due], ends[is_due], worse[is_due], eased[is_due], hold_ms[is_due],
            force_update_ms[is_due, None, None],
        )  # fmt: skip
    return np.asarray(is_due)


def reset(columns: Columns, rows: IntArray) -> None:
    """Mark the peaks of the nodes in `rows` as never published."""
    columns["published_ms"][rows] = NEVER


def _lengthen_holds(
    columns: Columns,
    rows: IntArray,
    ends: IntArray,
    worse: BoolArray,
    eased: BoolArray,
    hold_ms: IntArray,
    longest_ms: IntArray,
) -> None:
    """Let values that got worse soon after their easing was published stay better for longer the
    next time, so that a value that swings is not published with every swing."""
    relaxed = columns["relaxed_ms"][rows]
    # Of several steps for the worse only the first counts as a turn.
    turned = worse & (relaxed != NEVER)
    longer = np.where(ends - relaxed < longest_ms, np.minimum(2 * hold_ms, longest_ms), 0)
    columns["hold_ms"][rows] = np.where(turned, longer, columns["hold_ms"][rows])
    columns["relaxed_ms"][rows] = np.where(eased, ends, np.where(turned, NEVER, relaxed))


def _milliseconds(seconds: FloatArray) -> IntArray:
    return np.rint(1000.0 * seconds).astype(np.int64)
