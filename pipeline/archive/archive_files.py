"""The folder of an archive: names, metadata, the lock, and what an interrupted writer left.

A *segment* is the part of the log that the archive gains at once: a range of offsets of each
partition. It has a file for each day (UTC) on which one of its windows starts:

    DIRECTORY/date=2026-11-29/windows-00000042.parquet

Files of a segment have equal metadata, which state its offsets: the position of the archive is that
of its newest segment, and stands nowhere else. A file under construction has another name. All
files of a segment are complete, and on the disk, before the first gets its name: where one has it,
the others are complete, too.
"""

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import date
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import (
    ArchiveError,
    InvalidRecordError,
    RecordError,
    UnsupportedVersionError,
)
from pipeline.topics.codec import Record, decode_json, encode_json

METADATA_KEY: Final = b"springtide"
"""The key of `SegmentMetadata` in the metadata of a file."""

_FILE = re.compile(r"windows-(\d{8,})\.parquet")
_PARTIAL = re.compile(r"\.windows-(\d{8,})\.parquet\.partial")
_LOCK: Final = ".lock"


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """Records that the topic lost before they were archived: `first` <= offset < `next`.

    `reason` is `retention`, or `truncated` or `recreated`: the log ended before the position of the
    archive, or is another one. What a lost log had beyond the archive is unknown.
    """

    partition: int
    first: int
    next: int
    reason: str


class UnreadableRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A record that no row tells of, and why."""

    partition: int
    offset: int
    reason: str


class SegmentMetadata(Record, frozen=True, kw_only=True):
    """What a file of an archive states about its segment; `version` is that of the columns.

    `offsets` has of each partition of the topic the first offset, and the one after the last.
    `unreadable` has the first records that were skipped, `unreadable_count` counts all.
    `row_groups` has the partition of each row group of this file.
    """

    topic: str
    cluster_id: str
    topic_id: str
    segment: int
    days: tuple[str, ...]
    offsets: tuple[tuple[int, int], ...]
    gaps: tuple[Gap, ...] = ()
    unreadable: tuple[UnreadableRecord, ...] = ()
    unreadable_count: int = 0
    row_groups: tuple[int, ...] = ()


class ArchiveFile(NamedTuple):
    """A complete file: its segment and day."""

    segment: int
    day: date
    path: Path


def file_name(segment: int) -> str:
    """The name of the files of a segment."""
    return f"windows-{segment:08}.parquet"


def partial_path(directory: Path, day: date, segment: int) -> Path:
    """The path of a file while it is written; readers of a folder skip names with this dot."""
    return directory / f"date={day.isoformat()}" / f".{file_name(segment)}.partial"


def archive_files(directory: Path) -> list[ArchiveFile]:
    """The complete files of an archive, by segment and day. Other files are ignored.

    Raises `OSError` if the directory cannot be listed.
    """
    return sorted(
        ArchiveFile(int(match[1]), day, path)
        for day, folder in _days(directory)
        for path in _listed(folder)
        if (match := _FILE.fullmatch(path.name))
    )


def read_metadata(path: Path) -> SegmentMetadata:
    """What the metadata of a file say. Raises `UnsupportedVersionError` if another release wrote
    it, `InvalidRecordError` if it is damaged or another file, `OSError` if it cannot be read."""
    try:
        return segment_metadata(pq.read_metadata(path))
    except UnsupportedVersionError as error:
        raise UnsupportedVersionError(
            f"{path}: {error.message}",
            hint="read and continue this archive with the release that wrote it, or a newer one",
        ) from error
    except (pa.ArrowException, RecordError) as error:
        raise InvalidRecordError(
            f"{path} is not a file of an archive: {error!s:.200}",
            hint="it is damaged, or of another program: move it out of the directory",
        ) from error


def segment_metadata(metadata: pq.FileMetaData) -> SegmentMetadata:
    """Decode the segment's part of a file's metadata; raises `RecordError`."""
    return decode_json(SegmentMetadata, (metadata.metadata or {}).get(METADATA_KEY, b""))


def encode_metadata(metadata: SegmentMetadata) -> dict[bytes, bytes]:
    """The metadata of a file."""
    return {METADATA_KEY: encode_json(metadata)}


def newest_segment(directory: Path) -> SegmentMetadata | None:
    """The metadata of the newest segment, None if the archive is empty."""
    files = archive_files(directory)
    return read_metadata(files[-1].path) if files else None


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Create the directory and keep other archivers out of it while the context lasts; the lock
    ends with the process. Raises `ArchiveError` if another archiver has it."""
    directory.mkdir(exist_ok=True)
    descriptor = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ArchiveError(
                f"another archiver writes to {directory}",
                hint="stop it, or give each archiver a directory of its own",
            ) from None
        yield
    finally:
        os.close(descriptor)


def recover(directory: Path) -> None:
    """Finish or remove what an interrupted writer left: a segment of which a file has its name is
    complete, so that its other files get theirs; all other unfinished files are removed."""
    complete = {file.segment for file in archive_files(directory)}
    for _, folder in _days(directory):
        for path in [*folder.iterdir()]:
            match = _PARTIAL.fullmatch(path.name)
            if match and int(match[1]) in complete:
                path.rename(folder / file_name(int(match[1])))
            elif match:
                path.unlink()
        sync(folder)
        _remove_if_empty(folder)


def remove_before(directory: Path, day: date) -> int:
    """Remove the files of days before `day`, except those of the newest segment, which hold the
    position. Returns how many were removed."""
    files = archive_files(directory)
    old = [file for file in files if file.day < day and file.segment < files[-1].segment]
    for file in old:
        file.path.unlink()
    for folder in {file.path.parent for file in old}:
        _remove_if_empty(folder)
    return len(old)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _days(directory: Path) -> Iterator[tuple[date, Path]]:
    for folder in directory.iterdir():
        key, _, text = folder.name.partition("=")
        with suppress(ValueError):
            if key == "date" and folder.is_dir():
                yield date.fromisoformat(text), folder


def _listed(folder: Path) -> list[Path]:
    # An archiver removes folders that became empty, also while others read.
    try:
        return [*folder.iterdir()]
    except FileNotFoundError:
        return []


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()
