"""Write dead letters of the table."""

from pipeline.kafka.producer import Producer
from pipeline.topics.dead_letters import DeadLetter
from pipeline.topics.registry import DEAD_LETTERS


class DeadLetterWriter:
    """Writes dead letters to the topic of `prefix`; a loss is logged, and counted in `lost`.

    Reading goes on after a loss, because the record itself stays in its compacted topic.
    """

    def __init__(self, producer: Producer, prefix: str) -> None:
        self._producer = producer
        self._topic = DEAD_LETTERS.full_name(prefix)

    @property
    def lost(self) -> int:
        return self._producer.lost

    async def send(self, letter: DeadLetter) -> None:
        """Deliver one letter, or give up after ten seconds and count it as lost."""
        await self._producer.offer(
            self._topic, value=letter.value, key=letter.key, headers=letter.headers
        )
