"""Tell an outage of the usage pipeline from nodes that fell silent on their own.

If exporters, Kafka or workers stop, the last windows of most nodes end together. Such nodes are not
at fault: refusing all of them would stop the cluster. A node whose window ended earlier was silent
before the outage, and stays silent.
"""

import math
from typing import Final, NamedTuple

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray

TOGETHER_SECONDS: Final = 120.0
"""A node fell silent together with the node before it if its window ended within this time, or
within two lengths of that node's windows: nodes end them at different moments, workers lag
differently, and may stop one after another."""
_LONGEST_WINDOW_SECONDS: Final = 3600.0
"""Longer windows, which no setting allows, link no nodes over a longer time."""
_UNRECOVERED_SHARE: Final = 0.25
CATCH_UP_SECONDS: Final = 1800.0
"""The least time that nodes have to return once most nodes are back."""


class UsageOutage(NamedTuple):
    """Most nodes that had fresh usage lost it together: `lost` of `nodes` with any usage; windows
    that ended at `since_seconds` or later count as lost. Since `returned_at` no more nodes are lost
    than have fresh usage; None while more are."""

    since_seconds: float
    lost: int
    nodes: int
    returned_at: float | None = None

    def affects(self, as_of_seconds: FloatArray, is_fresh: BoolArray) -> BoolArray:
        """Which nodes lost their usage by this outage; NaN (never reported) is none of them."""
        with np.errstate(invalid="ignore"):
            lost: BoolArray = ~is_fresh & (as_of_seconds >= self.since_seconds)
        return lost

    @property
    def ends_by(self) -> float:
        """When the outage is over whatever is still lost, UTC seconds."""
        if self.returned_at is None:
            return math.inf
        return self.returned_at + max(CATCH_UP_SECONDS, self.returned_at - self.since_seconds)

    def __str__(self) -> str:
        return f"{self.lost} of {self.nodes} nodes lost their usage together"


def usage_outage(
    now: float,
    as_of_seconds: FloatArray,
    window_seconds: FloatArray,
    is_fresh: BoolArray,
    has_node: BoolArray,
    running: UsageOutage | None = None,
) -> UsageOutage | None:
    """The outage at `now`, UTC seconds; None without one.

    Arrays are (nodes,): the end of each last window (NaN: never reported), its length, whether it
    is fresh, and whether the node has a Node record. Nodes without a record do not count, except
    where no node has one.

    An outage begins when more nodes lost their usage together than have fresh usage. The `running`
    outage ends when three quarters of the nodes have fresh usage, not counting those that were
    silent before it. It also ends some time after no more nodes are lost than have fresh usage: the
    pipeline works again, and nodes that do not return are silent on their own. That time is as long
    as the outage had lasted, at least `CATCH_UP_SECONDS`: workers catch up at different speeds, and
    one that reads twice as fast as windows arrive needs no longer.

    The begin depends on the ends of windows alone. Only the outage that runs is remembered: an
    extender that starts while workers catch up may decide otherwise than the others.
    """
    if has_node.any():
        as_of_seconds = np.where(has_node, as_of_seconds, np.nan)
        is_fresh = is_fresh & has_node
    fresh = int(is_fresh.sum())
    is_silent = ~is_fresh & np.isfinite(as_of_seconds)
    nodes = fresh + int(is_silent.sum())
    if running is not None:
        lost = int(running.affects(as_of_seconds, is_fresh).sum())
        returned_at = None
        if lost <= fresh:
            returned_at = now if running.returned_at is None else min(running.returned_at, now)
        running = running._replace(lost=lost, nodes=nodes, returned_at=returned_at)
        if lost > _UNRECOVERED_SHARE * (lost + fresh) and now < running.ends_by:
            return running
    if nodes - fresh <= fresh:
        return None
    since = _common_end(as_of_seconds[is_silent], window_seconds[is_silent], fresh)
    if since is None:
        return None
    began = UsageOutage(since, 0, nodes)
    return began._replace(lost=int(began.affects(as_of_seconds, is_fresh).sum()))


def _common_end(as_of_seconds: FloatArray, window_seconds: FloatArray, fresh: int) -> float | None:
    """The first end of the largest group of silent nodes whose windows ended together; None if it
    has no more nodes than are `fresh`.

    With no node fresh, a group of less than half of the silent nodes is no reason to refuse the
    others: all are lost.
    """
    if not len(as_of_seconds):
        return None
    order = np.argsort(as_of_seconds)
    ends, windows = as_of_seconds[order], np.nan_to_num(window_seconds[order])
    spans = np.maximum(TOGETHER_SECONDS, 2 * np.minimum(windows, _LONGEST_WINDOW_SECONDS))
    is_apart = ends[1:] > np.maximum.accumulate(ends + spans)[:-1]
    firsts = np.concatenate(([0], np.flatnonzero(is_apart) + 1))
    sizes = np.diff(firsts, append=len(ends))
    # The latest of equal groups: nodes that fell silent before it did so on their own.
    group = len(sizes) - 1 - int(sizes[::-1].argmax())
    if sizes[group] <= fresh:
        return None
    is_most = fresh > 0 or 2 * sizes[group] >= len(ends)
    return float(ends[firsts[group] if is_most else 0])
