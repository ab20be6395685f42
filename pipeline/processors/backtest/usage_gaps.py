"""Gaps in series of usage: the last sample is held for an hour, then usage is unknown."""

from typing import Final

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray

HELD_SECONDS: Final = 3600
"""How long a sample stands for the missing ones after it."""


def hold_samples(usage: FloatArray, lengths: IntArray, step_seconds: int) -> FloatArray:
    """Fill the first `HELD_SECONDS` of each gap with the last sample before it.

    What is filled depends on the past alone. `usage` (m,) are the samples of all series one after
    the other, NaN unknown, and `lengths` (s,) how many each series has.
    """
    unknown = np.isnan(usage)
    if not unknown.any():
        return usage
    position = np.arange(len(usage))
    begin = (np.cumsum(lengths) - lengths).repeat(lengths)
    last = np.maximum.accumulate(np.where(unknown, -1, position))
    is_held = unknown & (last >= begin) & ((position - last) * step_seconds <= HELD_SECONDS)
    held = usage.copy()
    held[is_held] = usage[last[is_held]]
    return held


def gap_note(resource: str, unknown: BoolArray, lengths: IntArray, step_seconds: int) -> str:
    """Report what is still unknown: `unknown` (m,) of series with these `lengths` (s,). Empty
    without any."""
    if not unknown.any():
        return ""
    starts = unknown.copy()
    starts[1:] &= ~unknown[:-1]
    first = (np.cumsum(lengths) - lengths)[lengths > 0]
    starts[first] = unknown[first]
    owners = np.arange(len(lengths)).repeat(lengths)
    hours = unknown.sum() * step_seconds / 3600
    gaps = int(starts.sum())
    return (
        f"{resource} is unknown for {hours:,.1f} h, in {gaps:,} gap{'s' * (gaps > 1)} of "
        f"{len(np.unique(owners[unknown])):,} series"
    )
