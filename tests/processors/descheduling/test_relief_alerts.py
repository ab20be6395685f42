"""Alerts about what cannot be done, as their writer and their readers keep them."""

from typing import Any

import msgspec
import pytest

from pipeline.processors.descheduling.relief_alerts import (
    MOST_OPEN,
    Hopeless,
    ReliefAlerts,
    Subject,
    may_be_relief_alert,
)
from pipeline.topics.alerts import FORGOTTEN_SECONDS, REPEAT_SECONDS, AlertRecord
from pipeline.topics.codec import decode_json, encode_json

NOW = 1_700_000_000.0
NODE = Hopeless(Subject("nothing_can_be_done", "n"), "p", "no pod of the node may move")
POOL = Hopeless(Subject("all_nodes_hot", "", "p"), "p", "no node is low")


def end(alerts: ReliefAlerts, now: float) -> list[AlertRecord]:
    return alerts.closed(lambda subject, pool: "cooled", now)


def test_an_alert_opens_once_and_closes_once() -> None:
    alerts = ReliefAlerts()
    opened = alerts.opened([NODE, POOL], NOW)
    assert [record.id for record in opened] == [
        "n/nothing_can_be_done/2023-11-14T22:13:20Z", "pool p/all_nodes_hot/2023-11-14T22:13:20Z"
    ]  # fmt: skip
    assert alerts.opened([NODE, POOL], NOW + 60) == []
    ended = end(alerts, NOW + 90)
    assert [record.id for record in ended] == [record.id for record in opened]
    assert {record.duration_seconds for record in ended} == {90.0}
    assert end(alerts, NOW + 91) == []
    (again,) = alerts.opened([NODE], NOW + 120)
    assert again.id != opened[0].id


def test_readers_agree_with_the_writer_whatever_repeats_they_read() -> None:
    writer, reader = ReliefAlerts(), ReliefAlerts()
    records = writer.opened([NODE, POOL], NOW)
    for record in [*records, *writer.repeats(NOW + REPEAT_SECONDS), *records[:1]]:
        again = decode_json(AlertRecord, encode_json(record))
        assert again == record
        assert reader.take(again, NOW + REPEAT_SECONDS)
    assert reader.open(NOW) == writer.open(NOW) == records
    ended = end(writer, NOW + 4000)
    for record in [*ended, *records, *ended]:
        reader.take(record, NOW + 4000)
    assert reader.open(NOW + 4000) == []


def test_an_older_record_does_not_replace_a_newer_one() -> None:
    alerts = ReliefAlerts()
    (first,) = alerts.opened([NODE], NOW)
    ended = end(alerts, NOW + 10)
    (second,) = alerts.opened([NODE], NOW + 20)
    assert not alerts.take(first, NOW + 30)
    assert not alerts.take(ended[0], NOW + 30)
    assert alerts.open(NOW + 30) == [second]


def test_an_alert_that_was_closed_is_not_opened_by_what_is_read_again() -> None:
    """Topics are read again after an outage, while a notifier sends what is open."""
    writer, reader = ReliefAlerts(), ReliefAlerts()
    records = writer.opened([NODE], NOW)
    late = writer.repeats(NOW + REPEAT_SECONDS)
    records += [*late, *end(writer, NOW + REPEAT_SECONDS + 10)]
    for alerts in (writer, reader):
        for record in [*records, *late, *records]:
            alerts.take(record, NOW + REPEAT_SECONDS + 20)
        assert alerts.open(NOW + REPEAT_SECONDS + 20) == []
    for record in [*records, *late]:
        reader.take(record, NOW + REPEAT_SECONDS + 30)
        assert reader.open(NOW + REPEAT_SECONDS + 30) == []


@pytest.mark.parametrize("seconds", [-3600.0, 0.0, 60.0])
def test_an_alert_that_opens_again_is_newer_than_its_last_end(seconds: float) -> None:
    """The clock may have been set back, or be that of another planner."""
    writer, reader = ReliefAlerts(), ReliefAlerts()
    records = [*writer.opened([NODE], NOW), *end(writer, NOW + 10)]
    again = writer.opened([NODE], NOW + seconds)
    for record in [*records, *again]:
        reader.take(record, NOW + 70)
    assert reader.open(NOW + 70) == again


def test_the_end_is_newer_than_the_begin_though_the_clock_was_set_back() -> None:
    alerts = ReliefAlerts()
    (opened,) = alerts.opened([NODE], NOW)
    (ended,) = end(alerts, NOW - 3600)
    assert ended.position > opened.position
    assert ended.duration_seconds == 0.0


def test_an_alert_that_nobody_repeats_is_over() -> None:
    alerts = ReliefAlerts()
    alerts.opened([NODE], NOW)
    assert len(alerts.repeats(NOW + REPEAT_SECONDS)) == 1
    assert alerts.repeats(NOW + REPEAT_SECONDS + 1) == []
    until = NOW + REPEAT_SECONDS + FORGOTTEN_SECONDS
    assert len(alerts.open(until)) == 1
    assert alerts.open(until + 1) == []


def test_alerts_are_bounded() -> None:
    alerts = ReliefAlerts()
    many = [Hopeless(Subject("nothing_can_be_done", f"n{n}"), "p", "") for n in range(MOST_OPEN)]
    assert len(alerts.opened(many, NOW)) == MOST_OPEN
    assert alerts.opened([POOL], NOW) == []
    assert len(alerts) == MOST_OPEN


@pytest.mark.parametrize(
    ("changes", "is_taken"), [({"rule": "node_cpu"}, False), ({"severity": "critical"}, True)]
)
def test_alerts_about_usage_are_not_taken(changes: Any, is_taken: bool) -> None:
    (record,) = ReliefAlerts().opened([NODE], NOW)
    changed = msgspec.structs.replace(record, **changes)
    assert ReliefAlerts().take(changed, NOW) == is_taken
    assert may_be_relief_alert(encode_json(record))
    assert not may_be_relief_alert(b'{"rule":"node_cpu"}')
