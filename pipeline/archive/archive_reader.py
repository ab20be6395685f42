"""Read an archive: as windows for the processors, or as an Arrow table.

    for record in read_windows(Path("archive"), since=date(2026, 11, 1)):
        record.partition, record.offset, record.window

Other programs read the files as they are: docs/reference/archive.md.
"""

import heapq
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from functools import lru_cache
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.archive.archive_files import (
    ArchiveFile,
    SegmentMetadata,
    archive_files,
    read_metadata,
    segment_metadata,
)
from pipeline.errors import InvalidRecordError, RecordError, UsageError
from pipeline.kafka.partition import partition_of
from pipeline.processors.archive.archive_rows import LoggedWindow
from pipeline.processors.archive.archive_schema import (
    ARCHIVE_SCHEMA,
    COLUMNS,
    CONTAINER_COLUMNS,
)
from pipeline.processors.archive.archived_windows import archived_windows

_OPEN_FILES: Final = 8
_BLOCK: Final = 1_000
"""Records of a partition that are put in order of time together."""


def files_of_days(
    directory: Path, since: date | None = None, until: date | None = None
) -> list[ArchiveFile]:
    """The files of the days since <= day <= until (UTC), in the order of the log.

    Raises `UsageError` if the directory is no archive.
    """
    try:
        files = archive_files(directory)
    except OSError as error:
        raise UsageError(f"cannot read {directory}: {error.strerror or error}",
                         hint="give the directory of `springtide archive`") from error  # fmt: skip
    if not files:
        raise UsageError(
            f"{directory} has no file of an archive",
            hint="give the directory of `springtide archive`, with folders date=YYYY-MM-DD",
        )
    return [
        file
        for file in files
        if (since is None or file.day >= since) and (until is None or file.day <= until)
    ]


def read_windows(
    directory: Path,
    *,
    since: date | None = None,
    until: date | None = None,
    nodes: Collection[str] | None = None,
) -> Iterator[LoggedWindow]:
    """Yield the records of the days since <= day <= until (UTC) of these nodes (None: all).

    Records of one node come in the order of the log, which is that of the models: a late window
    stays behind the newer one that came first. Records of several nodes come in the order of their
    ends, unless one reached its partition later than the next thousand. In memory are some row
    groups of each partition.

    Raises `UsageError` without an archive, `InvalidRecordError` for a damaged file.
    """
    files = files_of_days(directory, since, until)
    if not files:
        return
    partitions = len(read_metadata(files[-1].path).offsets)
    wanted = (
        range(partitions)
        if nodes is None
        else sorted({partition_of(node, partitions) for node in nodes})
    )
    opened = lru_cache(maxsize=_OPEN_FILES)(_open)
    streams = [
        _in_order_of_time(_in_order_of_log(files, partition, nodes, opened)) for partition in wanted
    ]
    for _, record in heapq.merge(*streams, key=lambda item: item[0]):
        yield record


def read_table(
    directory: Path,
    *,
    since: date | None = None,
    until: date | None = None,
    nodes: Collection[str] | None = None,
    columns: Sequence[str] | None = None,
) -> pa.Table:
    """The rows of the days since <= day <= until (UTC) of these nodes (None: all) in these columns
    (None: all), in the order of the files. All rows must fit into memory."""
    schema = schema_of(columns)
    needed = [*dict.fromkeys([*schema.names, "node"])]
    tables = [schema.empty_table()]

    def add(table: pa.Table) -> None:
        tables.append(_of_nodes(table, nodes).select(schema.names))

    read_files(directory, needed, add, since=since, until=until)
    return pa.concat_tables(tables)


def read_files(
    directory: Path,
    columns: Sequence[str],
    consume: Callable[[pa.Table], None],
    *,
    since: date | None = None,
    until: date | None = None,
    progress: Callable[[float], None] = lambda _: None,
) -> None:
    """Call `consume` with these columns of each file of the days since <= day <= until (UTC).

    `progress` is called with the share of the files that was read, 0 to 1. Raises `UsageError`
    without an archive, and `InvalidRecordError`, which names the file, for a damaged one or if
    `consume` raises a `RecordError`.
    """
    schema = schema_of(columns)
    files = files_of_days(directory, since, until)
    for place, file in enumerate(files):
        parquet = _open(file.path).parquet
        with _named(str(file.path)):
            consume(_in_schema(parquet.read(columns=schema.names), schema))
        progress((place + 1) / len(files))


