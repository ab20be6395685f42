"""Alerts of the planner: opened once, and closed when what they are about ends. They are about hot
nodes that cannot be relieved, and about levels of usage that changed.

The planner, the notifier and commands read them from their topic in the same way. An alert is open
while its newest record is no end of it and is repeated now and then.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple, cast

import msgspec

from pipeline.times import format_time, parse_time
from pipeline.topics.alerts import (
    FORGOTTEN_SECONDS,
    PLANNER_RULES,
    REPEAT_SECONDS,
    AlertRecord,
    CloseReason,
    LevelChange,
    LevelRule,
    ReliefRule,
    alert_id,
)
from pipeline.topics.result_header import Position

MOST_OPEN: Final = 10_000
"""Alerts that are open at once; further ones are not opened."""
_MOST_WHY: Final = 1_000
_CRITICAL: Final = "all_nodes_hot"


class Subject(NamedTuple):
    """What an alert is about: a rule, and a node, a workload, or (without both) a pool."""

    rule: ReliefRule | LevelRule
    node: str
    pool: str = ""
    workload: str = ""


class Hopeless(NamedTuple):
    """A subject for which nothing can be done, or whose usage changed, and why."""

    subject: Subject
    pool: str
    why: str
    change: LevelChange | None = None


class ReliefAlerts:
    """The alerts that are open. Times are those of one clock: of a reader its monotonic seconds, of
    the planner, which writes them, Unix times; `shift` when it is set. Only alerts of `rules`
    count.

    Positions of ends are remembered: a topic is read again, and a planner that lost its lease may
    repeat an alert that the next one has closed."""

    def __init__(self, rules: Collection[str] = PLANNER_RULES) -> None:
        self._rules = rules
        self._newest: dict[Subject, AlertRecord] = {}
        self._seen_at: dict[Subject, float] = {}
        self._ends: OrderedDict[Subject, Position] = OrderedDict()

    def __len__(self) -> int:
        return len(self._newest)

    def take(self, record: AlertRecord, now: float) -> bool:
        """Take a record of the topic; False if it is of another rule, or older than what is
        known."""
        if record.rule not in self._rules:
            return False
        subject = subject_of(record)
        known, end = self._newest.get(subject), self._ends.get(subject)
        if known is not None and record.position < known.position:
            return False
        if end is not None and record.position <= end:
            return False
        if record.transition == "closed":
            self._end(subject, record.position)
        elif known is not None or len(self._newest) < MOST_OPEN:
            self._newest[subject], self._seen_at[subject] = record, now
        return True

    def shift(self, seconds: float) -> None:
        """Let every alert keep its age when the clock is set by so many seconds."""
        self._seen_at = {subject: at + seconds for subject, at in self._seen_at.items()}

    def open(self, now: float) -> list[AlertRecord]:
        """The newest record of each open alert, in order of their ids."""
        for subject in [s for s, at in self._seen_at.items() if now - at > FORGOTTEN_SECONDS]:
            self._drop(subject)
        return sorted(self._newest.values(), key=lambda record: record.id)

    def opened(self, hopeless: Iterable[Hopeless], now: float) -> list[AlertRecord]:
        """Open an alert for each of these that has none; returns the records to be written."""
        records = []
        for subject, pool, why, change in hopeless:
            if subject in self._newest or len(self._newest) >= MOST_OPEN:
                continue
            record = _record(subject, pool, why, now, self._ends.get(subject), change)
            self._newest[subject], self._seen_at[subject] = record, now
            records.append(record)
        return records

    def closed(
        self, reason_of: Callable[[Subject, str], CloseReason | None], now: float
    ) -> list[AlertRecord]:
        """Close alerts; returns the records to be written. `reason_of` takes a subject and its
        pool; None leaves the alert open."""
        records = []
        for subject, record in [*self._newest.items()]:
            if (reason := reason_of(subject, record.pool)) is not None:
                records.append(_ended(record, reason, now))
                self._end(subject, records[-1].position)
        return records

    def repeats(self, now: float) -> list[AlertRecord]:
        """The records that are to be written again."""
        due = [s for s, at in self._seen_at.items() if now - at >= REPEAT_SECONDS]
        for subject in due:
            self._seen_at[subject] = now
        return [self._newest[subject] for subject in due]

    def _end(self, subject: Subject, position: Position) -> None:
        self._drop(subject)
        self._ends[subject] = position
        self._ends.move_to_end(subject)
        if len(self._ends) > MOST_OPEN:
            self._ends.popitem(last=False)

    def _drop(self, subject: Subject) -> None:
        self._newest.pop(subject, None)
        self._seen_at.pop(subject, None)


def may_be_relief_alert(value: bytes) -> bool:
    """Whether the value of a record may be such an alert: most are about usage."""
    return any(rule.encode() in value for rule in PLANNER_RULES)


def subject_of(record: AlertRecord) -> Subject:
    """What a record of the planner is about."""
    rule = cast(ReliefRule | LevelRule, record.rule)
    pool = "" if record.node or record.workload else record.pool
    return Subject(rule, record.node, pool, record.workload)


def _record(
    subject: Subject, pool: str, why: str, now: float, end: Position | None,
    change: LevelChange | None,
) -> AlertRecord:  # fmt: skip
    """The record that opens an alert; `end` is the last one's end."""
    since = format_time(now)
    # A clock that was set back must not let it look older than that.
    offset = max(round(1000 * now), 0 if end is None else end[1] + 1)
    return AlertRecord(
        node=subject.node,
        as_of=since,
        generation=0,
        offset=offset,
        epoch=0,
        id=alert_id(
            subject.node or subject.workload or f"pool {subject.pool}", subject.rule, since
        ),
        rule=subject.rule,
        transition="opened",
        severity="critical" if subject.rule == _CRITICAL else "warning",
        since=since,
        duration_seconds=0.0,
        pool=pool,
        workload=subject.workload,
        change=change,
        why=why[:_MOST_WHY],
    )


def _ended(record: AlertRecord, reason: CloseReason, now: float) -> AlertRecord:
    # A clock that was set back must not let the end look older than the begin.
    offset = max(round(1000 * now), record.offset + 1)
    return msgspec.structs.replace(
        record,
        as_of=format_time(now),
        offset=offset,
        transition="closed",
        reason=reason,
        duration_seconds=max(now - parse_time(record.since), 0.0),
    )
