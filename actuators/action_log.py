"""Write the decisions of actuators to `springtide.actions`.

Actions are a record for people, and no decision depends on them. So an actuator never waits for
Kafka: during a long outage the oldest queued actions are dropped and counted.
"""

import asyncio

from pipeline.errors import KafkaError
from pipeline.kafka.client import client_options
from pipeline.kafka.partition import partition_of
from pipeline.kafka.producer import Producer
from pipeline.logs import get_logger
from pipeline.metrics import counter
from pipeline.settings import KafkaSettings
from pipeline.topics.actions import ActionRecord
from pipeline.topics.codec import encode_json
from pipeline.topics.registry import ACTIONS

log = get_logger(__name__)

LOST = counter("actuator_lost_actions", "Actions that could not be written to springtide.actions.")


class Actions:
    """A bounded queue of actions, which `run` writes to the topic."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._kafka = kafka
        self._waiting: asyncio.Queue[ActionRecord] = asyncio.Queue(10_000)

    def put(self, action: ActionRecord) -> None:
        """Queue an action. If the queue is full, the oldest action is dropped."""
        if self._waiting.full():
            self._waiting.get_nowait()
            LOST.inc()
        self._waiting.put_nowait(action)

    async def run(self) -> None:
        topic = ACTIONS.full_name(self._kafka.topic_prefix)
        async with Producer(client_options(self._kafka)) as producer:
            while True:
                action = await self._waiting.get()
                try:
                    delivery = await producer.send(
                        topic,
                        value=encode_json(action),
                        key=action.node.encode(),
                        partition=partition_of(action.node, self._kafka.partitions),
                    )
                except KafkaError as error:
                    _lost(error)
                else:
                    delivery.add_done_callback(_check)


def _check(delivery: asyncio.Future[object]) -> None:
    if not delivery.cancelled() and (error := delivery.exception()) is not None:
        _lost(error)


def _lost(error: BaseException) -> None:
    LOST.inc()
    log.warning("action lost", why=str(error) or type(error).__name__)
