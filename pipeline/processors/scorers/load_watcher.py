"""What plugins of Trimaran read of a node in a document of load-watcher (scheduling 3).

Types and operators are compared letter by letter, as the plugins do it. Values are in percent of
the node's capacity.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

AVERAGE: Final = "AVG"
DEVIATION: Final = "STD"
LATEST: Final = "Latest"


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One value of a node: `type` is CPU, Memory, ..., `operator` AVG, STD, Latest or empty."""

    name: str = ""
    type: str
    operator: str = ""
    rollup: str = ""
    value: float


class Spread(NamedTuple):
    """Average and deviation in percent of capacity."""

    average: float
    deviation: float


def latest_of(type: str, metrics: Iterable[Metric], *, first: bool = False) -> float | None:
    """What TargetLoadPacking takes for usage, the last average or latest value, or the `first` one,
    as Peaks does; None without one."""
    found = [one.value for one in metrics if one.type == type and one.operator in _USAGE]
    return found[0 if first else -1] if found else None


_USAGE: Final = (AVERAGE, LATEST)


def average_of(type: str, metrics: Iterable[Metric]) -> Spread | None:
    """What LoadVariationRiskBalancing and LowRiskOverCommitment take: an average before any other
    value, and the deviation; 0 for what is missing of a type that is there at all, else None."""
    of_type = [one for one in metrics if one.type == type]
    if not of_type:
        return None
    by_operator = {one.operator: one.value for one in of_type}
    others = (one.value for one in reversed(of_type) if one.operator in ("", LATEST))
    average = by_operator.get(AVERAGE, next(others, 0.0))
    return Spread(average, by_operator.get(DEVIATION, 0.0))
