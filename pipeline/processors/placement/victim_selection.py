"""Who has to leave a node so that a pod may be there: as few, and as cheap, as will do.

Owes the rest: a choice in which nobody leaves in vain. Free goes before Batch, Batch before Mid;
the lower priority before the higher, and of equals who frees most. `fits` says whether the pod may
be on the node without some of its pods; it must not say no again when more of them are gone.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.placement.preemption_order import rank

PUSHED_OUT: Final = ("free", "batch", "mid")
"""The classes whose pods leave for Prod."""
AT_MOST: Final = 10
"""More than so many pods do not leave for one."""
SETTLE_SECONDS: Final = 120.0
"""After so long the usage of who has left is in no window any more."""

Fits = Callable[[Sequence[int]], bool]


class Cost(NamedTuple):
    """What it costs that pods leave, the most important first; the lowest is best."""

    rank: int
    priority: int
    pods: int


def in_order(
    classes: Sequence[str], priorities: Sequence[int], frees: Sequence[float]
) -> list[int]:
    """The places of the pods of a node in the order in which they would leave.

    >>> in_order(["mid", "batch", "batch", "free"], [7000, 5500, 5000, 9000], [9.0, 1.0, 1.0, 0.1])
    [3, 2, 1, 0]
    """
    keys = [
        (rank(pod_class), priority, -frees, place)
        for place, (pod_class, priority, frees) in enumerate(
            zip(classes, priorities, frees, strict=True)
        )
    ]
    return [place for *_, place in sorted(keys)]


def fewest(order: Sequence[int], fits: Fits) -> list[int] | None:
    """Those of the pods in `order` that have to leave; None where not even all of them would do, or
    more than `AT_MOST` would have to.

    >>> fewest([4, 2, 7], lambda gone: 7 in gone)
    [7]
    """
    if not fits(order):
        return None
    enough, too_few = len(order), -1
    while enough - too_few > 1:
        tried = (enough + too_few) // 2
        if fits(order[:tried]):
            enough = tried
        else:
            too_few = tried
    gone = [*order[:enough]]
    # The dearest first: whoever is not needed stays.
    for one in reversed(order[:enough]):
        rest = [other for other in gone if other != one]
        if fits(rest):
            gone = rest
    return gone if len(gone) <= AT_MOST else None


def cost(classes: Sequence[str], priorities: Sequence[int]) -> Cost:
    """What it costs that pods of these classes and priorities leave."""
    return Cost(max(map(rank, classes), default=0), max(priorities, default=0), len(classes))


def shares(groups: IntArray, used: FloatArray, estimates: IntArray) -> FloatArray:
    """What each pod uses, (pods, resources), of what its group uses, `used` (groups, resources): by
    what the pods of a group are expected to use, `estimates` (pods, resources), in equal parts
    where nothing is expected. What is not known is 0: nobody leaves for that.

    >>> shares(np.array([0, 0]), np.array([[6.0]]), np.array([[1], [2]])).tolist()
    [[2.0], [4.0]]
    """
    known = np.where(np.isfinite(used) & (used > 0), used, 0.0)
    pods = np.bincount(groups, minlength=len(used))[groups]
    found = np.empty(estimates.shape)
    for at in range(estimates.shape[1]):
        expected = estimates[:, at].astype(np.float64)
        total = np.bincount(groups, expected, minlength=len(used))[groups]
        part = np.where(total > 0, expected / np.where(total > 0, total, 1.0), 1.0 / pods)
        found[:, at] = part * known[groups, at]
    return found
