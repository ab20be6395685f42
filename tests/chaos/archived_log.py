"""Whether archives have each record of the log of windows exactly once, after a chaos run."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from pipeline.archive.archive_files import archive_files, newest_segment, read_metadata
from pipeline.archive.archive_reader import read_windows
from pipeline.errors import InvalidRecordError, RecordError
from pipeline.processors.archive.archive_rows import LoggedWindow
from pipeline.topics.registry import WINDOWS
from pipeline.topics.windows import decode_window
from tests.broker import messages
from tests.processes import until
from tests.processors.archive.window_equality import parts
from tests.system.harness import Stage

BEHIND_SECONDS: Final = 60.0
"""Within this time after the last record an archive is complete."""

Position = tuple[int, int]
"""Partition and offset of a record."""


class Archived(NamedTuple):
    """What an archive has: windows in its order, how many records it lists as not readable, and the
    gaps that it states; or why it cannot be read."""

    name: str
    windows: Sequence[LoggedWindow]
    unreadable: int = 0
    gaps: int = 0
    damage: str = ""


class ArchivedLog(NamedTuple):
    """The log of windows, hostile records included, and archives of it."""

    logged: Mapping[Position, bytes]
    archives: Sequence[Archived]


async def read_archives(stage: Stage, directories: Mapping[str, Path]) -> ArchivedLog:
    """The log up to now, and each archive once it is that long, or at last when it may be behind no
    longer."""
    records = await messages(stage.settings.kafka, WINDOWS)
    logged = {(record.partition, record.offset): record.value or b"" for record in records}
    ends = Counter[int]()
    for partition, offset in logged:
        ends[partition] = max(ends[partition], offset + 1)

    def is_complete(directory: Path) -> bool:
        newest = newest_segment(directory)
        positions = [end for _, end in newest.offsets] if newest else []
        return len(positions) == stage.partitions and all(
            positions[partition] >= end for partition, end in ends.items()
        )

    async def all_complete() -> bool:
        return all([await asyncio.to_thread(is_complete, path) for path in directories.values()])

    with suppress(AssertionError):  # what is missing is a problem of the run
        await until(all_complete, BEHIND_SECONDS)
    archives = [await asyncio.to_thread(_read, *item) for item in directories.items()]
    return ArchivedLog(logged, archives)


def _read(name: str, directory: Path) -> Archived:
    segments = {
        metadata.segment: metadata
        for metadata in (read_metadata(file.path) for file in archive_files(directory))
    }.values()
    try:
        windows = [*read_windows(directory)]
    except InvalidRecordError as error:
        return Archived(name, [], damage=str(error))
    return Archived(
        name, windows,
        sum(metadata.unreadable_count for metadata in segments),
        sum(len(metadata.gaps) for metadata in segments),
    )  # fmt: skip


def archive_problems(log: ArchivedLog) -> Iterator[str]:
    """Describe records that an archive lacks, has twice, or has changed, and gaps."""
    readable = {position: value for position, value in log.logged.items() if _is_readable(value)}
    ends = dict(sorted(log.logged))
    for name, windows, unreadable, gaps, damage in log.archives:
        if damage:
            yield f"{name}: cannot be read: {damage}"
            continue
        counts = Counter((partition, offset) for partition, offset, _ in windows)
        # The log may have grown since it was read.
        counts = Counter({at: n for at, n in counts.items() if at[1] <= ends.get(at[0], -1)})
        if missing := readable.keys() - counts.keys():
            yield f"{name}: {len(missing)} windows of the log are missing, such as {min(missing)}"
        if strange := counts.keys() - readable.keys():
            yield f"{name}: {len(strange)} windows are not in the log, such as {min(strange)}"
        if twice := [position for position, count in counts.items() if count > 1]:
            yield f"{name}: {len(twice)} windows are archived twice, such as {min(twice)}"
        changed = [
            (partition, offset)
            for partition, offset, window in windows
            if (value := readable.get((partition, offset))) is not None
            and parts(window) != parts(decode_window(value))
        ]
        if changed:
            yield f"{name}: {len(changed)} windows differ from the log, such as {min(changed)}"
        if unreadable < (invalid := len(log.logged) - len(readable)):
            yield f"{name}: counts {unreadable} of {invalid} invalid records"
        if gaps:
            yield f"{name}: states {gaps} gaps, and the log has none"


def _is_readable(value: bytes) -> bool:
    try:
        decode_window(value)
    except RecordError:
        return False
    return True
