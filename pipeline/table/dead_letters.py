"""Writes the table's dead letters, with a producer that is started when the first one comes."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka import errors as kafka_errors

from pipeline.logs import get_logger
from pipeline.topics.dead_letters import DeadLetter
from pipeline.topics.registry import DEAD_LETTERS

_TIMEOUT_SECONDS: Final = 10.0

_log = get_logger(__name__)


class DeadLetterWriter:
    """Sends dead letters to the topic of `prefix`; `lost` counts those that could not be sent.

    The record itself stays in its compacted topic, so a lost letter is logged and reading goes on.
    """

    def __init__(self, client: Mapping[str, Any], prefix: str) -> None:
        self.lost = 0
        self._client = client
        self._topic = DEAD_LETTERS.full_name(prefix)
        self._producer: AIOKafkaProducer | None = None

    async def send(self, letter: DeadLetter) -> None:
        """Deliver one letter, or give up after ten seconds and count it as lost."""
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                if self._producer is None:
                    await self._start()
                assert self._producer is not None
                await self._producer.send_and_wait(
                    self._topic, letter.value, key=letter.key, headers=letter.headers
                )
        except (kafka_errors.KafkaError, OSError, TimeoutError) as error:
            self.lost += 1
            _log.error("dead letter lost", topic=self._topic, error=repr(error))

    async def _start(self) -> None:
        producer = AIOKafkaProducer(**self._client, enable_idempotence=True)
        try:
            await producer.start()
        except BaseException:
            await producer.stop()
            raise
        self._producer = producer

    async def close(self) -> None:
        """Stop the producer, if there is one."""
        if self._producer is not None:
            await self._producer.stop()
            self._producer = None
