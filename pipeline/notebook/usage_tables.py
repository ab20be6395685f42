"""Past usage as Arrow tables in the columns of an archive: from an archive, or from the topic."""

import asyncio
from collections.abc import AsyncIterator, Collection, Coroutine, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import date, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar
from warnings import warn

import pyarrow as pa

from pipeline.archive.archive_reader import read_table, schema_of
from pipeline.errors import RecordError, UsageError
from pipeline.kafka.client import client_options
from pipeline.kafka.partition import partition_of
from pipeline.kafka.partition_log import LogReader, LogRecord, open_reader
from pipeline.kafka.topic_admin import require_topics
from pipeline.notebook.notebook_settings import read_settings
from pipeline.processors.archive.archive_rows import LoggedWindow, archive_rows
from pipeline.settings import KafkaSettings, Settings
from pipeline.topics.registry import WINDOWS
from pipeline.topics.windows import decode_window

MOST_ROWS: Final = 5_000_000
"""Rows that `read_topic` returns at most: some gigabytes with all columns."""

_T = TypeVar("_T")


def read_archive(
    directory: str | Path,
    *,
    since: date | None = None,
    until: date | None = None,
    nodes: Collection[str] | None = None,
    columns: Sequence[str] | None = None,
) -> pa.Table:
    """The rows of an archive of the days since <= day <= until (UTC) of these nodes (None: all) in
    these columns of `ARCHIVE_SCHEMA` (None: all). All rows must fit into memory.

    Raises `UsageError` if the directory is no archive or has no such column.
    """
    _check_nodes(nodes)
    for name, day in (("since", since), ("until", until)):
        if isinstance(day, datetime):
            raise UsageError(f"{name}, {day}, is no date", hint=f"give {name}.date()")
    return read_table(Path(directory), since=since, until=until, nodes=nodes, columns=columns)


class _Span(NamedTuple):
    """Append times in milliseconds, `until_ms` None for the present end, and nodes, None: all."""

    since_ms: int
    until_ms: int | None
    nodes: Collection[str] | None


def read_topic(
    settings: Settings | None = None,
    *,
    since: datetime,
    until: datetime | None = None,
    nodes: Collection[str] | None = None,
    columns: Sequence[str] | None = None,
) -> pa.Table:
    """The windows that were appended to the topic at since <= time < until, by default up to its
    present end, of these nodes (None: all), in these columns of `ARCHIVE_SCHEMA` (None: all).

    Rows are in the order of the log, partition by partition. A warning counts records that cannot
    be read, and another names partitions that begin later than the span. Works beside a running
    event loop, as in Jupyter; an interrupt ends it.

    Raises `UsageError` for an invalid span or column, or more than `MOST_ROWS` rows, `KafkaError`
    without broker or topic.
    """
    _check_nodes(nodes)
    until_ms = None if until is None else _milliseconds("until", until)
    span = _Span(_milliseconds("since", since), until_ms, nodes)
    if until_ms is not None and until_ms <= span.since_ms:
        raise UsageError(f"until, {until}, is not after since, {since}", hint="give a later until")
    schema = schema_of(columns)
    kafka = (settings or read_settings()).kafka
    table, problems = _result_of(_read_span(kafka, span, schema))
    for problem in problems:
        warn(problem, stacklevel=2)
    return table


def _check_nodes(nodes: Collection[str] | None) -> None:
    if isinstance(nodes, str):
        raise UsageError(f"nodes is the text {nodes!r:.100}", hint="give a list of names")


def _milliseconds(name: str, time: datetime) -> int:
    if time.tzinfo is None:
        raise UsageError(f"{name}, {time}, has no time zone", hint="add tzinfo=datetime.UTC")
    return round(time.timestamp() * 1000)


async def _read_span(
    kafka: KafkaSettings, span: _Span, schema: pa.Schema
) -> tuple[pa.Table, list[str]]:
    """The rows of a span, and what to warn of."""
    await require_topics(kafka, (WINDOWS,))
    topic, count = WINDOWS.full_name(kafka.topic_prefix), WINDOWS.partition_count(kafka.partitions)
    partitions = [*range(count)]
    if span.nodes is not None:
        partitions = sorted({partition_of(node, count) for node in span.nodes})
    batches: list[pa.RecordBatch] = []
    rows = unreadable = 0
    problems: list[str] = []
    late: list[int] = []
    async with open_reader(client_options(kafka), [(topic, p) for p in partitions]) as reader:
        for partition in partitions:
            async for records in _records(reader, topic, partition, span):
                windows, errors = _decoded(records)
                if errors and not unreadable:
                    problems = [f"records of {topic} cannot be read; the first: {errors[0]}"]
                unreadable += len(errors)
                if windows:
                    batches.append(archive_rows(windows).select(schema.names))
                    rows += len(batches[-1])
                if rows > MOST_ROWS:
                    raise UsageError(f"the span has more than {MOST_ROWS:,} rows",
                                     hint="give a shorter span, or nodes")  # fmt: skip
            if await _begins_late(reader, topic, partition, span):
                late.append(partition)
    problems = [f"{unreadable} {problem}" for problem in problems]
    if late:
        problems.append(f"{topic} begins later than the span in the partitions {late}: older "
                        "windows, if there were any, are in an archive at most")  # fmt: skip
    return pa.Table.from_batches(batches, schema), problems


async def _records(
    reader: LogReader, topic: str, partition: int, span: _Span
) -> AsyncIterator[list[LogRecord]]:
    """The records of the span that are there now."""
    keys = None if span.nodes is None else {node.encode() for node in span.nodes}
    start = await reader.offset_at(topic, partition, span.since_ms)
    _, end = await reader.bounds(topic, partition)
    if span.until_ms is not None:
        end = await reader.offset_at(topic, partition, span.until_ms)
    async for records in reader.read(topic, partition, start, end):
        yield [record for record in records if keys is None or record.key in keys]


async def _begins_late(reader: LogReader, topic: str, partition: int, span: _Span) -> bool:
    """Whether retention may have deleted records of the span, before or while it was read."""
    first, _ = await reader.bounds(topic, partition)
    return 0 < first == await reader.offset_at(topic, partition, span.since_ms)


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


def _result_of(work: Coroutine[Any, Any, _T]) -> _T:
    """Run `work` to its end in a thread: in Jupyter the caller's thread has a running loop."""
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = Future()

    async def main() -> _T:
        task = asyncio.current_task()
        assert task is not None
        started.set_result((asyncio.get_running_loop(), task))
        return await work

    with ThreadPoolExecutor(1) as executor:
        done = executor.submit(asyncio.run, main())
        try:
            return done.result()
        except KeyboardInterrupt:
            loop, task = started.result()
            with suppress(RuntimeError):  # it has just ended, and its loop is closed
                loop.call_soon_threadsafe(task.cancel)
            raise
