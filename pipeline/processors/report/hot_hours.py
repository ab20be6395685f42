"""Which nodes run hot: hours whose average usage is above a threshold.

Marks are those of hot nodes (`hot_nodes.thresholds`): usage above the threshold is hot, above the
middle between it and 100% critical. Alerts of workers also wait for several windows; an hour is
longer than these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.hot_nodes.thresholds import WHOLE_PERCENT, thresholds
from pipeline.processors.loadaware.loadaware_args import THRESHOLDS
from pipeline.processors.report.cluster_usage import ClusterUsage
from pipeline.topics.hot_node_policy import HotNodePolicy

DEFAULT_PERCENTS: Final[Mapping[str, float]] = {
    name: float(percent) for name, percent in THRESHOLDS.items()
}
"""Thresholds above which Koordinator's LoadAware places no more pods."""


class HotHours(NamedTuple):
    """Usage of nodes in percent of allocatable, (k, 2), NaN unknown: the average of the last hour
    and the highest of an hour. `hot_hours` (k, 2) counts hours above the threshold, `known_hours`
    (k, 2) those with known usage. `level` (k, 2) of the last hour is 0 below the threshold, 1 hot,
    2 critical."""

    last_percent: FloatArray
    highest_percent: FloatArray
    hot_hours: IntArray
    known_hours: IntArray
    level: IntArray


def hot_hours(usage: ClusterUsage, high_percent: Mapping[str, float]) -> HotHours:
    """The hot hours of each node at thresholds `high_percent` of cpu and memory."""
    marks = thresholds([HotNodePolicy(high_percent=dict(high_percent))]).marks[0, :2]  # (2, levels)
    capacity = np.where(usage.allocatable > 0.0, usage.allocatable, np.nan)
    percent = WHOLE_PERCENT * usage.node_usage / capacity[:, None]
    is_known: BoolArray = ~np.isnan(percent)
    highest = np.fmax.reduce(percent, axis=1) if percent.size else np.full_like(capacity, np.nan)
    last = percent[:, -1]
    return HotHours(
        last_percent=last,
        highest_percent=highest,
        hot_hours=(percent > marks[:, 0]).sum(axis=1),
        known_hours=is_known.sum(axis=1),
        level=(last[:, :, None] > marks).sum(axis=2),
    )
