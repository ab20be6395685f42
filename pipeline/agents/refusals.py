"""Write refused records to the dead letters, all of a batch at once."""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from pipeline.errors import RecordError
from pipeline.kafka.partition_log import LogRecord
from pipeline.kafka.producer import Producer
from pipeline.logs import get_logger
from pipeline.metrics import counter
from pipeline.topics.dead_letters import dead_letter
from pipeline.topics.registry import DEAD_LETTERS

log = get_logger(__name__)

DEAD = counter("worker_dead_letters", "Records written to the dead letters.", ["topic", "reason"])

Refused = Sequence[tuple[LogRecord, RecordError]]
"""Invalid records of one partition, and why."""

Refuse = Callable[[str, Refused], Awaitable[None]]
"""Writes dead letters for records of a topic."""


async def refuse_records(output: Producer, prefix: str, topic: str, refused: Refused) -> None:
    """Write refused records to the dead letters, count them, and log the first of each reason."""
    if not refused:
        return
    name = topic.removeprefix(f"{prefix}.")
    counts = Counter(error.reason for _, error in refused)
    first = {error.reason: (record, error) for record, error in reversed(refused)}
    for reason, count in counts.items():
        record, error = first[reason]
        DEAD.labels(name, reason).inc(count)
        log.warning("record refused" if count == 1 else "records refused",
                    per=(topic, reason), topic=topic,
                    partition=record.partition, offset=record.offset, count=count, reason=reason,
                    error=error.message)  # fmt: skip
    letters = [
        dead_letter(topic, record.partition, record.offset, record.key, record.value, error)
        for record, error in refused
    ]
    await output.dead_letters(DEAD_LETTERS.full_name(prefix), refused[0][0].partition, letters)


async def ignore_records(topic: str, refused: Refused) -> None:
    """A `Refuse` for readers that write nothing: a worker writes the dead letters."""
