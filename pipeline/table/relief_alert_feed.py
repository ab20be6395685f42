"""Feed alerts of the planner, about hot nodes that cannot be relieved, from their topic.

Their ages are by the monotonic clock, so that an alert is not open for longer because the wall
clock was set back: ask for `alerts.open(clock.monotonic())`.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from pipeline.clock import Clock
from pipeline.kafka.client import client_options
from pipeline.kafka.follow import ConsumerRecord
from pipeline.processors.descheduling.relief_alerts import ReliefAlerts, may_be_relief_alert
from pipeline.settings import KafkaSettings
from pipeline.table.state_table import Table
from pipeline.table.table_feed import Feed, Take
from pipeline.tasks import cancel_tasks
from pipeline.topics.alerts import FORGOTTEN_SECONDS, REPEAT_SECONDS, AlertRecord
from pipeline.topics.codec import decode_json
from pipeline.topics.registry import ALERTS, Topic

_OLDEST_SECONDS: Final = FORGOTTEN_SECONDS - REPEAT_SECONDS
"""The greatest age of a record when it is read: an alert that is open is repeated within the
rest."""


def relief_alert_feed(kafka: KafkaSettings, alerts: ReliefAlerts, clock: Clock) -> Feed:
    """A feed of `alerts`, whose table stays empty."""
    return Feed(
        Table(), client=client_options(kafka), prefix=kafka.topic_prefix, clock=clock,
        topics=(ALERTS,), name="alerts of the planner", take_record=take_alerts(alerts, clock),
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


def take_alerts(alerts: ReliefAlerts, clock: Clock) -> Take:
    """The function of a feed that takes records of the topic into `alerts`."""

    def take(_topic: Topic, record: ConsumerRecord) -> bool:
        if record.value is None or not may_be_relief_alert(record.value):
            return False
        # Repeats are awaited from then on. Clocks differ, but an alert that is open is repeated.
        age = min(max(clock.now() - record.timestamp / 1000, 0.0), _OLDEST_SECONDS)
        return alerts.take(decode_json(AlertRecord, record.value), clock.monotonic() - age)

    return take
