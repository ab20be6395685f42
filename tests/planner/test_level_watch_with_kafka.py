"""Levels of usage through a real broker: hours on `fleet`, the planner, its alerts."""

import asyncio
import time

import pytest
from aiokafka import AIOKafkaProducer

from actuators.planner.level_watch import log_reader, read_hours
from pipeline.archive.topic_span import AppendSpan
from pipeline.clock import Clock, SystemClock
from pipeline.kafka.client import client_options
from pipeline.kafka.topic_admin import apply_topics
from pipeline.processors.archive.archive_rows import LoggedWindow
from pipeline.processors.descheduling.relief_alerts import ReliefAlerts
from pipeline.processors.usage_levels.hourly_usage import Means, UsageSubject, hour_record
from pipeline.processors.usage_levels.level_changes import KEPT_HOURS
from pipeline.settings import KafkaSettings
from pipeline.table.relief_alert_feed import read_relief_alerts
from pipeline.times import format_time
from pipeline.topics.alerts import LEVEL_RULES, AlertRecord
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.hourly_usage import HOUR_SECONDS, hour_key
from pipeline.topics.registry import ALERTS, FLEET
from tests.broker import messages
from tests.planner.test_planner import Cluster
from tests.processes import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

POOL, WEB = UsageSubject("pool", "gold"), UsageSubject("workload", "Deployment/shop/web")
RISEN_HOURS = 6


class MidHourClock(SystemClock):
    """A clock that starts a third into an hour: five known hours are needed before the next one."""

    def __init__(self) -> None:
        self._ahead_seconds = HOUR_SECONDS / 3 - time.time() % HOUR_SECONDS

    def now(self) -> float:
        return super().now() + self._ahead_seconds


async def write_hours(kafka: KafkaSettings, producer: AIOKafkaProducer, clock: Clock) -> int:
    """Write the hours before the last one: the pool has risen in the last six. Returns the present
    hour. The log has no window of the last hour, so that it is unknown."""
    now = int(clock.now() // HOUR_SECONDS)
    for hour in range(now - 1 - KEPT_HOURS, now - 1):
        usage: dict[UsageSubject, Means] = {
            POOL: (0.6 if hour >= now - 1 - RISEN_HOURS else 0.3, 0.5), WEB: (0.25, None)
        }  # fmt: skip
        record = hour_record(format_time(hour * HOUR_SECONDS), usage)
        await producer.send(
            FLEET.full_name(kafka.topic_prefix), encode_json(record), hour_key(hour)
        )
    await producer.flush()
    return now


async def level_alerts(kafka: KafkaSettings) -> list[AlertRecord]:
    records = [decode_json(AlertRecord, each.value) for each in await messages(kafka, ALERTS)]
    return [record for record in records if record.rule in LEVEL_RULES]


async def test_the_planner_finds_a_change_and_the_next_leader_does_not_open_it_again(
    kafka: KafkaSettings,
) -> None:
    await apply_topics(kafka)
    clock, alerts = MidHourClock(), ReliefAlerts()
    async with AIOKafkaProducer(**client_options(kafka)) as producer:
        fleet = FLEET.full_name(kafka.topic_prefix)
        for key, value in ((b"hour/1", b"odd"), (b"hour/x", b"{}"), (b"hour/2", b'{"hour":"now"}')):
            await producer.send_and_wait(fleet, value, key)
        cluster = Cluster(kafka, producer)
        hour = await write_hours(kafka, producer, clock)
        async with cluster.planner(clock=clock):
            await until(lambda: level_alerts(kafka), 300)
        (alert,) = await level_alerts(kafka)
        async with cluster.planner(clock=clock):
            await asyncio.sleep(10)
    assert (alert.rule, alert.pool, alert.transition) == ("pool_cpu_level", "gold", "opened")
    assert alert.change is not None
    assert (alert.change.before, alert.change.after) == (0.3, 0.6)
    assert alert.change.since == format_time((hour - 1 - RISEN_HOURS) * HOUR_SECONDS)
    assert "rose from 30% to 60% of allocatable" in alert.why
    assert {each.id for each in await level_alerts(kafka)} == {alert.id}
    async with read_relief_alerts(kafka, alerts, clock, waits=True):
        assert alerts.open(clock.monotonic()) == [alert]


async def test_windows_and_hours_are_read_from_their_topics(kafka: KafkaSettings) -> None:
    await apply_topics(kafka)
    clock = MidHourClock()
    async with AIOKafkaProducer(**client_options(kafka)) as producer:
        cluster = Cluster(kafka, producer)
        await cluster.pods("a", web=1.0)
        hour = await write_hours(kafka, producer, clock)
        seen: list[LoggedWindow] = []
        now_ms = round(1000 * time.time())
        read = log_reader(kafka)
        await read(AppendSpan(now_ms - 300_000, now_ms + 60_000), seen.extend)
        await read(AppendSpan(now_ms - 900_000, now_ms - 600_000), seen.extend)
    assert [each.window.header.node for each in seen] == ["a"]
    hours = await read_hours(kafka, clock.now())
    assert min(hours) > hour - KEPT_HOURS
    assert max(hours) == hour - 2
    assert hours[hour - 2] == {POOL: (0.6, 0.5), WEB: (0.25, None)}
