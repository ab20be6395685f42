"""A standby tries Kafka before it is needed."""

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.cli.role_runner import run_leader
from pipeline.clock import ManualClock
from pipeline.errors import BrokerUnavailableError, TopicDriftError
from pipeline.kube import standby
from pipeline.kube.standby import CHECK_SECONDS, KAFKA_REACHABLE, check_kafka_of_standby
from pipeline.settings import KafkaSettings, Settings, WatcherSettings
from pipeline.tasks import cancel_tasks
from tests.kube.fake_server import user_file
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


async def test_a_role_that_does_not_lead_tries_kafka(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(*_: object) -> None:
        raise AssertionError("it never leads")

    settings = Settings(
        kafka=KafkaSettings(bootstrap_servers="127.0.0.1:1"),
        kubernetes=user_file(tmp_path, "http://127.0.0.1:1"),
        watcher=WatcherSettings(metrics_port=None),
    )
    role = run_leader("watcher", settings, settings.watcher, work, waits_for_kafka=True)
    running = asyncio.create_task(role)
    async with asyncio.timeout(30):
        while "standby cannot use Kafka" not in caplog.text:
            assert not running.done()
            await asyncio.sleep(0.1)
    await cancel_tasks(running)
