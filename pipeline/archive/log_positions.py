"""Where an archive continues in the log, and which records it can no longer get."""

from collections.abc import Sequence
from typing import NamedTuple

from pipeline.archive.archive_files import Gap, SegmentMetadata
from pipeline.errors import ArchiveError


class Log(NamedTuple):
    """The topic as it is now: its ids, and of each partition the first offset that is still there
    and the offset of the next record. An id is empty if the broker is too old to tell."""

    topic: str
    cluster_id: str
    topic_id: str
    bounds: Sequence[tuple[int, int]]


def continue_in(log: Log, newest: SegmentMetadata | None) -> tuple[list[int], list[Gap]]:
    """The next offset of each partition for an archive whose newest segment is `newest`, and the
    gaps before it. A new archive begins with the oldest records, which is no gap.

    Raises `ArchiveError` if the archive is of another topic or cluster.
    """
    if newest is None:
        return [first for first, _ in log.bounds], []
    _check_source(log, newest)
    ends = [end for _, end in newest.offsets]
    ends += [0] * (len(log.bounds) - len(ends))
    is_recreated = _differ(log.topic_id, newest.topic_id)
    starts, gaps = [], []
    for partition, ((first, end), position) in enumerate(zip(log.bounds, ends, strict=True)):
        start, reason = position, ""
        if is_recreated:
            start, reason = first, "recreated"
        elif position < first:
            start, reason = first, "retention"
        elif position > end:
            start, reason = end, "truncated"
        starts.append(start)
        if reason:
            gaps.append(Gap(partition=partition, first=position, next=start, reason=reason))
    return starts, gaps


def _check_source(log: Log, newest: SegmentMetadata) -> None:
    if newest.topic != log.topic:
        source, other = newest.topic, log.topic
    elif _differ(newest.cluster_id, log.cluster_id):
        source = f"{newest.topic} of the Kafka cluster {newest.cluster_id}"
        other = f"that of the cluster {log.cluster_id}"
    elif len(newest.offsets) > len(log.bounds):
        source = f"{newest.topic} with {len(newest.offsets)} partitions"
        other = f"that with {len(log.bounds)}"
    else:
        return
    raise ArchiveError(
        f"the archive is of {source}, not {other}",
        hint="set archive.directory to a directory for this topic alone",
    )


def _differ(one: str, other: str) -> bool:
    """Whether two ids that are known differ."""
    return bool(one) and bool(other) and one != other
