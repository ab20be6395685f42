"""Write the decisions of actuators to `springtide.actions`.

Most actions are a record for people, and no decision depends on them: `put` never waits for Kafka.
During a long outage the oldest queued actions are dropped and counted. `write` awaits the delivery,
for an action that the next leader must know.
"""

import asyncio
from typing import Final

from pipeline.errors import BrokerUnavailableError, KafkaError
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

_WRITE_SECONDS: Final = 10.0


class Actions:
    """A bounded queue of actions, which `run` writes to the topic."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._partitions = kafka.partitions
        self._topic = ACTIONS.full_name(kafka.topic_prefix)
        self._producer = Producer(client_options(kafka))
        self._waiting: asyncio.Queue[ActionRecord] = asyncio.Queue(10_000)

    def put(self, action: ActionRecord) -> None:
        """Queue an action. If the queue is full, the oldest action is dropped."""
        if self._waiting.full():
            self._waiting.get_nowait()
            LOST.inc()
        self._waiting.put_nowait(action)

    async def write(self, action: ActionRecord) -> None:
        """Write an action and await its delivery. Raises `KafkaError` if it is not delivered within
        ten seconds."""
        try:
            async with asyncio.timeout(_WRITE_SECONDS):
                await self._producer.deliver(
                    self._topic,
                    value=encode_json(action),
                    key=action.node.encode(),
                    partition=partition_of(action.node, self._partitions),
                )
        except TimeoutError as error:
            text = f"{self._topic}: no delivery within {_WRITE_SECONDS:g} s"
            raise BrokerUnavailableError(text) from error

    async def run(self) -> None:
        """Write queued actions, until cancelled."""
        async with self._producer as producer:
            while True:
                action = await self._waiting.get()
                try:
                    delivery = await producer.send(
                        self._topic,
                        value=encode_json(action),
                        key=action.node.encode(),
                        partition=partition_of(action.node, self._partitions),
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
