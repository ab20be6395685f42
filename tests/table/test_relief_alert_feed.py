"""Readers of the planner's alerts measure ages by the monotonic clock."""

from types import SimpleNamespace
from typing import cast

import pytest

from pipeline.clock import ManualClock
from pipeline.kafka.follow import ConsumerRecord
from pipeline.processors.descheduling.relief_alerts import Hopeless, ReliefAlerts, Subject
from pipeline.settings import KafkaSettings
from pipeline.table import Table
from pipeline.table.relief_alert_feed import relief_alert_feed
from pipeline.topics.alerts import FORGOTTEN_SECONDS, AlertRecord
from pipeline.topics.codec import encode_json
from pipeline.topics.registry import ALERTS


def record_of(alert: AlertRecord, appended_at: float) -> ConsumerRecord:
    record = SimpleNamespace(
        topic=ALERTS.full_name(KafkaSettings().topic_prefix), key=b"n", headers=(),
        value=encode_json(alert), timestamp=round(1000 * appended_at),
    )  # fmt: skip
    return cast(ConsumerRecord, record)


@pytest.mark.parametrize(
    ("age", "left"), [(3600.0, 3600.0), (7000.0, 1800.0), (90_000.0, 1800.0), (-600.0, 7200.0)]
)
async def test_a_reader_that_starts_late_awaits_the_next_repeat_alone(
    age: float, left: float
) -> None:
    """The planner may have ended an hour ago, and readers start again and again."""
    clock, alerts = ManualClock(), ReliefAlerts()
    feed = relief_alert_feed(KafkaSettings(), alerts, clock)
    subject = Subject("nothing_can_be_done", "n")
    (opened,) = ReliefAlerts().opened([Hopeless(subject, "p", "no pod may move")], clock.now())
    await feed._apply(Table(), record_of(opened, clock.now() - age))
    await clock.advance(left)
    assert alerts.open(clock.monotonic()) == [opened]
    await clock.advance(1.0)
    assert alerts.open(clock.monotonic()) == []


@pytest.mark.parametrize("seconds", [-9000.0, 0.0, 9000.0])
async def test_a_clock_that_is_set_neither_ends_nor_prolongs_an_alert(seconds: float) -> None:
    clock, alerts = ManualClock(), ReliefAlerts()
    feed = relief_alert_feed(KafkaSettings(), alerts, clock)
    subject = Subject("nothing_can_be_done", "n")
    (opened,) = ReliefAlerts().opened([Hopeless(subject, "p", "no pod may move")], clock.now())
    await feed._apply(Table(), record_of(opened, clock.now()))
    clock.jump(seconds)
    await clock.advance(FORGOTTEN_SECONDS)
    assert alerts.open(clock.monotonic()) == [opened]
    await clock.advance(1.0)
    assert alerts.open(clock.monotonic()) == []
