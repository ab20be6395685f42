"""Read traces from the log of windows: from an archive, or from the topic."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.archive.archive_files import archive_files
from pipeline.archive.archive_reader import read_row_groups
from pipeline.archive.topic_span import AppendSpan, read_span
from pipeline.processors.archive.archive_rows import LoggedWindow, archive_rows
from pipeline.processors.backtest.trace import Trace
from pipeline.processors.backtest.window_log import COLUMNS, WindowLog
from pipeline.processors.backtest.window_traces import window_trace
from pipeline.settings import KafkaSettings

Progress = Callable[[float], None]
"""Called with the share that was read, 0 to 1."""


class Span(NamedTuple):
    """The windows that ended at since < time <= until, Unix seconds; None: all."""

    since: float | None = None
    until: float | None = None

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of these windows, and of the ends of nodes in this time, which have no window
        and one row."""
        times = pc.coalesce(batch["window_end"], batch["sample_appended"]).cast(pa.int64())
        for bound, compare in ((self.since, pc.greater), (self.until, pc.less_equal)):
            if bound is not None:
                chosen = compare(times, pa.scalar(round(1000 * bound), pa.int64()))
                batch, times = batch.filter(chosen), times.filter(chosen)
        return batch


EVERYTHING: Final = Span()


def is_archive(directory: Path) -> bool:
    """Whether a directory has a complete file of an archive."""
    try:
        return bool(archive_files(directory))
    except OSError:
        return False


def archive_trace(
    directory: Path, dataset: str, statistic: str, span: Span, progress: Progress
) -> Trace:
    """The trace of the windows of an archive, with this statistic of usage.

    Raises `UsageError` if the directory is no archive, `InvalidRecordError` for a damaged file or
    without a pod of Prod.
    """
    log = WindowLog(statistic)
    # A file is of the day on which a window starts.
    since = None if span.since is None else _day(span.since) - timedelta(days=1)
    until = None if span.until is None else _day(span.until)

    def add(batch: pa.RecordBatch) -> None:
        log.add(span.rows(batch))

    read_row_groups(directory, COLUMNS, add, since=since, until=until, progress=progress)
    return window_trace(dataset, log)


async def topic_trace(
    kafka: KafkaSettings, dataset: str, statistic: str, span: Span, progress: Progress
) -> Trace:
    """The trace of the windows that the topic has now, with this statistic of usage.

    Raises `KafkaError` without broker or topic, `InvalidRecordError` without a pod of Prod.
    """
    log = WindowLog(statistic)

    def add(windows: list[LoggedWindow]) -> None:
        log.add(span.rows(archive_rows(windows).select(COLUMNS)))

    # A window is appended after its end, a late one long after it.
    since_ms = None if span.since is None else round(1000 * span.since)
    problems = await read_span(kafka, AppendSpan(since_ms), add, progress)
    trace = window_trace(dataset, log)
    return replace(trace, notes=(*problems, *trace.notes))


def _day(seconds: float) -> date:
    return datetime.fromtimestamp(seconds, UTC).date()
