"""Watch the level of usage of node pools and workloads, and write alerts about changes of it.

Every quarter of an hour the windows of a short span are read from the log, and averaged to hours.
Each hour is written to `springtide.fleet`, from where the next leader reads it; hours that nobody
wrote are read from the log, as far as it reaches. Nothing is decided while hours are missing that
the log still has.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from actuators.planner.alert_outbox import AlertOutbox
from pipeline.archive.topic_span import AppendSpan, read_span
from pipeline.clock import Clock
from pipeline.errors import KafkaError, RecordError
from pipeline.kafka.client import client_options
from pipeline.kafka.follow import open_follower, topic_partitions
from pipeline.kafka.producer import Keyed
from pipeline.kafka.refused_records import refuse
from pipeline.logs import get_logger
from pipeline.metrics import counter, gauge
from pipeline.processors.archive.archive_rows import LoggedWindow
from pipeline.processors.descheduling.relief_alerts import ReliefAlerts, subject_of
from pipeline.processors.usage_levels.hourly_usage import (
    HourlyUsage,
    HourSums,
    Means,
    UsageSubject,
    hour_record,
    means_of,
)
from pipeline.processors.usage_levels.level_alerts import decide, is_learned
from pipeline.processors.usage_levels.level_changes import KEPT_HOURS
from pipeline.settings import KafkaSettings
from pipeline.times import format_time
from pipeline.topics.alerts import LEVEL_RULES, AlertRecord
from pipeline.topics.codec import check_readable, decode_json, encode_json
from pipeline.topics.hourly_usage import (
    HOUR_SECONDS,
    HourlyUsageRecord,
    check_hour,
    hour_key,
    is_hour_key,
)
from pipeline.topics.registry import FLEET

log = get_logger(__name__)

OPEN = gauge("planner_level_changes", "Open alerts about levels of usage that changed.")
HELD_BACK = gauge(
    "planner_held_back_level_changes",
    "Workloads whose level changed, without an alert of their own as of the last hour.",
)
WATCHED = gauge("planner_watched_workloads", "Workloads with usage in the last hour.")
LEFT_OUT = gauge("planner_unwatched_workloads", "Workloads beyond the limit, which nobody watches.")
READS = counter("planner_usage_reads", "Reads of usage from the log: done or failed.", ["result"])

READ_SECONDS: Final = 900
"""Time between two reads."""
SPAN_SECONDS: Final = 90
"""A read takes the windows appended in so many seconds after a quarter of an hour, when windows of
all lengths end."""
_DELAY_SECONDS: Final = SPAN_SECONDS + 30.0
_LATE_SECONDS: Final = 300.0
"""A window that ended so long before the quarter is of a worker with a backlog."""
BACK_HOURS: Final = 60
"""Hours that are read from the log at most; the log has the last three days."""
LOOK_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 60.0
_CLOCK_STEP_SECONDS: Final = 0.5
_READS_PER_HOUR: Final = HOUR_SECONDS // READ_SECONDS
_READS_AT_ONCE: Final = 8
"""Reads of one look, after an outage."""

Consume = Callable[[list[LoggedWindow]], None]
ReadWindows = Callable[[AppendSpan, Consume], Awaitable[object]]
Hours = dict[int, dict[UsageSubject, Means]]


class LevelWatch:
    """The watch of one leader. `alerts` are those that are open. `load` returns the hours on the
    topic, `read` reads windows from the log, `write` writes to partition 0 of `fleet`, and
    `publish` an alert; all raise `KafkaError`. `may_publish` is asked before each record."""

    def __init__(
        self, clock: Clock, load: Callable[[], Awaitable[Hours]], read: ReadWindows,
        write: Callable[[Keyed], Awaitable[None]],
        publish: Callable[[AlertRecord], Awaitable[None]], may_publish: Callable[[], bool],
    ) -> None:  # fmt: skip
        self.alerts = ReliefAlerts(LEVEL_RULES)
        self.usage = HourlyUsage()
        self._clock, self._load, self._read = clock, load, read
        self._write, self._may_publish = write, may_publish
        self._outbox = AlertOutbox(self.alerts, publish, may_publish)
        self._unwritten: deque[Keyed] = deque(maxlen=KEPT_HOURS)
        self._sums, self._sums_hour = HourSums(), -1
        self._next_read = 0
        self._retry_at = float("-inf")
        self._clock_offset = clock.now() - clock.monotonic()

    async def run(self) -> None:
        """Watch until cancelled."""
        try:
            await self._watch()
        finally:  # another process may lead now
            for metric in (OPEN, HELD_BACK, WATCHED, LEFT_OUT):
                metric.set(0)

    async def _watch(self) -> None:
        while True:
            try:
                await self._load_hours()
                break
            except KafkaError as error:
                log.warning("usage of earlier hours is not read, trying again", why=error.message)
                await self._clock.sleep(LOOK_SECONDS)
        while True:
            await self.step()
            await self._clock.sleep(LOOK_SECONDS)

    async def _load_hours(self) -> None:
        hours = await self._load()
        self.usage = HourlyUsage()
        for hour, means in sorted(hours.items()):
            self.usage.put(hour, means)
        log.info("levels of usage are watched", known_hours=len(hours))

    async def step(self) -> None:
        """Read what is due, decide at the end of an hour, and write what waits."""
        now = self._now()
        if self._clock.monotonic() >= self._retry_at:
            try:
                if self.usage.newest_hour >= now // HOUR_SECONDS:  # the clock was ahead
                    await self._load_hours()
                for _ in range(_READS_AT_ONCE):
                    if not await self._read_due(now):
                        break
                await self._write_hours()
            except KafkaError as error:
                READS.labels("failed").inc()
                log.warning("usage is not read or written, trying again", why=error.message)
                self._retry_at = self._clock.monotonic() + _RETRY_SECONDS
        learned = {subject_of(a) for a in self.alerts.open(now) if is_learned(a, now)}
        self._outbox.add(self.alerts.closed(lambda s, _: "learned" if s in learned else None, now))
        OPEN.set(len(self.alerts.open(now)))
        await self._outbox.send(now)

    def _now(self) -> float:
        """The present time. Alerts keep their age if the clock was set since the last call."""
        now = self._clock.now()
        offset = now - self._clock.monotonic()
        if abs(offset - self._clock_offset) > _CLOCK_STEP_SECONDS:
            self.alerts.shift(offset - self._clock_offset)
        self._clock_offset = offset
        return now

    async def _read_due(self, now: float) -> bool:
        """Read the next span that is over; False if there is none."""
        last = int((now - _DELAY_SECONDS) // READ_SECONDS) - 1
        hour_now = int(now // HOUR_SECONDS)
        first = (hour_now - BACK_HOURS) * _READS_PER_HOUR
        if not first <= self._next_read <= (hour_now + 1) * _READS_PER_HOUR:
            self._next_read = first  # at the start, and when the clock was set
        while self._next_read // _READS_PER_HOUR in self.usage:
            self._next_read = (self._next_read // _READS_PER_HOUR + 1) * _READS_PER_HOUR
        if self._next_read > last:
            return False
        hour, read = divmod(self._next_read, _READS_PER_HOUR)
        if hour != self._sums_hour:
            self._sums, self._sums_hour = HourSums(), hour
        end = (self._next_read + 1) * READ_SECONDS
        oldest_ms = 1000 * (end - _LATE_SECONDS)

        def consume(records: list[LoggedWindow]) -> None:
            windows = [record.window for record in records]
            self._sums.add(read, [w for w in windows if w.header.window_end_ms > oldest_ms])

        await self._read(AppendSpan(1000 * end, 1000 * (end + SPAN_SECONDS)), consume)
        READS.labels("done").inc()
        self._next_read += 1
        if read == _READS_PER_HOUR - 1:
            self._end_hour(hour, now)
        return True

    def _end_hour(self, hour: int, now: float) -> None:
        means, left_out = self._sums.means({*self.usage.subjects})
        self.usage.put(hour, means)
        if means:
            record = hour_record(format_time(hour * HOUR_SECONDS), means)
            self._unwritten.append(Keyed(hour_key(hour), encode_json(record)))
        if hour != self.usage.newest_hour or (hour + 2) * HOUR_SECONDS < now:
            return  # more hours are to be read
        WATCHED.set(sum(subject.kind == "workload" for subject in means))
        LEFT_OUT.set(left_out)
        decision = decide(self.usage, self._sums.main_pools(), self.alerts.open(now))
        self._outbox.add(self.alerts.closed(lambda s, _: decision.ended.get(s), now))
        self._outbox.add(self.alerts.opened(decision.found, now))
        HELD_BACK.set(decision.held_back)
        if decision.held_back:
            log.info("levels of more workloads changed than get an alert of their own",
                     held_back=decision.held_back)  # fmt: skip

    async def _write_hours(self) -> None:
        while self._unwritten and self._may_publish():
            await self._write(self._unwritten[0])
            self._unwritten.popleft()


async def read_hours(kafka: KafkaSettings, now: float) -> Hours:
    """The hours on `fleet` that are kept, at this time. Invalid records are logged and skipped.
    Raises `KafkaError`."""
    hours: Hours = {}
    hour_now = int(now // HOUR_SECONDS)
    async with open_follower(client_options(kafka), topic_partitions(kafka, FLEET)) as follower:
        await follower.begin()
        async for records in follower.read_to_end():
            for record in records:
                if not is_hour_key(record.key) or record.value is None:
                    continue
                try:
                    check_readable(record.value)
                    usage = decode_json(HourlyUsageRecord, record.value)
                    hour = check_hour(usage, record.key)
                except RecordError as error:
                    refuse(record.topic, error, partition=0, offset=record.offset)
                    continue
                if hour_now - KEPT_HOURS < hour < hour_now:
                    hours[hour] = means_of(usage)
    return hours


def log_reader(kafka: KafkaSettings) -> ReadWindows:
    """Reads windows from the log. Records that cannot be read are skipped: the worker reports
    them."""

    async def read(span: AppendSpan, consume: Consume) -> object:
        return await read_span(kafka, span, consume)

    return read
