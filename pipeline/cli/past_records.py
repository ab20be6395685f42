"""Read the records of a topic that were published since a time, for commands that show them."""

from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Final, Generic, TypeVar

import click

from pipeline.cli.safe_output import printable
from pipeline.errors import RecordError
from pipeline.kafka.client import client_options
from pipeline.kafka.follow import ConsumerRecord, Follower, open_follower, topic_partitions
from pipeline.kafka.topic_admin import require_topics
from pipeline.settings import KafkaSettings
from pipeline.topics.codec import Record, decode_json
from pipeline.topics.registry import Topic

MOST_RECORDS: Final = 100_000
"""Records that are shown, the newest ones: a topic may have more than memory."""

RecordT = TypeVar("RecordT", bound=Record)


class PastRecords(Generic[RecordT]):
    """The records of one type that a follower reads; invalid ones are skipped, with one warning for
    all that a reading has."""

    def __init__(self, follower: Follower, record_type: type[RecordT]) -> None:
        self._follower = follower
        self._type = record_type
        self._skipped = 0
        self._first_error = ""

    async def to_end(self) -> list[RecordT]:
        """The newest `MOST_RECORDS` up to the end of the topic."""
        records: deque[RecordT] = deque(maxlen=MOST_RECORDS)
        async for record in self.each_to_end():
            records.append(record)
        if len(records) == MOST_RECORDS:
            click.echo(f"showing the last {MOST_RECORDS} records", err=True)
        return [*records]

    async def each_to_end(self) -> AsyncIterator[RecordT]:
        """Yield the records up to the end of the topic."""
        while not self._follower.is_caught_up:
            for record in self._decoded(await self._follower.poll()):
                yield record
        self._warn_of_skipped()

    async def next(self, timeout_seconds: float) -> list[RecordT]:
        """The next records, none if none came in time."""
        polled = await self._follower.poll(timeout_seconds=timeout_seconds)
        records = [*self._decoded(polled)]
        self._warn_of_skipped()
        return records

    def _decoded(self, records: Iterable[ConsumerRecord]) -> Iterable[RecordT]:
        for record in records:
            try:
                yield decode_json(self._type, record.value or b"")
            except RecordError as error:
                self._skipped += 1
                place = f"{record.topic}, partition {record.partition}, offset {record.offset}"
                self._first_error = self._first_error or f"{place}: {error.message}"

    def _warn_of_skipped(self) -> None:
        if self._skipped:
            count = "a record" if self._skipped == 1 else f"{self._skipped:,} records, the first"
            text = f"warning: skipped {count} of {self._first_error}"
            click.echo(printable(text), err=True)
            self._skipped, self._first_error = 0, ""


@asynccontextmanager
async def records_since(
    kafka: KafkaSettings, topic: Topic, record_type: type[RecordT], since: float
) -> AsyncIterator[PastRecords[RecordT]]:
    """Read a topic from a time on (Unix). Raises `KafkaError` without broker or topic."""
    await require_topics(kafka, (topic,))
    client, partitions = client_options(kafka), topic_partitions(kafka, topic)
    async with open_follower(client, partitions) as follower:
        await follower.begin({topic.full_name(kafka.topic_prefix): max(round(1000 * since), 0)})
        yield PastRecords(follower, record_type)
