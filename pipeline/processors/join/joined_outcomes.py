"""The outcomes of node pools, for the windows that have them.

Which record is known when a sample is joined is chance. The window keeps what was known, so that
peaks are a function of windows alone.
"""

from typing import Final

from pipeline.topics.pool_outcomes import LONGEST_MS, PoolOutcomesRecord

INTERVAL_MS: Final = 1_800_000
"""A record is as large as many windows, and changes slowly: a node needs it every half hour."""


def joined_outcomes(
    known: PoolOutcomesRecord | None, window_start_ms: int, window_end_ms: int
) -> PoolOutcomesRecord | None:
    """The outcomes of its pool that a window has: those that are known if a half hour of UTC ends
    in the window, and not from long before or, as for windows of a backlog, after it."""
    if known is None or window_end_ms // INTERVAL_MS == window_start_ms // INTERVAL_MS:
        return None
    return known if abs(window_end_ms - known.at_ms) <= LONGEST_MS else None
