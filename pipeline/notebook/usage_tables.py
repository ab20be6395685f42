"""Past usage as Arrow tables in the columns of an archive: from an archive, or from the topic."""

import asyncio
from collections.abc import Collection, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import date, datetime
from pathlib import Path
from typing import Any, Final, TypeVar
from warnings import warn

import pyarrow as pa

from pipeline.archive.archive_reader import read_table, schema_of
from pipeline.archive.topic_span import AppendSpan, read_span
from pipeline.errors import UsageError
from pipeline.notebook.notebook_settings import read_settings
from pipeline.processors.archive.archive_rows import LoggedWindow, archive_rows
from pipeline.settings import KafkaSettings, Settings

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
    span = AppendSpan(_milliseconds("since", since), until_ms, nodes)
    if until is not None and until <= since:
        raise UsageError(f"until, {until}, is not after since, {since}", hint="give a later until")
    schema = schema_of(columns)
    kafka = (settings or read_settings()).kafka
    table, problems = _result_of(_read_rows(kafka, span, schema))
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


async def _read_rows(
    kafka: KafkaSettings, span: AppendSpan, schema: pa.Schema
) -> tuple[pa.Table, list[str]]:
    """The rows of a span, and what to warn of."""
    batches: list[pa.RecordBatch] = []
    rows = 0

    def add(windows: list[LoggedWindow]) -> None:
        nonlocal rows
        batches.append(archive_rows(windows).select(schema.names))
        rows += len(batches[-1])
        if rows > MOST_ROWS:
            raise UsageError(f"the span has more than {MOST_ROWS:,} rows",
                             hint="give a shorter span, or nodes")  # fmt: skip

    problems = await read_span(kafka, span, add)
    return pa.Table.from_batches(batches, schema), problems


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
