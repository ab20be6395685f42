"""Whom to push out for a pod: Batch before Mid before Prod, and nobody for nothing."""

from collections.abc import Mapping, Sequence
from typing import Final

_RANKS: Final[Mapping[str, int]] = {"free": 0, "batch": 1, "mid": 2}
_HIGHEST: Final = 3


def rank(pod_class: str | None) -> int:
    """How dear a pod of this class is; one of no class, or of which nobody knows, as dear as Prod.

    >>> [rank(name) for name in ("free", "batch", "mid", "prod", "none", None)]
    [0, 1, 2, 3, 3, 3]
    """
    return _HIGHEST if pod_class is None else _RANKS.get(pod_class, _HIGHEST)


def least_dear(victims: Mapping[str, tuple[int, Sequence[str | None]]]) -> list[str]:
    """The nodes, in their order, on which the fewest disruption budgets are broken, and of these
    those whose dearest victim is no dearer than that of any other: by that number and the classes
    of the pods that would be evicted from each.

    >>> least_dear({"a": (1, ["batch"]), "b": (0, ["mid"]), "c": (0, ["mid", "batch"])})
    ['b', 'c']
    """
    dearest = {
        node: (broken, max(map(rank, classes), default=0))
        for node, (broken, classes) in victims.items()
    }
    lowest = min(dearest.values(), default=(0, 0))
    return [node for node, dear in dearest.items() if dear == lowest]
