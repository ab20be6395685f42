"""Decide which alerts about levels of usage open and end, as of the last hour."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple, cast

import numpy as np

from pipeline.processors.descheduling.relief_alerts import Hopeless, Subject, subject_of
from pipeline.processors.explain.quantity_text import format_bytes, format_cpu
from pipeline.processors.usage_levels.hourly_usage import HourlyUsage, UsageSubject
from pipeline.processors.usage_levels.level_changes import (
    AGE_HOURS,
    DETECTOR,
    HOLD_HOURS,
    level_changes,
)
from pipeline.times import format_time, parse_time
from pipeline.topics.alerts import AlertRecord, CloseReason, LevelChange, LevelRule
from pipeline.topics.hourly_usage import HOUR_SECONDS

MOST_NEW: Final = 20
"""Alerts about workloads that one hour opens; of more, those that changed most."""
_NAMED: Final = 3
_RESOURCES: Final = ("cpu", "memory")
SMALLEST: Final = {"pool": (0.05, 0.05), "workload": (0.05, 64.0 * 2**20)}
"""Smallest change of cpu and memory: of a pool a share of allocatable, of a pod cores and bytes."""

OPENED_HOURS: Final = {"pool": AGE_HOURS, "workload": 2 * HOLD_HOURS}
"""A change that is as old opens no alert: it is learned in the same hour, or was held back while
its pool had an alert."""


class Change(NamedTuple):
    """A change of a resource (0 is cpu, 1 memory) of a pool or workload, and its direction."""

    subject: UsageSubject
    resource: int
    direction: int
    level: LevelChange

    @property
    def rule(self) -> LevelRule:
        """The rule of its alert."""
        return cast(LevelRule, f"{self.subject.kind}_{_RESOURCES[self.resource]}_level")

    @property
    def size(self) -> float:
        """How much it changed, whatever the direction."""
        return abs(float(np.log((self.level.after + 1e-9) / (self.level.before + 1e-9))))


class Decision(NamedTuple):
    """Alerts to open, alerts to end and why, and changes of workloads without an alert of their
    own: their pool has one, or too many changed at once."""

    found: list[Hopeless]
    ended: dict[Subject, CloseReason]
    held_back: int


def decide(
    usage: HourlyUsage, main_pools: Mapping[UsageSubject, str], alerts: Iterable[AlertRecord]
) -> Decision:
    """Decide as of the newest hour of `usage`. `main_pools` are those of workloads, `alerts` those
    that are open."""
    known = {subject_of(alert): alert for alert in alerts}
    changes, calm = _changes(usage)
    end = (usage.newest_hour + 1) * HOUR_SECONDS
    ended: dict[Subject, CloseReason] = {}
    for subject, alert in known.items():
        if is_learned(alert, end):
            ended[subject] = "learned"
        elif subject in calm:
            ended[subject] = "returned"
    pools = [change for change in changes if change.subject.kind == "pool"]
    moved = {(change.subject.name, change.resource, change.direction) for change in pools}
    moved.update(_moved_pools(known, ended))
    of_pool: dict[tuple[str, int, int], list[Change]] = {}
    single = []
    for change in changes:
        if change.subject.kind != "workload" or _alert_subject(change) in known:
            continue
        place = main_pools.get(change.subject, ""), change.resource, change.direction
        if place in moved:
            of_pool.setdefault(place, []).append(change)
        else:
            single.append(change)
    single.sort(key=lambda change: (-change.size, change.subject))
    found = [
        _found(change, change.subject.name,
               of_pool.get((change.subject.name, change.resource, change.direction), ()))
        for change in pools if _alert_subject(change) not in known
    ]  # fmt: skip
    found += [_found(change, main_pools.get(change.subject, "")) for change in single[:MOST_NEW]]
    held_back = sum(map(len, of_pool.values())) + max(len(single) - MOST_NEW, 0)
    return Decision(found, ended, held_back)


def is_learned(alert: AlertRecord, now: float) -> bool:
    """Whether the change of an alert is so old that the day before has the new level, too."""
    since = alert.since if alert.change is None else alert.change.since
    return now - parse_time(since) >= AGE_HOURS * HOUR_SECONDS


def _moved_pools(
    known: Mapping[Subject, AlertRecord], ended: Mapping[Subject, CloseReason]
) -> Iterator[tuple[str, int, int]]:
    for subject, alert in known.items():
        if subject.pool and alert.change is not None and subject not in ended:
            direction = 1 if alert.change.after > alert.change.before else -1
            yield subject.pool, int("_memory_" in subject.rule), direction


def _changes(usage: HourlyUsage) -> tuple[list[Change], set[Subject]]:
    """What changed, and the subjects of alerts that would be over."""
    subjects = usage.subjects
    if not subjects:
        return [], set()
    levels = level_changes(usage.values(), np.array([SMALLEST[each.kind] for each in subjects]))
    changes, calm = [], set[Subject]()
    for row, subject in enumerate(subjects):
        for resource in range(2):
            begin = usage.newest_hour + 1 - int(levels.age_hours[row, resource])
            change = Change(
                subject, resource, int(levels.direction[row, resource]),
                LevelChange(
                    since=format_time(begin * HOUR_SECONDS),
                    before=_rounded(levels.before[row, resource]),
                    after=_rounded(levels.after[row, resource]),
                    detector=DETECTOR,
                ),
            )  # fmt: skip
            if change.direction:
                if levels.age_hours[row, resource] < OPENED_HOURS[subject.kind]:
                    changes.append(change)
            elif levels.is_calm[row, resource]:
                calm.add(_alert_subject(change))
    return changes, calm


def _rounded(value: float) -> float:
    return float(f"{np.nan_to_num(value):.4g}")


def _alert_subject(change: Change) -> Subject:
    name = change.subject.name
    if change.subject.kind == "pool":
        return Subject(change.rule, "", pool=name)
    return Subject(change.rule, "", workload=name)


def _found(change: Change, pool: str, others: Iterable[Change] = ()) -> Hopeless:
    """The alert of a change; `others` are workloads of the pool that changed with it."""
    level, resource = change.level, _RESOURCES[change.resource]
    is_pool = change.subject.kind == "pool"
    unit = "of allocatable" if is_pool else "a pod"
    why = (
        f"{resource} usage {'rose' if change.direction > 0 else 'fell'} from "
        f"{_text(change, level.before)} to {_text(change, level.after)} {unit}: compared with the "
        f"same hours of the day before, since {level.since}. Peaks that were learned before are "
        f"too {'low' if change.direction > 0 else 'high'}"
    )
    if names := sorted(others, key=lambda other: (-other.size, other.subject)):
        why += (
            f". {len(names)} of its workloads changed, too, first "
            + ", ".join(other.subject.name for other in names[:_NAMED])
        )  # fmt: skip
    return Hopeless(_alert_subject(change), pool, why, level)


def _text(change: Change, amount: float) -> str:
    if change.subject.kind == "pool":
        return f"{100 * amount:.3g}%"
    return format_cpu(amount) if change.resource == 0 else format_bytes(amount)
