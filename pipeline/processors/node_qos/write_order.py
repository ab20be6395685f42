"""Order writes to a tree of cgroups so that the kernel accepts each of them.

The kernel refuses a burst above the quota of the same cgroup. In v1 it also refuses a child's quota
above its parent's and a child's CPUs outside of its parent's, in whichever of the two is written;
in v2 it accepts them, and the parent limits the child all the same. So values change in two passes:

1. from parent to child, what becomes wider; CPU sets to the union of old and new;
2. from child to parent, the final values of all others.

No value is ever wider than the wider of its old and its new one, except for CPU sets that move.
"""

from collections.abc import Iterator, Mapping, Set
from typing import Final, NamedTuple

from pipeline.processors.node_qos.cgroup_values import UNLIMITED, Knob, Place, Value, is_wider


class Write(NamedTuple):
    place: Place
    value: Value


class WriteOrder(NamedTuple):
    """The writes of both passes; all of `widening` come before those of `narrowing`."""

    widening: list[Write]
    narrowing: list[Write]


NESTED: Final = frozenset({Knob.CPU_QUOTA, Knob.CPUSET})
"""What a child may not have more of than its parent, in v1."""

_RANKS: Final = {Knob.CPU_IDLE: 0, Knob.CPU_SHARES: 1, Knob.CPU_QUOTA: 2, Knob.CPU_BURST: 3}
"""Order within a cgroup when it widens: leaving `cpu.idle` resets the shares, and the quota is
raised before the burst. It is the reverse when it narrows."""


def order_writes(
    current: Mapping[Place, Value], desired: Mapping[Place, Value], nested: Set[Knob] = NESTED
) -> WriteOrder:
    """The writes that lead from `current` to `desired`; `nested` are those of `NESTED` that are in
    a v1 hierarchy.

    Places without a current value are not written. `current` may have further places: they keep
    their value unless a desired one rules it out. So a nested value or a burst that exceeds what
    the parent or the quota will allow is lowered to that, desired or not.

    Shares are neither compared nor written while `cpu.idle` holds, which implies them.
    """
    targets = final_values(current, desired, nested)
    now = dict(current)
    widening = []
    for place, target in targets.items():
        value = _widened(place.knob, now[place], target)
        if value != now[place] or _are_reset(place, now, current, desired):
            widening.append(Write(place, value))
            now[place] = value
    narrowing = [
        Write(place, target) for place, target in reversed(targets.items()) if target != now[place]
    ]
    return WriteOrder(widening, narrowing)


def final_values(
    current: Mapping[Place, Value], desired: Mapping[Place, Value], nested: Set[Knob] = NESTED
) -> dict[Place, Value]:
    """The values of all current places after the writes, parents before children."""
    targets: dict[Place, Value] = {}
    limits: dict[str, Value] = {}  # quotas of the paths so far, with those of their parents
    for place in sorted(current, key=_parents_first):
        wanted = desired.get(place, current[place])
        match place.knob:
            case Knob.CPUSET if Knob.CPUSET in nested:
                targets[place] = _within_parent(place, wanted, targets)
            case Knob.CPU_QUOTA if Knob.CPU_QUOTA in nested:
                paths = parent_paths(place.path)
                limit = next((limits[path] for path in paths if path in limits), UNLIMITED)
                limits[place.path] = min(wanted, limit, key=_number)
                targets[place] = wanted if wanted == UNLIMITED else limits[place.path]
            case Knob.CPU_BURST:
                quota = targets.get(place._replace(knob=Knob.CPU_QUOTA), UNLIMITED)
                targets[place] = min(wanted, quota, key=_number)
            case Knob.CPU_SHARES if targets.get(place._replace(knob=Knob.CPU_IDLE)) == 1:
                targets[place] = current[place]
            case _:
                targets[place] = wanted
    return targets


def parent_paths(path: str) -> Iterator[str]:
    """The paths above a path, nearest first, with the root; none for the root."""
    while path:
        path = path.rpartition("/")[0]
        yield path


def _widened(knob: Knob, now: Value, target: Value) -> Value:
    if not is_wider(knob, target, now):
        return now
    if isinstance(now, frozenset) and isinstance(target, frozenset):
        return now | target
    return target


def _are_reset(
    place: Place,
    now: Mapping[Place, Value],
    current: Mapping[Place, Value],
    desired: Mapping[Place, Value],
) -> bool:
    """Whether leaving `cpu.idle`, in this pass, resets desired shares."""
    idle = place._replace(knob=Knob.CPU_IDLE)
    left_idle = current.get(idle) == 1 and now[idle] == 0
    return place.knob is Knob.CPU_SHARES and left_idle and place in desired


def _within_parent(place: Place, wanted: Value, targets: Mapping[Place, Value]) -> Value:
    """The wanted CPUs that the nearest parent with CPUs has; all of its CPUs if it has none of
    them, because a cgroup must be able to run. An empty set, which is none of its own, stays."""
    for path in parent_paths(place.path):
        allowed = targets.get(place._replace(path=path))
        if isinstance(allowed, frozenset) and isinstance(wanted, frozenset) and allowed:
            return (wanted & allowed or allowed) if wanted else wanted
    return wanted


def _number(value: Value) -> int:
    if isinstance(value, int):
        return value
    raise TypeError(f"{value} is not a number")


def _parents_first(place: Place) -> tuple[int, str, int, Place]:
    depth = place.path.count("/") + 1 if place.path else 0
    return depth, place.path, _RANKS.get(place.knob, len(_RANKS)), place
