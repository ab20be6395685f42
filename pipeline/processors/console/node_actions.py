"""The last actions about each node: of its node actuator, of the evictor and of the planner.

The cluster actuator's are left out: it writes offers of Mid and Batch, which other documents have,
many times an hour. Memory: at most `MOST_BYTES`. Belongs to one event loop.
"""

import sys
from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from pipeline.errors import InvalidRecordError, KeyMismatchError
from pipeline.topics.actions import ActionRecord, Outcome
from pipeline.topics.codec import decode_json
from pipeline.topics.nodes import check_node_name

ACTIONS_OF_A_NODE: Final = 20
MOST_BYTES: Final = 40_000_000
"""Of all nodes, some 20,000 actions: those of the node whose last action is the oldest are
forgotten first."""
_FRAME_BYTES: Final = 1000
"""Of an action beside its texts and changes, with a node of its own."""
_CHANGES: Final = 8
_TEXT_CHARACTERS: Final = 300
_NAME_CHARACTERS: Final = 120
_ACTUATORS: Final = ("node-actuator", "evictor", "planner")
_QUOTED: Final = tuple(f'"{name}"'.encode() for name in _ACTUATORS)


class ActionChange(msgspec.Struct, frozen=True):
    """A value that an action changed.

    name: What changed: a cgroup file, a pod, or usage.
    before: Its value before, such as the UID of a pod that left; null if it had none.
    after: Its value after; null if it has none.
    """

    name: str
    before: str | None
    after: str | None


class NodeAction(msgspec.Struct, frozen=True, kw_only=True):
    """An action about a node; long texts are cut.

    at_seconds: When the broker got it, in seconds since 1970.
    actuator: Who acted: node-actuator, evictor or planner.
    action: What it did; of the node actuator, its feature.
    outcome: done, failed, refused, intended or marked; observed or recommended if the mode forbids
      the action.
    why: Why it acted.
    error: Why it failed or was refused; empty otherwise.
    plan: The plan that it belongs to; empty if there is none.
    changes: The first values that changed.
    more_changes: The number of further values.
    """

    at_seconds: float
    actuator: str
    action: str
    outcome: Outcome
    why: str
    error: str
    plan: str
    changes: tuple[ActionChange, ...]
    more_changes: int


class _Kept(NamedTuple):
    """An action with what tells it from others, and the bytes of memory that it takes."""

    identity: tuple[float, int]
    size: int
    action: NodeAction


class NodeActions:
    """Actions by node, from records in any order and with repeats. Times are Unix times by the
    broker's clock, but not later than by that of this process."""

    def __init__(self) -> None:
        self._nodes: OrderedDict[str, list[_Kept]] = OrderedDict()
        self.nbytes = 0  # of all actions

    def __len__(self) -> int:
        """Actions of all nodes."""
        return sum(map(len, self._nodes.values()))

    def of(self, node: str) -> list[NodeAction]:
        """The actions about a node, the newest first."""
        known = self._nodes.get(node, ())
        return sorted((each.action for each in known), key=lambda action: -action.at_seconds)

    def take(self, key: bytes | None, value: bytes | None, appended_at: float, now: float) -> bool:
        """Take a record of actions that the broker appended at this time; False if it is of another
        actuator or known. Raises `RecordError`."""
        # Most actions are of the cluster actuator.
        if value is None or not any(quoted in value for quoted in _QUOTED):
            return False
        record = decode_json(ActionRecord, value)
        # The evictor marks the log by records of no node.
        if record.actuator not in _ACTUATORS or not record.node:
            return False
        check_node_name(record.node)
        if record.node.encode() != key:
            raise KeyMismatchError(f"payload is about {record.node[:80]!r}, key {key!r:.100}")
        action = _shown(record, min(appended_at, now))
        # Not by its time, which is another one if it is read again and a clock was behind.
        kept = _Kept((appended_at, hash(value)), _size(action), action)
        known = self._nodes.setdefault(record.node, [])
        if any(each.identity == kept.identity for each in known):
            return False
        known.append(kept)
        self._nodes.move_to_end(record.node)
        self.nbytes += kept.size
        if len(known) > ACTIONS_OF_A_NODE:
            oldest = min(known, key=lambda each: each.action.at_seconds)
            known.remove(oldest)
            self.nbytes -= oldest.size
        while self.nbytes > MOST_BYTES:
            _, forgotten = self._nodes.popitem(last=False)
            self.nbytes -= sum(each.size for each in forgotten)
        return True


def _shown(record: ActionRecord, at_seconds: float) -> NodeAction:
    if max(len(record.action), len(record.plan)) > 512:
        raise InvalidRecordError(
            "the name of an action or of its plan has more than 512 characters"
        )
    names = [*dict.fromkeys([*record.before, *record.after])]
    return NodeAction(
        at_seconds=at_seconds,
        actuator=record.actuator,
        action=record.action,
        outcome=record.outcome,
        why=_cut(record.why, _TEXT_CHARACTERS),
        error=_cut(record.error, _TEXT_CHARACTERS),
        plan=record.plan,
        changes=tuple(islice(_changes(record, names), _CHANGES)),
        more_changes=max(len(names) - _CHANGES, 0),
    )


def _size(action: NodeAction) -> int:
    """Bytes of memory, at most: a character takes one to four."""
    changed = (text or "" for change in action.changes for text in msgspec.structs.astuple(change))
    texts = (action.action, action.why, action.error, action.plan, *changed)
    return _FRAME_BYTES + 64 * len(action.changes) + sum(map(sys.getsizeof, texts))


def _changes(record: ActionRecord, names: list[str]) -> Iterator[ActionChange]:
    for name in names:
        values = (record.before.get(name), record.after.get(name))
        before, after = (
            None if value is None else _cut(value, _NAME_CHARACTERS) for value in values
        )
        yield ActionChange(_cut(name, _NAME_CHARACTERS), before, after)


def _cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else f"{text[:characters]}…"
