"""Write eviction plans to their topic in the background, so that no scheduler waits for it."""

import asyncio

from pipeline.kafka.producer import Producer
from pipeline.settings import KafkaSettings
from pipeline.topics.codec import encode_json
from pipeline.topics.eviction_plans import EvictionPlanRecord
from pipeline.topics.registry import EVICTION_PLANS


class PlanWriter:
    """Writes plans by `producer`. A plan that cannot be delivered is lost, and the pod waits on."""

    def __init__(self, producer: Producer, kafka: KafkaSettings) -> None:
        self._producer = producer
        self._topic = EVICTION_PLANS.full_name(kafka.topic_prefix)
        self._tasks: set[asyncio.Task[None]] = set()

    def write(self, plan: EvictionPlanRecord) -> None:
        """Send a plan without waiting for its delivery."""
        sending = self._producer.offer(self._topic, value=encode_json(plan), key=plan.node.encode())
        task = asyncio.create_task(sending)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Return when every plan is delivered or lost."""
        await asyncio.gather(*self._tasks)
