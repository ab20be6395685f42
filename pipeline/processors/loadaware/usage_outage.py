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
_DAY_SECONDS: Final = 86_400.0
"""The longest such time."""


class UsageOutage(NamedTuple):
    """Most nodes that had fresh usage lost it together: `lost` of `nodes` with any usage; windows
    that ended at `since_seconds` or later count as lost.

    `returned_at` is when no more nodes were lost than had fresh usage for the first time since the
    loss; None until then. Nodes whose windows had ended by `settled_seconds` were silent at that
    moment, or at the end of the outage: they begin no other outage. An outage that `is_over`
    affects no node, and is kept for this alone.
    """

    since_seconds: float
    lost: int
    nodes: int
    returned_at: float | None = None
    settled_seconds: float = -math.inf
    is_over: bool = False

    def affects(self, as_of_seconds: FloatArray, is_fresh: BoolArray) -> BoolArray:
        """Which nodes lost their usage by this outage; NaN (never reported) is none of them."""
        with np.errstate(invalid="ignore"):
            lost: BoolArray = ~is_fresh & (as_of_seconds >= self.since_seconds) & (not self.is_over)
        return lost

    @property
    def ends_by(self) -> float:
        """When the outage ends if no more nodes are lost than have fresh usage, UTC seconds."""
        if self.returned_at is None:
            return math.inf
        lasted = self.returned_at - self.since_seconds
        return self.returned_at + min(max(CATCH_UP_SECONDS, lasted), _DAY_SECONDS)

    def __str__(self) -> str:
        return f"{self.lost} of {self.nodes} nodes lost their usage together"


def usage_outage(
    now: float,
    as_of_seconds: FloatArray,
    window_seconds: FloatArray,
    is_fresh: BoolArray,
    has_node: BoolArray,
    last: UsageOutage | None = None,
) -> UsageOutage | None:
    """The outage at `now`, UTC seconds, or the last one, which `is_over`; None before the first.

    Arrays are (nodes,): the end of each last window (NaN: never reported), its length, whether it
    is fresh, and whether the node has a Node record. Nodes without a record do not count, except
    where no node has one. `last` is the previous result.

    An outage begins when more nodes lost their usage together than have fresh usage. It ends when
    three quarters of the nodes have fresh usage, not counting those that were silent before it. It
    also ends some time after no more nodes are lost than have fresh usage: the pipeline works
    again, and nodes that do not return are silent on their own. That time is as long as the outage
    had lasted, at least `CATCH_UP_SECONDS` and at most a day: workers catch up at different speeds,
    and one that reads twice as fast as windows arrive needs no longer. Nodes that fall silent
    meanwhile do not extend it, unless most fresh nodes are lost together again. Then the outage
    restarts, with its nodes of the last day.

    The begin depends on the ends of windows alone, and on the last outage: an extender that starts
    while workers catch up may decide otherwise than the others.
    """
    counted = int(np.count_nonzero(has_node))
    if counted:
        is_fresh = is_fresh & has_node
    fresh = int(np.count_nonzero(is_fresh))
    if last is None and 2 * fresh >= (counted or len(is_fresh)):
        return None
    if counted:
        as_of_seconds = np.where(has_node, as_of_seconds, np.nan)
    is_silent = ~is_fresh & np.isfinite(as_of_seconds)
    nodes = fresh + int(is_silent.sum())
    if last is not None:
        last = _continued(last, now, as_of_seconds, is_fresh)._replace(nodes=nodes)
        if not last.is_over and last.returned_at is None:
            return last
        is_lost = is_silent & (as_of_seconds > last.settled_seconds)
        # Without any fresh node, the nodes of the last outage take pods again.
        is_silent = is_lost if fresh or is_lost.any() else is_silent
    since = _common_end(as_of_seconds[is_silent], window_seconds[is_silent], fresh)
    if since is None:
        return last
    if last is not None and not last.is_over:
        since = min(since, max(last.since_seconds, since - _DAY_SECONDS))
    began = UsageOutage(since, 0, nodes)
    return began._replace(lost=int(began.affects(as_of_seconds, is_fresh).sum()))


def _continued(
    last: UsageOutage, now: float, as_of_seconds: FloatArray, is_fresh: BoolArray
) -> UsageOutage:
    """The last outage at `now`, without a new loss."""
    settled = min(last.settled_seconds, now)
    if last.is_over:
        return last._replace(settled_seconds=settled)
    lost, fresh = int(last.affects(as_of_seconds, is_fresh).sum()), int(is_fresh.sum())
    # Windows of a clock that is ahead would settle all that follow.
    is_silent = ~is_fresh & (as_of_seconds <= now)
    silent_until = float(as_of_seconds[is_silent].max(initial=-math.inf))
    last = last._replace(lost=lost, settled_seconds=settled)
    if lost <= fresh:
        if last.returned_at is None:
            last = last._replace(returned_at=now, settled_seconds=silent_until)
        else:
            last = last._replace(returned_at=min(last.returned_at, now))
    is_most = lost > _UNRECOVERED_SHARE * (lost + fresh)
    if is_most and (lost > fresh or now < last.ends_by):
        return last
    return last._replace(lost=0, settled_seconds=silent_until, is_over=True)


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
