"""Read what the console shows besides the table: plans, actions, and judged peaks."""

from collections.abc import Mapping
from typing import Any

from pipeline.clock import Clock
from pipeline.errors import RecordError
from pipeline.extender import limits
from pipeline.extender.console_documents import ReliefReading
from pipeline.kafka.client import client_options
from pipeline.kafka.follow import ConsumerRecord, open_follower
from pipeline.kafka.refused_records import refuse
from pipeline.kafka.topic_admin import existing_partitions
from pipeline.processors.accuracy.accuracy_totals import AccuracyTotals
from pipeline.processors.console.accuracy_document import JudgedFleet
from pipeline.processors.console.limits import KEPT_SECONDS
from pipeline.processors.console.relief_log import ReliefLog
from pipeline.processors.console.what_if_document import PublishedResults
from pipeline.settings import KafkaSettings
from pipeline.table import Feed, Table
from pipeline.table.event_loop_turns import by_turns
from pipeline.table.relief_alert_feed import take_alerts
from pipeline.tasks import run_within
from pipeline.topics.accuracy import AccuracyRecord
from pipeline.topics.actions import ActionRecord
from pipeline.topics.codec import check_readable, decode_json
from pipeline.topics.eviction_plans import EvictionPlanRecord, excess
from pipeline.topics.pool_outcomes import OUTCOMES, PoolOutcomesRecord
from pipeline.topics.registry import (
    ACCURACY,
    ACTIONS,
    ALERTS,
    EVICTION_PLANS,
    FLEET,
    WHAT_IF,
    Topic,
)


def relief_feed(client: Mapping[str, Any], prefix: str, clock: Clock) -> tuple[Feed, ReliefReading]:
    """A feed of plans, actions and alerts of the planner, whose table stays empty. The evictor and
    the planner report its bad records."""
    reading, topics = ReliefReading(), (ALERTS, EVICTION_PLANS, ACTIONS)
    take_alert = take_alerts(reading.alerts, clock)

    def take(topic: Topic, record: ConsumerRecord) -> bool:
        now = clock.now()
        if topic is ALERTS:
            return take_alert(topic, record)
        if topic is EVICTION_PLANS:
            return take_plan(reading.log, record, now)
        return take_action(reading, record, now)

    feed = Feed(
        Table(), client=client, prefix=prefix, clock=clock, name="plans and actions",
        topics=topics, optional=topics, take_record=take, recent_seconds=KEPT_SECONDS,
    )  # fmt: skip
    reading.state = feed.state
    return feed, reading


def take_plan(log: ReliefLog, record: ConsumerRecord, now: float) -> bool:
    """Take a plan; False if it says nothing new. Raises `RecordError`."""
    value, appended_at = record.value, record.timestamp / 1000
    if value is None:
        return False
    plan = decode_json(EvictionPlanRecord, value)
    # The evictor refuses such a plan, too.
    return excess(plan, len(value)) is None and log.take_plan(plan, appended_at, now)


def take_action(reading: ReliefReading, record: ConsumerRecord, now: float) -> bool:
    """Take an action; False if it says nothing new. Raises `RecordError`."""
    value, appended_at = record.value, record.timestamp / 1000
    is_new = reading.left.take(value, appended_at, now)
    is_new |= reading.actions.take(record.key, value, appended_at, now)
    # Most actions are of the cluster actuator.
    if value is not None and (b'"evictor"' in value or b'"planner"' in value):
        action = decode_json(ActionRecord, value)
        is_new |= reading.log.take_action(action, appended_at, now)
    return is_new


async def read_results(kafka: KafkaSettings) -> PublishedResults:
    """Read the published results of `springtide what-if`. Raises `KafkaError`, and `TimeoutError`
    (an OSError) after `limits.WHAT_IF_READ_SECONDS`."""
    return await run_within(limits.WHAT_IF_READ_SECONDS, _read_results(kafka))


async def _read_results(kafka: KafkaSettings) -> PublishedResults:
    client, results = client_options(kafka), PublishedResults()
    partitions = await existing_partitions(client, [WHAT_IF.full_name(kafka.topic_prefix)])
    async with open_follower(client, partitions) as follower:
        await follower.begin()
        async for records in follower.read_to_end():
            async for record in by_turns(records, trickling=False):
                try:
                    check_readable(record.value)
                except RecordError as error:
                    results.refuse(record.key, error)
                else:
                    results.take(record.key, record.value, record.timestamp / 1000)
    return results


async def read_judged(kafka: KafkaSettings, since: float, now: float) -> JudgedFleet:
    """Read the peaks that were judged since a time, and the risks that pools declare (Unix times).
    Invalid records are counted and skipped. Raises `KafkaError`, and `TimeoutError` (an OSError)
    after `limits.ACCURACY_READ_SECONDS`."""
    return await run_within(limits.ACCURACY_READ_SECONDS, _read_judged(kafka, since, now))


async def _read_judged(kafka: KafkaSettings, since: float, now: float) -> JudgedFleet:
    client = client_options(kafka)
    accuracy, fleet = (topic.full_name(kafka.topic_prefix) for topic in (ACCURACY, FLEET))
    partitions = await existing_partitions(client, (accuracy, fleet), optional=(fleet,))
    totals, deciding, risks = AccuracyTotals(), dict[str, tuple[str, str]](), dict[str, float]()
    starts_ms = {accuracy: round(1000 * since), fleet: round(1000 * (now - limits.RISK_SECONDS))}
    async with open_follower(client, partitions) as follower:
        await follower.begin(starts_ms)
        async for records in follower.read_to_end():
            async for record in by_turns(records, trickling=False):
                try:
                    check_readable(record.value)
                    if record.topic == fleet:
                        _take_risk(record, risks)
                    else:
                        peaks = decode_json(AccuracyRecord, record.value or b"")
                        totals.add(peaks)
                        deciding[peaks.node] = peaks.pool, peaks.decides
                except RecordError as error:
                    refuse(
                        record.topic, error, partition=record.partition, offset=record.offset
                    )  # fmt: skip
    return JudgedFleet(totals, deciding, risks, since, now)


def _take_risk(record: ConsumerRecord, risks: dict[str, float]) -> None:
    """Take the risk that a pool declares; other records of the topic are ignored."""
    if record.value is not None and (record.key or b"").startswith(OUTCOMES):
        outcomes = decode_json(PoolOutcomesRecord, record.value)
        risks[outcomes.pool] = outcomes.risk
