"""Write one segment of an archive: nothing of it counts before `commit`.

A row group holds windows of one partition in the order of the log, so that a reader can follow each
partition through many files. Rows wait in memory until a row group is full, or until all that wait
are `MOST_WAITING_ROWS`.
"""

from collections import defaultdict
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.archive.archive_files import (
    SegmentMetadata,
    encode_metadata,
    file_name,
    partial_path,
    sync,
)
from pipeline.processors.archive.archive_rows import LoggedWindow, archive_rows
from pipeline.processors.archive.archive_schema import ARCHIVE_SCHEMA, DICTIONARY_COLUMNS
from pipeline.topics.samples import NUMBER_COLUMNS

ROW_GROUP_ROWS: Final = 16_384
MOST_WAITING_ROWS: Final = 131_072
MOST_DAYS: Final = 32
"""Files that are open at once. A segment with windows of more days ends early."""

_LAST_MS: Final = 253_402_300_799_000


def day_of(record: LoggedWindow) -> date:
    """The day (UTC) on which a window starts; of the end of a node, that of its record."""
    window = record.window
    is_window = window.type == "window"
    milliseconds = window.header.window_start_ms if is_window else window.appended_ms
    return datetime.fromtimestamp(min(milliseconds, _LAST_MS) / 1000, UTC).date()


class _OpenFile(NamedTuple):
    path: Path
    writer: pq.ParquetWriter
    partitions: list[int]


class SegmentWriter:
    """The files of one segment in `directory`, whose lock the caller has."""

    def __init__(self, directory: Path, segment: int) -> None:
        self.segment = segment
        self.rows = 0
        self.windows = 0
        self._directory = directory
        self._waiting: defaultdict[int, list[LoggedWindow]] = defaultdict(list)
        self._waiting_rows: defaultdict[int, int] = defaultdict(int)
        self._files: dict[date, _OpenFile] = {}
        self._days: set[date] = set()

    @property
    def is_full(self) -> bool:
        """Whether it has windows of as many days as it may have."""
        return len(self._days) >= MOST_DAYS

    def add(self, record: LoggedWindow) -> None:
        """Add the next record of its partition. Raises `OSError` if the disk refuses."""
        rows, partition = len(record.window.rows), record.partition
        self.windows += 1
        self.rows += rows
        self._days.add(day_of(record))
        self._waiting[partition].append(record)
        self._waiting_rows[partition] += rows
        if self._waiting_rows[partition] >= ROW_GROUP_ROWS:
            self._write(partition)
        elif sum(self._waiting_rows.values()) > MOST_WAITING_ROWS:
            self._write(max(self._waiting_rows, key=self._waiting_rows.__getitem__))

    def commit(self, metadata: SegmentMetadata, today: date) -> list[Path]:
        """Make the segment part of the archive, and return its files. A segment without any window
        is a file without rows, of the day `today`.

        Raises `OSError` if the disk refuses: then `archive_files.recover` tells whether the segment
        counts.
        """
        for partition in sorted(self._waiting):
            self._write(partition)
        if not self._files:
            self._open(today)
        days = tuple(day.isoformat() for day in sorted(self._files))
        for path, writer, partitions in self._files.values():
            own = msgspec.structs.replace(metadata, days=days, row_groups=tuple(partitions))
            writer.add_key_value_metadata(encode_metadata(own))
            writer.close()
            sync(path)
        folders = {file.path.parent for file in self._files.values()}
        for folder in (*folders, self._directory):
            sync(folder)
        paths = [file.path.parent / file_name(self.segment) for file in self._files.values()]
        for file, path in zip(self._files.values(), paths, strict=True):
            file.path.rename(path)
        for folder in folders:
            sync(folder)
        return paths

    def abandon(self) -> None:
        """Close the files; `archive_files.recover` removes them."""
        for file in self._files.values():
            try:
                file.writer.close()
            except (OSError, pa.ArrowException):
                continue

    def _write(self, partition: int) -> None:
        """Write what waits of a partition, as a row group of the file of each day."""
        by_day = defaultdict[date, list[LoggedWindow]](list)
        for record in self._waiting.pop(partition, []):
            by_day[day_of(record)].append(record)
        self._waiting_rows.pop(partition, None)
        for day, records in by_day.items():
            file = self._files.get(day) or self._open(day)
            table = pa.Table.from_batches([archive_rows(records)])
            file.writer.write_table(table, row_group_size=len(table))
            file.partitions.append(partition)

    def _open(self, day: date) -> _OpenFile:
        path = partial_path(self._directory, day, self.segment)
        path.parent.mkdir(exist_ok=True)
        writer = pq.ParquetWriter(
            path, ARCHIVE_SCHEMA, compression="zstd", version="2.6",
            use_dictionary=DICTIONARY_COLUMNS,
            # 22% smaller than dictionaries, and written and read faster.
            column_encoding=dict.fromkeys(NUMBER_COLUMNS, "BYTE_STREAM_SPLIT"),
        )  # fmt: skip
        file = self._files[day] = _OpenFile(path, writer, [])
        return file
