"""Writes the table's dead letters."""

from pipeline.kafka.lazy_producer import LazyProducer
from pipeline.topics.dead_letters import DeadLetter
from pipeline.topics.registry import DEAD_LETTERS


class DeadLetterWriter:
    """Sends dead letters to the topic of `prefix`; `lost` counts those that could not be sent.

    The record itself stays in its compacted topic, so a lost letter is logged and reading goes on.
    """

    def __init__(self, producer: LazyProducer, prefix: str) -> None:
        self._producer = producer
        self._topic = DEAD_LETTERS.full_name(prefix)

    @property
    def lost(self) -> int:
        return self._producer.lost

    async def send(self, letter: DeadLetter) -> None:
        """Deliver one letter, or give up after ten seconds and count it as lost."""
        await self._producer.send(self._topic, letter.value, key=letter.key, headers=letter.headers)
