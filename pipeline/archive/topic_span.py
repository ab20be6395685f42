"""Read a span of `springtide.windows` as it is now: the windows that were appended in a time."""

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from pipeline.errors import RecordError
from pipeline.kafka.client import client_options
from pipeline.kafka.partition import partition_of
from pipeline.kafka.partition_log import LogReader, LogRecord, open_reader
from pipeline.kafka.topic_admin import require_topics
from pipeline.processors.archive.archive_rows import LoggedWindow
from pipeline.settings import KafkaSettings
from pipeline.topics.registry import WINDOWS
from pipeline.topics.windows import decode_window


class AppendSpan(NamedTuple):
    """Append times in milliseconds, since_ms <= time < until_ms, and nodes, None: all. None is the
    beginning of the topic, and its present end."""

    since_ms: int | None = None
    until_ms: int | None = None
    nodes: Collection[str] | None = None


async def read_span(
    kafka: KafkaSettings,
    span: AppendSpan,
    consume: Callable[[list[LoggedWindow]], None],
    progress: Callable[[float], None] = lambda _: None,
) -> list[str]:
    """Call `consume` with the windows of the span, partition by partition, in the order of the log.

    `progress` is called with the share that was read, 0 to 1. Returns what to warn of: records that
    cannot be read, and partitions that begin later than the span. Raises `KafkaError` without
    broker or topic.
    """
    await require_topics(kafka, (WINDOWS,))
    topic, count = WINDOWS.full_name(kafka.topic_prefix), WINDOWS.partition_count(kafka.partitions)
    partitions = [*range(count)]
    if span.nodes is not None:
        partitions = sorted({partition_of(node, count) for node in span.nodes})
    unreadable, first_error = 0, ""
    late: list[int] = []
    async with open_reader(client_options(kafka), [(topic, p) for p in partitions]) as reader:
        ranges = {each: await _range(reader, topic, each, span) for each in partitions}
        total, done = max(sum(end - start for start, end in ranges.values()), 1), 0
        for partition, (start, end) in ranges.items():
            async for records in reader.read(topic, partition, start, end):
                windows, errors = _decoded(_of_nodes(records, span.nodes))
                unreadable += len(errors)
                first_error = first_error or "".join(errors[:1])
                if windows:
                    consume(windows)
                progress((done + records[-1].offset + 1 - start) / total)
            done += end - start
            if await _begins_late(reader, topic, partition, span):
                late.append(partition)
    problems = []
    if unreadable:
        problems.append(f"{unreadable} records of {topic} cannot be read; the first: {first_error}")
    if late:
        problems.append(f"{topic} begins later than the span in the partitions {late}: older "
                        "windows, if there were any, are in an archive at most")  # fmt: skip
    return problems


async def _range(
    reader: LogReader, topic: str, partition: int, span: AppendSpan
) -> tuple[int, int]:
    """The offsets of the records of the span that are there now: start <= offset < end."""
    start, end = await reader.bounds(topic, partition)
    if span.since_ms is not None:
        start = await reader.offset_at(topic, partition, span.since_ms)
    if span.until_ms is not None:
        end = await reader.offset_at(topic, partition, span.until_ms)
    return start, max(start, end)


async def _begins_late(reader: LogReader, topic: str, partition: int, span: AppendSpan) -> bool:
    """Whether retention may have deleted records of the span, before or while it was read."""
    if span.since_ms is None:
        return False
    first, _ = await reader.bounds(topic, partition)
    return 0 < first == await reader.offset_at(topic, partition, span.since_ms)


def _of_nodes(records: list[LogRecord], nodes: Collection[str] | None) -> list[LogRecord]:
    if nodes is None:
        return records
    keys = {node.encode() for node in nodes}
    return [record for record in records if record.key in keys]


def _decoded(records: Iterable[LogRecord]) -> tuple[list[LoggedWindow], list[str]]:
    """The windows of these records, and what is wrong with the others."""
    windows: list[LoggedWindow] = []
    errors: list[str] = []
    for record in records:
        try:
            window = decode_window(record.value or b"")
        except RecordError as error:
            place = f"partition {record.partition}, offset {record.offset}"
            errors.append(f"{place}: {error.message:.300}")
        else:
            windows.append(LoggedWindow(record.partition, record.offset, window))
    return windows, errors
