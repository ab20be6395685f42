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
from pipeline.topics.alerts import FORGOTTEN_SECONDS
from pipeline.topics.codec import encode_json
from pipeline.topics.registry import ALERTS


@pytest.mark.parametrize("seconds", [-9000.0, 0.0, 9000.0])
async def test_a_clock_that_is_set_neither_ends_nor_prolongs_an_alert(seconds: float) -> None:
    clock, alerts = ManualClock(), ReliefAlerts()
    feed = relief_alert_feed(KafkaSettings(), alerts, clock)
    subject = Subject("nothing_can_be_done", "n")
    (opened,) = ReliefAlerts().opened([Hopeless(subject, "p", "no pod may move")], clock.now())
    record = SimpleNamespace(
        topic=ALERTS.full_name(KafkaSettings().topic_prefix), key=b"n", headers=(),
        value=encode_json(opened),
    )  # fmt: skip
    await feed._apply(Table(), cast(ConsumerRecord, record))
    clock.jump(seconds)
    await clock.advance(FORGOTTEN_SECONDS)
    assert alerts.open(clock.monotonic()) == [opened]
    await clock.advance(1.0)
    assert alerts.open(clock.monotonic()) == []
