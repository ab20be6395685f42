"""Columns of hot-node detection per node, stored and checkpointed beside the models.

`pipeline.processors.hot_nodes` reads and writes them. They shape nothing that models learn: they
are no part of the fingerprint, and a state without them, or with those of another release, is
restored with empty ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from pipeline.errors import CheckpointError
from pipeline.processors.arrays import IntArray
from pipeline.processors.model.column_store import Column, Columns
from pipeline.processors.model.entity_models import NEVER
from pipeline.topics.alerts import RULES

WINDOWS: Final = 60
"""Windows of usage that are kept: half an hour of 30 s."""
SERIES: Final = 20
"""Values of compared usage that are kept as evidence."""
LEVELS: Final = 2
"""Warning and critical."""
USAGES: Final = (*RULES, "outside_cpu", "outside_memory")
"""Usage that is kept of each window: by rule, and that of processes outside of Kubernetes."""

COLUMNS: Final[Mapping[str, Column]] = {
    "alert_window_ms": Column((WINDOWS,), "<i8", NEVER),
    "alert_usage": Column((len(USAGES), WINDOWS), "<f8", np.nan),
    "alert_series": Column((len(RULES), SERIES), "<f8", np.nan),
    "alert_above": Column((len(RULES), LEVELS), "<u2"),
    "alert_below": Column((len(RULES), LEVELS), "<u2"),
    "alert_level": Column((len(RULES),), "<u1"),
    "alert_opened_ms": Column((len(RULES),), "<i8", NEVER),
    "alert_answered_ms": Column((len(RULES),), "<i8", NEVER),
    "alert_deviates": Column((), "<u1"),
}
"""By node. `alert_window_ms` are the ends of the last windows, newest last, and `alert_usage` their
averages (`USAGES`), cores or bytes, NaN unknown. `alert_series` is the compared usage in percent,
newest last. `alert_above` and, while the level is raised, `alert_below` count the windows in a row
above and below the marks of each level. `alert_level` is 0 without an open alert, 1 for a warning,
2 for a critical one, opened by the window that ended at `alert_opened_ms`. `alert_answered_ms` is
the end of the last window of known usage. `alert_deviates` is 1 if the thresholds of the last
window were distances from the mean of the pool."""


def pack(columns: Columns, slot: int) -> dict[str, bytes]:
    """The state of detection in this row; empty if it has never seen a window."""
    row = np.array([slot])
    return columns.pack(row) if is_used(columns, row)[0] else {}


def unpack(columns: Columns, slot: int, packed: Mapping[str, bytes]) -> None:
    """Write the state that `pack` gave into this row, which is empty. State that does not fit, as
    another release may have written it, leaves the row empty."""
    try:
        values = columns.unpack(packed, 1)
    except CheckpointError:
        return
    columns.write(np.array([slot]), values)


def is_used(columns: Columns, rows: IntArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Whether each of these rows has seen a window."""
    used: np.ndarray[tuple[int], np.dtype[np.bool_]] = columns["alert_window_ms"][rows, -1] != NEVER
    return used
