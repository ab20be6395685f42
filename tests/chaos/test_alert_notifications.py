"""The check of notifications finds what a notifier may do wrong."""

from collections.abc import Sequence
from typing import Final

import msgspec
import pytest

from pipeline.times import format_time
from pipeline.topics.alerts import AlertRecord, Severity, Transition, alert_id
from tests.chaos.alert_notifications import Alert, Notifications, notification_problems

AWAY: Final = (1000.0, 1020.0)
WARNING: Final = Alert("n", "node_cpu", "warning", 900.0)
CRITICAL: Final = WARNING._replace(severity="critical")


def change(
    offset: int, transition: Transition, at: float, severity: Severity = "warning",
    since: float = 900.0,
) -> AlertRecord:  # fmt: skip
    return AlertRecord(
        node="n", as_of=format_time(at), generation=0, epoch=0, offset=offset, severity=severity,
        id=alert_id("n", "node_cpu", format_time(since)), rule="node_cpu", transition=transition,
        since=format_time(since), duration_seconds=at - since,
    )  # fmt: skip


def heard(firing: Sequence[Alert], resolved: Sequence[Alert]) -> Notifications:
    notifications = Notifications()
    for status, alerts in (("firing", firing), ("resolved", resolved)):
        for alert in alerts:
            labels = {"node": alert.subject, "rule": alert.rule, "severity": alert.severity}
            told = {"status": status, "labels": labels, "startsAt": format_time(alert.since)}
            notifications.take(msgspec.json.encode({"alerts": [told]}))
    return notifications


OPENED, CLOSED = change(1, "opened", 900.0), change(5, "closed", 1100.0)
ESCALATED = change(3, "escalated", 950.0, "critical")


@pytest.mark.parametrize(
    ("records", "firing", "resolved"),
    [
        ([OPENED], [WARNING], []),
        # A worker that continues writes records again.
        ([OPENED, OPENED, CLOSED], [WARNING], [WARNING]),
        ([OPENED, ESCALATED], [WARNING, CRITICAL], [WARNING]),
        # The notifier looks at what is open, and may miss a warning that was short.
        ([OPENED, ESCALATED], [CRITICAL], []),
        ([change(1, "opened", 1001.0, since=1001.0), change(2, "closed", 1019.0, since=1001.0)],
         [], []),
    ],
)  # fmt: skip
def test_what_was_notified_once_is_no_problem(
    records: list[AlertRecord], firing: list[Alert], resolved: list[Alert]
) -> None:
    assert [*notification_problems(records, heard(firing, resolved), AWAY)] == []


@pytest.mark.parametrize(
    ("records", "firing", "resolved", "problem"),
    [
        ([OPENED, CLOSED], [], [], "not notified"),
        ([OPENED, ESCALATED], [WARNING], [WARNING], "is open, and was not notified"),
        ([OPENED, CLOSED], [WARNING], [], "ended 0 times instead of 1"),
        ([OPENED], [WARNING, WARNING], [WARNING], "notified 2 times, and began 1 times"),
        ([OPENED], [WARNING], [WARNING], "ended 1 times instead of 0"),
        ([], [WARNING], [WARNING], "notified 1 times, and began 0 times"),
    ],
)  # fmt: skip
def test_each_fault_of_a_notifier_is_found(
    records: list[AlertRecord], firing: list[Alert], resolved: list[Alert], problem: str
) -> None:
    found = [*notification_problems(records, heard(firing, resolved), AWAY)]
    assert any(problem in each for each in found), found
