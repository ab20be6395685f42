"""What the node actuator holds on a node now, value by value, in lines of text.

A record of actions sums up changes of up to a minute, and names the first places of many. So the
newest record about a place has its present value, as far as records name it.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from pipeline.processors.explain.text_columns import align_columns
from pipeline.topics.actions import ActionRecord

ACTUATOR: Final = "node-actuator"
_HEADERS: Final = ("CGROUP", "LIMIT", "BEFORE", "NOW", "FEATURE", "OUTCOME", "SINCE", "WHY")


class HeldValue(NamedTuple):
    """A value of a cgroup, what it replaced, and the action about it."""

    cgroup: str
    limit: str
    before: str | None
    now: str | None
    action: ActionRecord


def held_values(actions: Iterable[ActionRecord]) -> list[HeldValue]:
    """The newest value of each limit that `actions` of one node name, by cgroup; those that were
    restored are left out."""
    newest: dict[str, HeldValue] = {}
    for action in sorted(actions, key=lambda action: action.at):
        if action.actuator != ACTUATOR:
            continue
        for place, after in action.after.items():
            cgroup, _, limit = place.partition(" ")
            newest[place] = HeldValue(cgroup, limit, action.before.get(place), after, action)
    return [newest[place] for place in sorted(newest) if newest[place].action.action != "restore"]


def explain_qos(node: str, actions: Iterable[ActionRecord]) -> Iterator[str]:
    """The lines of `springtide explain NODE --qos`."""
    values = held_values(actions)
    if not values:
        yield f"{node}: the node actuator holds nothing here, or no node actuator runs"
        return
    rows = [
        (
            value.cgroup, value.limit, value.before or "?", value.now or "?", value.action.action,
            value.action.outcome, value.action.at, value.action.error or value.action.why,
        )
        for value in values
    ]  # fmt: skip
    yield from align_columns([_HEADERS, *rows])
