"""Choose pods of a node to evict so that another pod fits: as few and as cheap as possible.

Free leaves before Batch, Batch before Mid; lower priority before higher; among equals the pod that
frees most. `fits` says whether the pod fits without some pods; if it fits, it must also fit without
more of them.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.placement.preemption_order import rank

PUSHED_OUT: Final = ("free", "batch", "mid")
"""Classes of pods that may be evicted for Prod."""
AT_MOST: Final = 10
"""The largest number of pods that leave for one."""
SETTLE_SECONDS: Final = 120.0
"""After this time no window includes usage of pods that left."""

Fits = Callable[[Sequence[int]], bool]


class Cost(NamedTuple):
    """The cost of pods that leave, the most important part first; the lowest is best."""

    rank: int
    priority: int
    pods: int


def eviction_order(
    classes: Sequence[str], priorities: Sequence[int], frees: Sequence[float]
) -> list[int]:
    """The positions of pods in the order in which they leave.

    >>> eviction_order(["mid", "batch", "batch", "free"], [7000, 5500, 5000, 9000], [9, 1, 1, 0.1])
    [3, 2, 1, 0]
    """
    keys = [
        (rank(pod_class), priority, -frees, position)
        for position, (pod_class, priority, frees) in enumerate(
            zip(classes, priorities, frees, strict=True)
        )
    ]
    return [position for *_, position in sorted(keys)]


def fewest_victims(order: Sequence[int], fits: Fits) -> list[int] | None:
    """The pods in `order` that have to leave; None if all of them are not enough, or more than
    `AT_MOST` would have to.

    Bisection finds how many have to leave in order, because `fits` evaluates the whole filter. Then
    pods whose departure turned out to be unnecessary stay.

    >>> fewest_victims([4, 2, 7], lambda gone: 7 in gone)
    [7]
    """
    if not fits(order):
        return None
    enough, too_few = len(order), -1
    while enough - too_few > 1:
        middle = (enough + too_few) // 2
        if fits(order[:middle]):
            enough = middle
        else:
            too_few = middle
    victims = [*order[:enough]]
    # From the most important on: a pod that need not leave stays.
    for position in reversed(order[:enough]):
        others = [other for other in victims if other != position]
        if fits(others):
            victims = others
    return victims if len(victims) <= AT_MOST else None


def cost(classes: Sequence[str], priorities: Sequence[int]) -> Cost:
    """The cost of pods of these classes and priorities that leave."""
    return Cost(max(map(rank, classes), default=0), max(priorities, default=0), len(classes))


def shares(groups: IntArray, used: FloatArray, estimates: IntArray) -> FloatArray:
    """Each pod's share, (pods, resources), of the usage of its group, `used` (groups, resources):
    in proportion to `estimates` (pods, resources), in equal parts if these are 0. Unknown usage is
    0, so that nobody leaves for it.

    >>> shares(np.array([0, 0]), np.array([[6.0]]), np.array([[1], [2]])).tolist()
    [[2.0], [4.0]]
    """
    known = np.where(np.isfinite(used) & (used > 0), used, 0.0)
    pods = np.bincount(groups, minlength=len(used))[groups]
    result = np.empty(estimates.shape)
    for resource in range(estimates.shape[1]):
        expected = estimates[:, resource].astype(np.float64)
        total = np.bincount(groups, expected, minlength=len(used))[groups]
        part = np.where(total > 0, expected / np.where(total > 0, total, 1.0), 1.0 / pods)
        result[:, resource] = part * known[groups, resource]
    return result
