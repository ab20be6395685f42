"""Tell an outage of the usage pipeline from nodes that fell silent on their own.

If exporters, Kafka or workers stop, the last windows of most nodes end together. Such nodes are not
at fault: refusing all of them would stop the cluster. A node whose window ended earlier was silent
before the outage, and stays silent.
"""

from typing import Final, NamedTuple

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray

TOGETHER_SECONDS: Final = 120.0
"""Windows that ended within this time, or within two of their lengths, ended together: nodes end
them at different moments, and workers lag differently."""
_RECOVERED_SHARE: Final = 0.25


class UsageOutage(NamedTuple):
    """Most nodes that had fresh usage lost it together: `lost` of `nodes` with any usage; windows
    that ended at `since_seconds` or later count as lost."""

    since_seconds: float
    lost: int
    nodes: int

    def affects(self, as_of_seconds: FloatArray, is_fresh: BoolArray) -> BoolArray:
        """Which nodes lost their usage by this outage; NaN (never reported) is none of them."""
        with np.errstate(invalid="ignore"):
            lost: BoolArray = ~is_fresh & (as_of_seconds >= self.since_seconds)
        return lost

    def __str__(self) -> str:
        return f"{self.lost} of {self.nodes} nodes lost their usage together"


def usage_outage(
    as_of_seconds: FloatArray,
    window_seconds: FloatArray,
    is_fresh: BoolArray,
    *,
    was_outage: bool = False,
) -> UsageOutage | None:
    """The outage at this moment, None without one.

    Arrays are (nodes,): the end of each last window (NaN: never reported), its length, and whether
    it is fresh. An outage begins when more nodes lost their usage together than have fresh usage.
    With `was_outage` it lasts until three quarters of these nodes have fresh usage, so that it does
    not end and begin again while workers catch up.

    The rule depends on the ends of windows alone: a restarted extender decides as the others.
    """
    fresh = int(is_fresh.sum())
    is_silent = ~is_fresh & np.isfinite(as_of_seconds)
    silent = int(is_silent.sum())
    share = _RECOVERED_SHARE if was_outage else 0.5
    if not silent or silent <= share * (silent + fresh):
        return None
    ends = np.sort(as_of_seconds[is_silent])
    window = float(np.nan_to_num(np.nanmedian(window_seconds[is_silent])))
    span = max(TOGETHER_SECONDS, 2 * window)
    together = np.searchsorted(ends, ends + span, side="right") - np.arange(len(ends))
    # The latest of equal groups: nodes that fell silent before it did so on their own.
    first = len(ends) - 1 - int(together[::-1].argmax())
    lost = len(ends) - first
    if fresh and together[first] <= share * (together[first] + fresh):
        return None
    return UsageOutage(float(ends[first]), lost, silent + fresh)
