"""Predicted peaks of Prod whose horizon runs, and the highest usage of Prod since then.

A peak is held against its cohort: the pods of Prod that the window listed after which it was
predicted, and the system. Each pod counts while it runs, 0 after it ended, and again if it returns:
a UID is one pod, and its absence from windows is a gap in what was measured. A pod that was absent
when the peak was predicted does not count, even if it ran before. This is the oracle of Bashir et
al., Take it to the limit (EuroSys 2021), fed one window at a time.

The columns are stored and checkpointed beside the models. They shape nothing that models learn:
they are no part of the fingerprint, and state of another interval or horizon is dropped. Of a
predictor that was added, the peaks that are already followed have no prediction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from pipeline.errors import CheckpointError
from pipeline.processors.arrays import BoolArray, ByteArray, FloatArray, IntArray
from pipeline.processors.kubernetes.pod_classes import CLASS_CODES
from pipeline.processors.model.column_store import Column, Columns
from pipeline.processors.model.entity_models import NEVER
from pipeline.processors.model.model_config import FIRST_CLASS, SYSTEM, UNKNOWN
from pipeline.processors.model.resource_pairs import TO_KUBERNETES, group_sums
from pipeline.processors.model.training_batch import UNKNOWN_CLASS, TrainingBatch

MOST_PENDING: Final = 288
"""Peaks of a node that are followed at once, at most: one in five minutes for a day."""
_NO_PREDICTION: Final = -1.0
"""The peak by a predictor that did not run yet."""
_PEAK: Final = "peak:"
_PROD, _NONE = (FIRST_CLASS + CLASS_CODES[name] for name in ("prod", "none"))


@dataclass(frozen=True, slots=True)
class Schedule:
    """One peak per interval of event time is followed for a horizon, both in milliseconds."""

    interval_ms: int
    horizon_ms: int

    @classmethod
    def of(cls, interval_seconds: float, horizon_seconds: float) -> Schedule:
        """The schedule for an interval, which is at most the horizon, and at least a share of it
        that bounds how many peaks are followed."""
        horizon_ms = max(round(horizon_seconds * 1000), 1)
        least_ms = -(-horizon_ms // MOST_PENDING)
        return cls(min(max(round(interval_seconds * 1000), least_ms), horizon_ms), horizon_ms)

    @property
    def pending(self) -> int:
        """How many peaks of a node are followed at once."""
        return -(-self.horizon_ms // self.interval_ms) + 1


def pending_columns(schedule: Schedule, predictors: Sequence[str]) -> dict[str, Column]:
    """Columns by node: rings of peaks that are followed.

    `made_ms` are the ends of the windows after which they were predicted; a place with `NEVER` is
    free. `peak:NAME` are the peaks of Prod by predictor, `requests` the requests of Prod then, and
    `highest` its highest usage since then, (ring, 2) millicores and bytes. `known_ms` (ring, 2) is
    the time in which its usage was known, negative if it can no longer be known long enough.
    """
    ring = schedule.pending
    return {
        "made_ms": Column((ring,), "<i8", NEVER),
        "requests": Column((ring, 2)),
        "highest": Column((ring, 2)),
        "known_ms": Column((ring, 2), "<i8"),
        **{_PEAK + name: Column((ring, 2)) for name in predictors},
    }


@dataclass(frozen=True, slots=True)
class ProdUsage:
    """Usage of Prod in the windows of k nodes, cores and bytes, NaN unknown: `total` (k, 2) with
    the system, and `pods` (n, 2) of each pod of the windows, 0 of other classes."""

    total: FloatArray
    pods: FloatArray


def prod_usage(
    batch: TrainingBatch, classes: ByteArray, values: FloatArray, pods: FloatArray
) -> ProdUsage:
    """Usage of Prod from the samples `values` (k, entities, 2) of these windows, and the class
    codes (n,) and the usage `pods` (n, 2) over the whole window of their pods."""
    # A node without a pod of unknown class has no sample of that class.
    has_unknown = np.zeros((len(values), 1), np.bool_)
    has_unknown[batch.window_index[classes == UNKNOWN_CLASS]] = True
    of_unknown = values[:, UNKNOWN]
    total = values[:, SYSTEM] + values[:, _PROD] + values[:, _NONE]
    total = total + np.where(np.isnan(of_unknown) & ~has_unknown, 0.0, of_unknown)
    is_prod = np.isin(FIRST_CLASS + classes, (_PROD, _NONE, UNKNOWN))
    return ProdUsage(total, np.where(is_prod[:, None], pods, 0.0))


def follow(
    columns: Columns,
    rows: IntArray,
    schedule: Schedule,
    batch: TrainingBatch,
    usage: ProdUsage,
    in_cohort: BoolArray,
) -> None:
    """Raise the highest usage since each followed peak by the windows of k nodes, in `rows`.
    `in_cohort` (n, ring) is whether each pod of the windows is in the cohort of each peak."""
    made_ms, end_ms, node_index = columns["made_ms"][rows], batch.end_ms, batch.window_index
    follows = (made_ms != NEVER) & (end_ms[:, None] <= made_ms + schedule.horizon_ms)
    if not follows.any():
        return
    ring = made_ms.shape[1]
    cohorts = np.repeat(usage.total, ring, axis=0)
    outside = follows.take(node_index, axis=0) & ~in_cohort
    late = np.flatnonzero(outside.any(axis=1))
    if len(late):
        groups = node_index[late][:, None] * ring + np.arange(ring)
        used = np.nan_to_num(usage.pods[late]).repeat(ring, axis=0) * outside[late].reshape(-1, 1)
        cohorts = cohorts - group_sums(groups.ravel(), used, len(cohorts))
    counts = follows.reshape(-1, 1) & ~np.isnan(cohorts)
    shape = (len(rows), ring, 2)
    cohorts = np.where(counts, cohorts * TO_KUBERNETES, 0.0).reshape(shape)
    columns["highest"][rows] = np.maximum(columns["highest"][rows], cohorts)
    window_ms = end_ms - np.array([head.start_ms for head in batch.heads], np.int64)
    columns["known_ms"][rows] += np.where(counts.reshape(shape), window_ms[:, None, None], 0)


def enter(
    columns: Columns,
    rows: IntArray,
    schedule: Schedule,
    end_ms: IntArray,
    requests: FloatArray,
    peaks: Mapping[str, FloatArray],
) -> list[tuple[int, int]]:
    """Follow the peaks (k, 2) of the nodes in `rows` after windows that ended at `end_ms`, of those
    whose last followed peak is of an earlier interval. Call `ended` first: it frees the ring.

    Returns the number of each of these nodes, with the place of its peak in the ring."""
    made_ms = columns["made_ms"][rows]
    last_ms = made_ms.max(axis=1)
    due = np.flatnonzero(end_ms // schedule.interval_ms > last_ms // schedule.interval_ms)
    if not len(due):
        return []
    rows, free = rows[due], made_ms[due].argmin(axis=1)
    columns["made_ms"][rows, free] = end_ms[due]
    columns["requests"][rows, free] = requests[due]
    columns["highest"][rows, free] = 0.0
    columns["known_ms"][rows, free] = 0
    for name, values in peaks.items():
        columns[_PEAK + name][rows, free] = values[due]
    return [*zip(due.tolist(), free.tolist(), strict=True)]


def abandon(columns: Columns, rows: IntArray, schedule: Schedule) -> None:
    """Another machine took the names of these nodes: what became of their peaks stays unknown."""
    columns["known_ms"][rows] = -schedule.horizon_ms


@dataclass(frozen=True, slots=True)
class EndedPeak:
    """A peak that is followed no longer: by each predictor that ran (2,), and the requests, the
    highest usage and the share of the horizon in which usage was known, (2,) each. Millicores and
    bytes, NaN unknown."""

    made_ms: int
    peaks: Mapping[str, FloatArray]
    requests: FloatArray
    highest: FloatArray
    known: FloatArray


def ended(
    columns: Columns,
    rows: IntArray,
    schedule: Schedule,
    end_ms: IntArray,
    predictors: Sequence[str],
) -> list[tuple[int, EndedPeak]]:
    """Take out the peaks whose horizon is over with windows that ended at `end_ms`, each with the
    number of its node in `rows`, oldest first."""
    made_ms = columns["made_ms"][rows]
    over = (made_ms != NEVER) & (made_ms + schedule.horizon_ms <= end_ms[:, None])
    found = sorted((i, int(made_ms[i, place]), place) for i, place in np.argwhere(over).tolist())
    return [
        (i, _take_out(columns, int(rows[i]), place, schedule, predictors)) for i, _, place in found
    ]


def unfinished(
    columns: Columns, row: int, schedule: Schedule, predictors: Sequence[str]
) -> list[EndedPeak]:
    """Take out all peaks of a node that has departed, oldest first."""
    made_ms = columns["made_ms"][row]
    found = sorted((int(made_ms[place]), place) for place in np.flatnonzero(made_ms != NEVER))
    return [_take_out(columns, row, int(place), schedule, predictors) for _, place in found]


def _take_out(
    columns: Columns, row: int, place: int, schedule: Schedule, predictors: Sequence[str]
) -> EndedPeak:
    peaks = {name: columns[_PEAK + name][row, place].copy() for name in predictors}
    peak = EndedPeak(
        made_ms=int(columns["made_ms"][row, place]),
        peaks={name: values for name, values in peaks.items() if values[0] != _NO_PREDICTION},
        requests=columns["requests"][row, place].copy(),
        highest=columns["highest"][row, place].copy(),
        known=np.maximum(columns["known_ms"][row, place] / schedule.horizon_ms, 0.0),
    )
    columns["made_ms"][row, place] = NEVER
    return peak


def pack(columns: Columns, row: int, in_cohort: BoolArray) -> dict[str, bytes]:
    """The peaks of a node that are followed, with the cohorts of its entities and pods (m, ring);
    empty if there are none."""
    if (columns["made_ms"][row] == NEVER).all():
        return {}
    return {**columns.pack(np.array([row])), "cohorts": np.packbits(in_cohort).tobytes()}


def unpack(columns: Columns, row: int, packed: Mapping[str, bytes], in_cohort: BoolArray) -> None:
    """Write the state that `pack` gave into this row, which is empty, and into `in_cohort`
    (m, ring). State of another schedule leaves both empty: these peaks are not judged."""
    rows = np.array([row])
    new = [name for name in columns.columns if name.startswith(_PEAK) and name not in packed]
    for name in new:
        columns[name][rows] = _NO_PREDICTION
    known = {**packed, **{name: data for name, data in columns.pack(rows).items() if name in new}}
    bits = np.frombuffer(packed.get("cohorts", b""), np.uint8)
    try:
        values = columns.unpack(known, 1)
    except CheckpointError:
        bits = bits[:0]
    if len(bits) != -(-in_cohort.size // 8):
        columns.clear(rows)
        return
    columns.write(rows, values)
    in_cohort[:] = np.unpackbits(bits, count=in_cohort.size).reshape(in_cohort.shape)
