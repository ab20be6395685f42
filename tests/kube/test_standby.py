"""A standby tries Kafka before it is needed."""

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.clock import ManualClock
from pipeline.errors import BrokerUnavailableError, TopicDriftError
from pipeline.kube import standby
from pipeline.kube.standby import CHECK_SECONDS, KAFKA_REACHABLE, check_kafka_of_standby
from pipeline.settings import Settings
from pipeline.tasks import cancel_tasks
from tests.metric_values import value_of


async def test_a_standby_reports_that_it_cannot_use_kafka(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    answers: list[Exception | None] = [BrokerUnavailableError("wrong password"), None]
    clock, lease = ManualClock(), SimpleNamespace(is_held=False)

    async def require_topics(*_: object) -> None:
        answer = answers.pop(0) if answers else TopicDriftError("samples is missing")
        if answer is not None:
            raise answer

    monkeypatch.setattr(standby, "require_topics", require_topics)
    given: Any = lease
    task = asyncio.create_task(check_kafka_of_standby(Settings(), "watcher", clock, given))
    await clock.advance(0)
    assert value_of(KAFKA_REACHABLE.labels("watcher")) == 0
    assert "standby cannot use Kafka" in caplog.text
    await clock.advance(CHECK_SECONDS)
    assert value_of(KAFKA_REACHABLE.labels("watcher")) == 1
    # The leader uses Kafka anyway.
    lease.is_held = True
    await clock.advance(CHECK_SECONDS)
    assert not task.done()
    lease.is_held = False
    await clock.advance(CHECK_SECONDS)
    with pytest.raises(TopicDriftError):
        await task
    await cancel_tasks(task)
