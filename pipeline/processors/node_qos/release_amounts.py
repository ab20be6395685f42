"""How much usage, or how many requests, should leave a node that is above a threshold.

Koordinator's formulas for `CPUEvict`, `MemoryEvict`, `CPUAllocatableEvict` and
`MemoryAllocatableEvict`. Amounts are whole millicores or bytes. Percentages are not rounded on the
way: what is released ends at the lower mark.
"""

from typing import Final, NamedTuple

_DEFAULT_GAP_PERCENT: Final = 2


class Marks(NamedTuple):
    """Evictions begin at the threshold and end at the lower mark, both in percent."""

    threshold_percent: int
    lower_percent: int


def usage_marks(threshold_percent: int | None, lower_percent: int | None) -> Marks | None:
    """The marks of a policy; the lower one is two percent below the threshold if it is not stated.
    None without a threshold, or if the lower mark is not below it."""
    if threshold_percent is None:
        return None
    if lower_percent is None:
        lower_percent = max(threshold_percent - _DEFAULT_GAP_PERCENT, 0)
    return _valid(Marks(threshold_percent, lower_percent))


def allocatable_marks(threshold_percent: int | None, lower_percent: int | None) -> Marks | None:
    """The marks of a policy, which must state both; None if it does not, or if the lower mark is
    not below the threshold."""
    if threshold_percent is None or lower_percent is None:
        return None
    return _valid(Marks(threshold_percent, lower_percent))


def _valid(marks: Marks) -> Marks | None:
    return marks if 0 <= marks.lower_percent < marks.threshold_percent else None


def usage_release(used: int, capacity: int, marks: Marks, *, has_begun: bool = False) -> int:
    """Usage that should leave: down to the lower mark, if usage has reached the threshold or the
    eviction `has_begun`. 0 for a node without capacity."""
    if capacity <= 0 or not (has_begun or used * 100 >= marks.threshold_percent * capacity):
        return 0
    return max(used - marks.lower_percent * capacity // 100, 0)


def request_release(
    requested: int, allocatable: int, marks: Marks, *, has_begun: bool = False
) -> int:
    """Requests that should leave: down to the lower mark, if they exceed the threshold or the
    eviction `has_begun`. Of a node that offers nothing everything should leave."""
    if allocatable <= 0:
        return requested
    if not (has_begun or requested * 100 > marks.threshold_percent * allocatable):
        return 0
    return max(requested - marks.lower_percent * allocatable // 100, 0)
