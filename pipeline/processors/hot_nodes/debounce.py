"""Debounce: which alerts open, escalate, ease and close with a window.

Each rule has two levels, warning and critical, that are debounced in the same way. A window is
*above* a level if the usage is above its mark, *below* it if the usage is at or below its calm
mark. `open_windows` windows above in a row raise the level, `close_windows` below in a row lower
it, with exactly the last of them. A window between both marks ends both runs.

A window of unknown usage, and one that is missing, is neither and does not end a run: windows are
lost on nodes that are overloaded, and those must still be found. The same holds for a window
without the mean of the pool, if the threshold is a distance from it. But a run ends when no usage
was known for more than five minutes; what was before says nothing about now. An open alert stays
open for as long as usage is unknown. (Koordinator forgets a node after the same time, its
`detectorCacheTimeout`.)
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.hot_nodes.thresholds import Thresholds
from pipeline.processors.model.column_store import Columns
from pipeline.processors.model.entity_models import NEVER

HOLD_MS: Final = 300_000
"""How long a run continues without known usage."""
LONGEST_RUN: Final = 1000
"""Where counters stop: the most windows that a policy may ask for."""
NONE, WARNING, CRITICAL = range(3)
_LEVELS: Final = np.array([WARNING, CRITICAL])


class Levels(NamedTuple):
    """Levels by node and rule, (n, rules): before and after a window, and which are watched."""

    before: IntArray
    after: IntArray
    watched: BoolArray


def step(
    columns: Columns,
    rows: IntArray,
    usage: FloatArray,
    limits: Thresholds,
    start_ms: IntArray,
    end_ms: IntArray,
) -> Levels:
    """Apply a window of each of n nodes to its row in `columns`.

    `usage` (n, rules) is in percent, NaN unknown; `start_ms` and `end_ms` (n,) are those of the
    windows. Rules that are not watched forget everything. So do all rules in the first window whose
    thresholds are distances from a mean: an alert of a fixed threshold must not wait for a mean to
    close. Windows below a level are counted only while it is raised: before, they cannot matter.
    """
    before = columns["alert_level"][rows].astype(np.int64)
    above = columns["alert_above"][rows]
    watched = limits.watched
    if limits.deviates.any() or columns["alert_deviates"][rows].any():
        is_new = limits.deviates & (columns["alert_deviates"][rows] == 0)
        is_new &= before.any(axis=1) | above.any(axis=(1, 2))
        watched = watched & ~is_new[:, None]
        columns["alert_deviates"][rows] = limits.deviates
    known = watched & ~np.isnan(usage) & ~np.isnan(limits.marks[..., 0])
    answered = columns["alert_answered_ms"][rows]
    columns["alert_answered_ms"][rows] = np.where(
        watched, np.where(known, end_ms[:, None], answered), NEVER
    )
    if not (before.any() or above.any() or (usage > limits.marks[..., 0]).any()):
        return Levels(before, before, watched)  # as nearly always: nothing is hot, or was
    held = start_ms[:, None] - answered <= HOLD_MS
    value = usage[..., None]
    above = _run(above, value > limits.marks, known, held)
    below = _run(columns["alert_below"][rows], value <= limits.calm, known, held)
    after = np.where(known, _level(before, above, below, limits), before)
    after[~watched] = NONE
    is_raised = after[..., None] >= _LEVELS
    columns["alert_above"][rows] = np.where(watched[..., None], above, 0)
    columns["alert_below"][rows] = np.where(is_raised, below, 0)
    columns["alert_level"][rows] = after
    opened = np.where(before == NONE, end_ms[:, None], columns["alert_opened_ms"][rows])
    columns["alert_opened_ms"][rows] = np.where(after == NONE, NEVER, opened)
    return Levels(before, after, watched)


def _run(run: IntArray, holds: BoolArray, known: BoolArray, held: BoolArray) -> IntArray:
    """The windows in a row for which something `holds`, (n, rules, levels)."""
    run = np.where(held[..., None], run, 0).astype(np.int64)
    longer = np.where(holds, np.minimum(run + 1, LONGEST_RUN), 0)
    return np.where(known[..., None], longer, run)


def _level(before: IntArray, above: IntArray, below: IntArray, limits: Thresholds) -> IntArray:
    """The level of each rule after a window of known usage."""
    raised = above >= limits.open_windows[:, None, None]
    lowered = below >= limits.close_windows[:, None, None]
    is_open = (before > NONE) & ~lowered[..., 0] | (before == NONE) & raised[..., 0]
    is_critical = (before == CRITICAL) & ~lowered[..., 1] | raised[..., 1]
    return np.where(is_open, np.where(is_critical, CRITICAL, WARNING), NONE)
