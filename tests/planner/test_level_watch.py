"""The watch of levels of usage: a log of windows, hours on `fleet`, alerts, and changes of leader.

The log and the topics are in memory here; test_level_watch_with_kafka.py has a real broker."""

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from actuators.planner.level_watch import (
    BACK_HOURS,
    HELD_BACK,
    LEFT_OUT,
    OPEN,
    READ_SECONDS,
    SPAN_SECONDS,
    WATCHED,
    Consume,
    Hours,
    LevelWatch,
)
from pipeline.archive.topic_span import AppendSpan
from pipeline.clock import ManualClock
from pipeline.errors import BrokerUnavailableError
from pipeline.kafka.producer import Keyed
from pipeline.processors.archive.archive_rows import LoggedWindow
from pipeline.processors.descheduling.relief_alerts import ReliefAlerts
from pipeline.processors.usage_levels.hourly_usage import UsageSubject, means_of
from pipeline.processors.usage_levels.level_changes import HELD_HOURS, KEPT_HOURS
from pipeline.topics.alerts import RELIEF_RULES, AlertRecord
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.hourly_usage import HOUR_SECONDS, HourlyUsageRecord, check_hour
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.pods import Owner
from pipeline.topics.resource_amounts import Resources
from tests.metric_values import value_of
from tests.processors.joined import GIB, NODE_ROW, header, joined, known_pod, pod_row, view_of

HOUR = 472_222
BEGIN = float(HOUR * HOUR_SECONDS)
WEB = "Deployment/shop/web"
RISEN_AT = "2023-11-15T02:00:00Z"
APPENDED_MS = 3000
"""A window reaches the log so long after its end."""
LEARNED = [("opened", None, RISEN_AT), ("closed", "learned", RISEN_AT)]
NODE = NodeRecord(
    node="node-1", allocatable=Resources(cpu_millicores=8000, memory_bytes=16 << 30)
)  # fmt: skip


