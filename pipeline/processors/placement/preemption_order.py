"""The order in which pods make room: Free, Batch, Mid, Prod."""

from collections.abc import Mapping, Sequence
from typing import Final

_RANKS: Final[Mapping[str, int]] = {"free": 0, "batch": 1, "mid": 2}
_HIGHEST: Final = 3


def rank(pod_class: str | None) -> int:
    """The rank of a class, 0 leaves first; an unknown class ranks as Prod.

    >>> [rank(name) for name in ("free", "batch", "mid", "prod", "none", None)]
    [0, 1, 2, 3, 3, 3]
    """
    return _HIGHEST if pod_class is None else _RANKS.get(pod_class, _HIGHEST)


def cheapest_victims(victims: Mapping[str, tuple[int, Sequence[str | None]]]) -> list[str]:
    """The nodes with the fewest violated disruption budgets and, among these, the lowest highest
    rank of a victim. `victims` has violations and the classes of victims by node.

    >>> cheapest_victims({"a": (1, ["batch"]), "b": (0, ["mid"]), "c": (0, ["mid", "batch"])})
    ['b', 'c']
    """
    costs = {
        node: (violations, max(map(rank, classes), default=0))
        for node, (violations, classes) in victims.items()
    }
    lowest = min(costs.values(), default=(0, 0))
    return [node for node, cost in costs.items() if cost == lowest]
