"""Feed alerts of the planner, about hot nodes that cannot be relieved, from their topic.

Their ages are by the monotonic clock, so that an alert is not open for longer because the wall
clock was set back: ask for `alerts.open(clock.monotonic())`.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pipeline.clock import Clock
from pipeline.kafka.client import client_options
from pipeline.processors.descheduling.relief_alerts import ReliefAlerts, may_be_relief_alert
from pipeline.settings import KafkaSettings
from pipeline.table.apply_records import Headers
from pipeline.table.state_table import Table
from pipeline.table.table_feed import Apply, Feed
from pipeline.tasks import cancel_tasks
from pipeline.topics.alerts import FORGOTTEN_SECONDS, AlertRecord
from pipeline.topics.codec import decode_json
from pipeline.topics.registry import ALERTS, Topic


def relief_alert_feed(kafka: KafkaSettings, alerts: ReliefAlerts, clock: Clock) -> Feed:
    """A feed of `alerts`, whose table stays empty."""
    return Feed(
        Table(), client=client_options(kafka), prefix=kafka.topic_prefix, clock=clock,
        topics=(ALERTS,), name="alerts of the planner", apply_record=_applying(alerts, clock),
        recent_seconds=FORGOTTEN_SECONDS,
    )  # fmt: skip


@asynccontextmanager
async def read_relief_alerts(
    kafka: KafkaSettings, alerts: ReliefAlerts, clock: Clock, *, waits: bool
) -> AsyncIterator[None]:
    """Keep `alerts` up to date until the context ends. With `waits` it begins when they are read,
    or cannot be: without the topic, as in an installation without a planner, there are none."""
    feed = relief_alert_feed(kafka, alerts, clock)
    feeding = asyncio.create_task(feed.run())
    waiting = [
        asyncio.ensure_future(event) for event in (feed.wait_caught_up(), feed.wait_failure())
    ]
    try:
        if waits:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        yield
    finally:
        await cancel_tasks(feeding, *waiting)
        if not feeding.cancelled():
            feeding.result()  # a feed that was not cancelled has ended with an error


def _applying(alerts: ReliefAlerts, clock: Clock) -> Apply:

    def apply(
        _table: Table, _topic: Topic, _key: bytes | None, value: bytes | None, _headers: Headers
    ) -> bool:
        if value is None or not may_be_relief_alert(value):
            return False
        return alerts.take(decode_json(AlertRecord, value), clock.monotonic())

    return apply
