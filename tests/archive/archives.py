"""Archives of random logs."""

from datetime import date
from pathlib import Path

import numpy as np

from pipeline.archive.archive_files import SegmentMetadata
from pipeline.archive.segment_writer import SegmentWriter
from pipeline.kafka.partition import partition_of
from pipeline.processors.archive.archive_rows import LoggedWindow
from tests.processors.archive.random_windows import random_log

TODAY = date(2025, 11, 30)


def log_of(seed: int, count: int = 30, days: int = 3) -> list[LoggedWindow]:
    """A random log in which each node has its partition."""
    records = random_log(np.random.default_rng(seed), count, days)
    return [LoggedWindow(partition_of(r.window.header.node, 2), *r[1:]) for r in records]


def write(directory: Path, records: list[LoggedWindow], segments: int = 3) -> None:
    """Write the records as so many segments."""
    ends = [0, 0]
    for segment in range(segments):
        writer = SegmentWriter(directory, segment)
        starts = [*ends]
        for record in _part(records, segment, segments):
            writer.add(record)
            ends[record.partition] = record.offset + 1
        writer.commit(metadata_of(segment, starts, ends), TODAY)


def _part(records: list[LoggedWindow], segment: int, segments: int) -> list[LoggedWindow]:
    size = -(-len(records) // segments)
    return records[segment * size : (segment + 1) * size]


def metadata_of(segment: int, starts: list[int], ends: list[int]) -> SegmentMetadata:
    offsets = tuple(zip(starts, ends, strict=True))
    return SegmentMetadata(
        topic="springtide.windows", cluster_id="c", topic_id="t", segment=segment, days=(),
        offsets=offsets,
    )  # fmt: skip
