"""Write eviction plans and wake-ups to their topics in the background, so that no scheduler waits
for Kafka. A record continues the trace of the request that caused it."""

import asyncio

from pipeline import tracing
from pipeline.kafka.producer import Producer
from pipeline.topics.codec import encode_json
from pipeline.topics.eviction_plans import EvictionPlanRecord
from pipeline.topics.registry import EVICTION_PLANS, WAKE_UPS, Topic
from pipeline.topics.wake_ups import WakeUpRecord


class RecordWriter:
    """Writes records by `producer` to topics below `prefix`. A record that cannot be delivered is
    lost: its pod waits on, and another record follows."""

    def __init__(self, producer: Producer, prefix: str) -> None:
        self._producer = producer
        self._prefix = prefix
        self._tasks: set[asyncio.Task[None]] = set()

    def write_plan(self, plan: EvictionPlanRecord) -> None:
        """Send a plan without waiting for its delivery."""
        self._write(EVICTION_PLANS, plan)

    def write_wake_up(self, wake_up: WakeUpRecord) -> None:
        """Send a wake-up without waiting for its delivery."""
        self._write(WAKE_UPS, wake_up)

    def _write(self, topic: Topic, record: EvictionPlanRecord | WakeUpRecord) -> None:
        name, key = topic.full_name(self._prefix), record.node.encode()
        sending = self._producer.offer(
            name, value=encode_json(record), key=key, headers=tracing.headers()
        )
        task = asyncio.create_task(sending)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Return when every record is delivered or lost."""
        await asyncio.gather(*self._tasks)
