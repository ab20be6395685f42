"""A producer for what is written seldom: started when the first record comes.

Owes the rest: a record is delivered, or counted as lost and told of in the log; nobody waits for
longer than ten seconds.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka import errors as kafka_errors

from pipeline.logs import get_logger

_TIMEOUT_SECONDS: Final = 10.0

_log = get_logger(__name__)


class LazyProducer:
    """Sends as `client` (what aiokafka's clients take) has it; `lost` counts what could not be."""

    def __init__(self, client: Mapping[str, Any]) -> None:
        self.lost = 0
        self._client = client
        self._producer: AIOKafkaProducer | None = None
        self._starting = asyncio.Lock()

    async def send(
        self,
        topic: str,
        value: bytes,
        *,
        key: bytes | None,
        partition: int | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        """Deliver one record, or give up after ten seconds."""
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                producer = await self._started()
                await producer.send_and_wait(
                    topic, value, key=key, partition=partition, headers=headers
                )
        except (kafka_errors.KafkaError, OSError, TimeoutError) as error:
            self.lost += 1
            _log.error("record lost", topic=topic, error=repr(error))

    async def _started(self) -> AIOKafkaProducer:
        async with self._starting:
            if self._producer is None:
                producer = AIOKafkaProducer(**self._client, enable_idempotence=True)
                try:
                    await producer.start()
                except BaseException:
                    await producer.stop()
                    raise
                self._producer = producer
            return self._producer

    async def close(self) -> None:
        """Stop the producer, if there is one."""
        if self._producer is not None:
            await self._producer.stop()
            self._producer = None