class World:
    """Windows of a node with one workload, whose pods use `cores(hour)`, and the topics."""

    def __init__(
        self, cores: Callable[[int], float | None], window_seconds: int = READ_SECONDS
    ) -> None:
        self.cores, self.window_ms = cores, 1000 * window_seconds
        self.ahead_seconds = 0.0
        self.clock = ManualClock(BEGIN)
        self.topic: dict[bytes, bytes] = {}
        self.alerts: list[AlertRecord] = []
        self.spans: list[AppendSpan] = []
        self.leads = True
        self.failures = 0
        self.start()

    def start(self) -> None:
        """Start a leader, as the next one of a planner that ended."""
        self.watch = LevelWatch(
            self.clock, self.load, self.read, self.write, self.publish, lambda: self.leads
        )
        for alert in self.alerts:
            self.watch.alerts.take(alert, self.clock.now())

    async def load(self) -> Hours:
        hours: Hours = {hour: self.hour(hour) for hour in range(HOUR - KEPT_HOURS, HOUR)}
        for key, value in self.topic.items():
            record = decode_json(HourlyUsageRecord, value)
            hours[check_hour(record, key)] = means_of(record)
        return hours

    def hour(self, hour: int) -> dict[UsageSubject, tuple[float | None, float | None]]:
        return {
            UsageSubject("workload", WEB): (self.cores(hour), 1.074e9),
            UsageSubject("pool", "__default_node_pool__"): (0.5, 0.5),
        }

    async def read(self, span: AppendSpan, consume: Consume) -> None:
        self.fail()
        self.spans.append(span)
        assert span.since_ms is not None
        assert span.until_ms is not None
        newest_ms = 1000 * round(self.clock.now() - self.ahead_seconds)
        first_ms = -(-(span.since_ms - APPENDED_MS) // self.window_ms) * self.window_ms
        last_ms = min(span.until_ms, newest_ms) - APPENDED_MS
        for end_ms in range(first_ms, last_ms, self.window_ms):
            cores = self.cores((end_ms - 1) // (1000 * HOUR_SECONDS))
            if cores is not None:
                self.consume_window(end_ms, cores, consume)

    def consume_window(self, end_ms: int, cores: float, consume: Consume) -> None:
        pods = [known_pod(f"p{i}", owner=Owner(kind="Deployment", name="web")) for i in range(3)]
        rows = [pod_row(pod.uid, cpu_cores_avg=cores, memory_bytes_avg=GIB) for pod in pods]
        of = header("node-1", window_start_ms=end_ms - self.window_ms, window_end_ms=end_ms)
        window = joined(NODE_ROW, *rows, view=view_of(*pods, record=NODE), of=of)
        stale = header("node-2", window_start_ms=end_ms - 630_000, window_end_ms=end_ms - 600_000)
        old = joined({**NODE_ROW, "cpu_cores_avg": 16.0}, view=view_of(record=NODE), of=stale)
        consume([LoggedWindow(0, 0, window), LoggedWindow(0, 1, window)])
        consume([LoggedWindow(0, 2, old)])

    async def unreadable(self, _span: AppendSpan, _consume: Consume) -> None:
        raise BrokerUnavailableError("the log cannot be read")

    async def write(self, record: Keyed) -> None:
        self.fail()
        assert record.value is not None
        self.topic[record.key] = record.value

    async def publish(self, record: AlertRecord) -> None:
        self.fail()
        self.alerts.append(record)

    def fail(self) -> None:
        if self.failures:
            self.failures -= 1
            raise BrokerUnavailableError("the broker is away")

    async def begin(self) -> None:
        """Load what the topic has, as `run` does."""
        for hour, means in sorted((await self.load()).items()):
            self.watch.usage.put(hour, means)

    async def after(self, hours: float) -> None:
        for _ in range(round(hours * HOUR_SECONDS / 300)):
            await self.clock.advance(300.0)
            await self.watch.step()

    def changes(self) -> list[tuple[str, str | None, str]]:
        """What was published, without repeats: transition, reason, and since when."""
        return [
            *dict.fromkeys(
                (alert.transition, alert.reason, alert.change.since if alert.change else "")
                for alert in self.alerts
            )
        ]


def doubled(hour: int) -> float:
    return 0.3 if hour < HOUR + 4 else 0.6


async def test_a_release_that_doubles_usage_opens_one_alert_which_ends_when_it_is_learned() -> None:
    world = World(doubled)
    await world.begin()
    await world.after(4 + HELD_HOURS)
    assert world.alerts == []
    await world.after(0.25)
    (alert,) = world.alerts
    assert (alert.rule, alert.workload, alert.node) == ("workload_cpu_level", WEB, "")
    assert alert.pool == "__default_node_pool__"
    assert alert.change is not None
    assert (alert.change.before, alert.change.after) == (0.3, 0.6)
    assert alert.change.since == RISEN_AT
    assert value_of(OPEN) == 1
    assert (value_of(WATCHED), value_of(LEFT_OUT), value_of(HELD_BACK)) == (1, 0, 0)
    await world.after(48.0)
    assert world.changes() == LEARNED
    assert {each.id for each in world.alerts} == {alert.id}
    assert value_of(OPEN) == 0


async def test_an_hour_is_read_four_times_and_written_once() -> None:
    world = World(doubled)
    await world.begin()
    await world.after(3.25)
    begins = [span.since_ms for span in world.spans]
    assert begins == [1000 * (BEGIN + READ_SECONDS * turn) for turn in range(1, 13)]
    assert all(s.until_ms - s.since_ms == 1000 * SPAN_SECONDS for s in world.spans)  # type: ignore[operator]
    assert sorted(check_hour(decode_json(HourlyUsageRecord, value), key)
                  for key, value in world.topic.items()) == [HOUR, HOUR + 1, HOUR + 2]  # fmt: skip


@pytest.mark.parametrize("hours", [0.5, 1.0, 3.1])
async def test_leaders_that_follow_each_other_find_what_one_would(hours: float) -> None:
    one, many = World(doubled), World(doubled)
    await one.begin()
    await many.begin()
    while one.clock.now() < BEGIN + 40 * HOUR_SECONDS:
        await one.after(hours)
        await many.after(hours)
        many.start()
        await many.begin()
    await many.watch.step()
    np.testing.assert_array_equal(one.watch.usage.values(), many.watch.usage.values())
    assert many.changes() == one.changes() == LEARNED


async def test_hours_without_a_planner_are_read_from_the_log() -> None:
    one, other = World(doubled), World(doubled)
    await one.begin()
    await one.after(12.0)
    await other.clock.advance(12 * HOUR_SECONDS)
    other.start()
    await other.begin()
    await other.after(1.0)
    await one.after(1.0)
    np.testing.assert_array_equal(other.watch.usage.values(), one.watch.usage.values())
    assert other.changes() == one.changes() == LEARNED[:1]


async def test_no_more_is_read_than_the_log_has_at_the_start_of_an_installation() -> None:
    world = World(lambda hour: 0.3 if hour >= HOUR else None)
    await world.after(4.0)
    assert world.spans[0].since_ms == 1000 * (BEGIN - BACK_HOURS * HOUR_SECONDS + READ_SECONDS)
    assert len(world.topic) == 3
    assert world.alerts == []


async def test_a_workload_that_is_scaled_to_nothing_and_back_has_not_changed() -> None:
    world = World(lambda hour: None if HOUR + 3 <= hour < HOUR + 13 else 0.3)
    await world.begin()
    await world.after(40.0)
    assert world.alerts == []


async def test_nothing_is_lost_while_the_broker_is_away() -> None:
    world, undisturbed = World(doubled), World(doubled)
    await world.begin()
    await undisturbed.begin()
    for _ in range(40):
        world.failures = 3
        await world.after(0.5)
        world.failures = 0
        await world.after(0.5)
        await undisturbed.after(1.0)
    assert world.topic == undisturbed.topic
    assert world.changes() == undisturbed.changes()


async def test_a_planner_without_the_lease_writes_nothing() -> None:
    world = World(doubled)
    await world.begin()
    world.leads = False
    await world.after(12.0)
    assert (world.topic, world.alerts) == ({}, [])
    world.leads = True
    await world.after(0.25)
    assert len(world.topic) == 12
    assert world.changes() == LEARNED[:1]


@pytest.mark.parametrize("seconds", [-10 * 86_400.0, -5000.0, 5000.0, 10 * 86_400.0])
async def test_a_clock_that_is_set_opens_no_alert(seconds: float) -> None:
    world = World(lambda hour: 0.3)
    await world.begin()
    await world.after(3.0)
    world.clock.jump(seconds)
    await world.after(6.0)
    assert world.alerts == []


@pytest.mark.parametrize("days", [2.0, 10.0])
async def test_a_clock_that_was_ahead_for_minutes_hides_nothing(days: float) -> None:
    """The log has no windows of the hours that it showed."""
    world = World(lambda hour: 0.3 if hour < HOUR + 15 else 0.6)
    await world.begin()
    await world.after(6.0)
    world.ahead_seconds = days * 86_400
    world.clock.jump(world.ahead_seconds)
    await world.after(0.05)
    world.clock.jump(-world.ahead_seconds)
    world.ahead_seconds = 0.0
    await world.after(66.0)
    assert [change[:2] for change in world.changes()] == [("opened", None), ("closed", "learned")]
    assert {check_hour(decode_json(HourlyUsageRecord, value), key)
            for key, value in world.topic.items()} == {*range(HOUR, HOUR + 72)}  # fmt: skip


@pytest.mark.parametrize("window_seconds", [30, 60, 180, 300, 600, 1800])
async def test_windows_of_all_lengths_are_seen(window_seconds: int) -> None:
    world = World(doubled, window_seconds)
    await world.begin()
    await world.after(48.0)
    assert world.changes() == LEARNED


async def test_an_alert_ends_when_it_is_learned_though_nothing_can_be_read() -> None:
    world = World(doubled)
    await world.begin()
    await world.after(12.0)
    world.watch._read = world.unreadable
    await world.after(24.0)
    assert world.changes() == LEARNED


async def test_metrics_say_nothing_about_levels_after_the_lease_is_lost() -> None:
    world = World(doubled)
    await world.begin()
    await world.after(12.0)
    assert value_of(OPEN) == 1
    watch = asyncio.create_task(world.watch.run())
    await asyncio.sleep(0)
    watch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watch
    assert [value_of(metric) for metric in (OPEN, WATCHED, LEFT_OUT, HELD_BACK)] == [0] * 4


async def test_the_rounds_of_the_planner_do_not_know_alerts_about_levels() -> None:
    """They close each alert whose node or pool is not hot."""
    world = World(doubled)
    await world.begin()
    await world.after(12.0)
    rounds, readers = ReliefAlerts(RELIEF_RULES), ReliefAlerts()
    for alert in world.alerts:
        again = decode_json(AlertRecord, encode_json(alert))
        assert not rounds.take(again, world.clock.now())
        assert readers.take(again, world.clock.now())
    assert (len(rounds), len(readers)) == (0, 1)
