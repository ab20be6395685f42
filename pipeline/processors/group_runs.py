"""Cut grouped items into runs of whole groups, so that arrays of a run fit into the CPU cache."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from pipeline.processors.arrays import IntArray


def group_runs(starts: IntArray, count: int, size: int) -> Iterator[tuple[slice, slice]]:
    """Yield the groups and the items of each run of about `size` items, at least one run.

    The items of group i begin at `starts[i]`, ascending from 0; the last group ends at `count`.
    """
    bounds = np.append(starts, count)
    cuts = np.flatnonzero(np.diff(starts // size)) + 1
    for first, end in pairwise([0, *cuts.tolist(), len(starts)]):
        yield slice(first, end), slice(int(bounds[first]), int(bounds[end]))