def read_row_groups(
    directory: Path,
    columns: Sequence[str],
    consume: Callable[[pa.RecordBatch], None],
    *,
    since: date | None = None,
    until: date | None = None,
    progress: Callable[[float], None] = lambda _: None,
) -> None:
    """Call `consume` with the rows of the days since <= day <= until (UTC) in these columns, in the
    order of the files, a batch for each row group: all rows of a window are in one batch.

    `progress` is called with the share that was read, 0 to 1. Raises as `read_files`; the error
    names the row group, too, counted from 0.
    """
    schema = schema_of(columns)
    files = files_of_days(directory, since, until)
    for place, file in enumerate(files):
        parquet = _open(file.path).parquet
        groups = parquet.num_row_groups
        for group in range(groups):
            with _named(f"{file.path}, row group {group}"):
                read = parquet.read_row_group(group, columns=schema.names)
                table = _in_schema(read, schema)
                for batch in table.combine_chunks().to_batches():
                    consume(batch)
            progress((place + (group + 1) / groups) / len(files))


@contextmanager
def _named(place: str) -> Iterator[None]:
    """Name this place of an archive in errors about its rows."""
    try:
        yield
    except RecordError as error:
        raise InvalidRecordError(f"{place}: {error.message}", hint=error.hint) from error
    except (pa.ArrowException, OSError, KeyError) as error:
        raise InvalidRecordError(f"{place} cannot be read: {error!s:.200}") from error


def schema_of(columns: Sequence[str] | None) -> pa.Schema:
    """These columns of `ARCHIVE_SCHEMA`; None: all. Raises `UsageError` for another column."""
    names = ARCHIVE_SCHEMA.names if columns is None else [*columns]
    if unknown := [name for name in names if name not in ARCHIVE_SCHEMA.names]:
        raise UsageError(f"an archive has no column {unknown[0]!r}",
                         hint="docs/reference/archive.md lists the columns")  # fmt: skip
    return pa.schema([ARCHIVE_SCHEMA.field(name) for name in names])


class _File(NamedTuple):
    parquet: pq.ParquetFile
    metadata: SegmentMetadata


def _open(path: Path) -> _File:
    try:
        parquet = pq.ParquetFile(path)
        return _File(parquet, segment_metadata(parquet.metadata))
    except (pa.ArrowException, RecordError, OSError) as error:
        raise InvalidRecordError(f"{path} is not a file of an archive: {error!s:.200}") from error


def _in_order_of_log(
    files: Sequence[ArchiveFile], partition: int, nodes: Collection[str] | None, opened: Any
) -> Iterator[LoggedWindow]:
    """The records of a partition; those of one segment lie in the files of several days."""
    for _, of_segment in groupby(files, key=lambda file: file.segment):
        of_days = [_records(opened, file.path, partition, nodes) for file in of_segment]
        yield from heapq.merge(*of_days, key=lambda record: record.offset)


def _records(
    opened: Any, path: Path, partition: int, nodes: Collection[str] | None
) -> Iterator[LoggedWindow]:
    """The records of a partition in one file."""
    for number, own in enumerate(opened(path).metadata.row_groups):
        if own != partition:
            continue
        parquet = opened(path).parquet
        with _named(f"{path}, row group {number}"):
            table = _of_nodes(_in_schema(parquet.read_row_group(number), ARCHIVE_SCHEMA), nodes)
            for batch in table.combine_chunks().to_batches():
                yield from archived_windows(batch)


def _in_order_of_time(records: Iterator[LoggedWindow]) -> Iterator[tuple[int, LoggedWindow]]:
    """Records of a partition with the time of each in milliseconds, by it within blocks: its end,
    or the time of the last record of its node if that is later."""
    times: dict[str, int] = {}
    while block := list(islice(records, _BLOCK)):
        timed = []
        for record in block:
            header, window = record.window.header, record.window
            own = header.window_end_ms if window.type == "window" else window.appended_ms
            times[header.node] = max(own, times.get(header.node, 0))
            timed.append((times[header.node], record))
        yield from sorted(timed, key=lambda item: item[0])


def _in_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of `schema`; those of containers are null where an older release wrote none."""
    for name in CONTAINER_COLUMNS:
        if name in schema.names and name not in table.schema.names:
            table = table.append_column(name, pa.nulls(len(table), COLUMNS[name].type))
    return table.select(schema.names).cast(schema)


def _of_nodes(table: pa.Table, nodes: Collection[str] | None) -> pa.Table:
    if nodes is None:
        return table
    return table.filter(pc.is_in(table["node"], pa.array(sorted(nodes), pa.string())))
