"""Write the decisions of actuators to `springtide.actions`.

Most actions are a record for people, and no decision depends on them: `put` never waits for Kafka.
During a long outage the oldest queued actions are dropped and counted. `write` awaits the delivery,
for an action that the next leader must know.
"""

import asyncio
from typing import Final

from prometheus_client import Counter

from pipeline.errors import BrokerUnavailableError, KafkaError
from pipeline.kafka.client import client_options
from pipeline.kafka.follow import Backoff
from pipeline.kafka.partition import partition_of
from pipeline.kafka.producer import Producer
from pipeline.logs import get_logger
from pipeline.settings import KafkaSettings
from pipeline.topics.actions import ActionRecord
from pipeline.topics.codec import encode_json
from pipeline.topics.registry import ACTIONS

log = get_logger(__name__)

_WRITE_SECONDS: Final = 10.0
_BACKOFF_SECONDS: Final = (1.0, 30.0)


class Actions:
    """A bounded queue of actions, which `run` writes to the topic. `lost` counts those that could
    not be written."""

    def __init__(self, kafka: KafkaSettings, lost: Counter) -> None:
        self._lost = lost
        self._partitions = kafka.partitions
        self._topic = ACTIONS.full_name(kafka.topic_prefix)
        self._producer = Producer(client_options(kafka))
        self._waiting: asyncio.Queue[ActionRecord] = asyncio.Queue(10_000)

    def put(self, action: ActionRecord) -> None:
        """Queue an action. If the queue is full, the oldest action is dropped."""
        if self._waiting.full():
            self._waiting.get_nowait()
            self._lost.inc()
        self._waiting.put_nowait(action)

    async def write(self, action: ActionRecord, partition: int | None = None) -> float | None:
        """Write an action, by default to the partition of its node, and await its delivery; returns
        when the broker appended it (Unix time), None if it does not say. Raises `KafkaError` if it
        is not delivered within ten seconds."""
        if partition is None:
            partition = partition_of(action.node, self._partitions)
        try:
            async with asyncio.timeout(_WRITE_SECONDS):
                return await self._producer.deliver(
                    self._topic,
                    value=encode_json(action),
                    key=action.node.encode(),
                    partition=partition,
                )
        except TimeoutError as error:
            text = f"{self._topic}: no delivery within {_WRITE_SECONDS:g} s"
            raise BrokerUnavailableError(text) from error

    async def run(self) -> None:
        """Write queued actions, until cancelled. They wait until a broker answers."""
        try:
            await self._connect()
            while True:
                action = await self._waiting.get()
                try:
                    delivery = await self._producer.send(
                        self._topic,
                        value=encode_json(action),
                        key=action.node.encode(),
                        partition=partition_of(action.node, self._partitions),
                    )
                except KafkaError as error:
                    self._lose(error)
                else:
                    delivery.add_done_callback(self._check)
        finally:
            await self._producer.stop()

    async def _connect(self) -> None:
        backoff = Backoff(*_BACKOFF_SECONDS)
        while True:
            try:
                return await self._producer.start()
            except BrokerUnavailableError as error:
                if backoff.is_first:
                    log.warning("no broker answers, actions wait", why=error)
            await asyncio.sleep(backoff.pause())

    def _check(self, delivery: asyncio.Future[object]) -> None:
        if not delivery.cancelled() and (error := delivery.exception()) is not None:
            self._lose(error)

    def _lose(self, error: BaseException) -> None:
        self._lost.inc()
        log.warning("action lost", why=str(error) or type(error).__name__)
