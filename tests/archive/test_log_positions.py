"""Where an archive continues: behind its newest segment, or behind a gap that it states."""

import pytest

from pipeline.archive.archive_files import SegmentMetadata
from pipeline.archive.log_positions import Log, continue_in
from pipeline.errors import ArchiveError

LOG = Log("springtide.windows", "cluster-1", "topic-1", [(0, 10), (5, 20)])


def newest(*ends: int, **changes: str) -> SegmentMetadata:
    """The newest segment of an archive of `LOG`, with these positions."""
    source = {"topic": LOG.topic, "cluster_id": LOG.cluster_id, "topic_id": LOG.topic_id, **changes}
    return SegmentMetadata(
        topic=source["topic"], cluster_id=source["cluster_id"], topic_id=source["topic_id"],
        segment=3, days=("2025-11-29",), offsets=tuple((0, end) for end in ends),
    )  # fmt: skip


def gaps_of(*ends: int, **changes: str) -> tuple[list[int], list[tuple[int, int, int, str]]]:
    starts, gaps = continue_in(LOG, newest(*ends, **changes))
    return starts, [(gap.partition, gap.first, gap.next, gap.reason) for gap in gaps]


def test_a_new_archive_begins_with_the_oldest_records_and_no_gap() -> None:
    assert continue_in(LOG, None) == ([0, 5], [])


def test_an_archive_continues_behind_its_newest_segment() -> None:
    assert gaps_of(7, 5) == ([7, 5], [])
    assert gaps_of(10, 20) == ([10, 20], [])


def test_records_that_retention_removed_are_a_gap() -> None:
    assert gaps_of(7, 2) == ([7, 5], [(1, 2, 5, "retention")])


def test_a_log_that_ends_before_the_position_is_a_gap() -> None:
    assert gaps_of(12, 20) == ([10, 20], [(0, 12, 10, "truncated")])


def test_a_recreated_topic_is_read_from_its_beginning() -> None:
    assert gaps_of(7, 5, topic_id="topic-2") == (
        [0, 5], [(0, 7, 0, "recreated"), (1, 5, 5, "recreated")],
    )  # fmt: skip


def test_a_partition_without_a_position_begins_with_its_oldest_record() -> None:
    assert gaps_of(7) == ([7, 5], [(1, 0, 5, "retention")])


@pytest.mark.parametrize("changes", [{"topic_id": ""}, {"cluster_id": ""}])
def test_ids_that_an_old_broker_does_not_tell_are_not_compared(changes: dict[str, str]) -> None:
    assert gaps_of(7, 5, **changes) == ([7, 5], [])


@pytest.mark.parametrize(
    ("archive", "text"),
    [
        (newest(7, 5, topic="other.windows"), "is of other.windows, not springtide.windows"),
        (newest(7, 5, cluster_id="cluster-2"), "of the Kafka cluster cluster-2"),
        (newest(7, 5, 9), "with 3 partitions"),
    ],
)
def test_an_archive_of_another_log_is_refused(archive: SegmentMetadata, text: str) -> None:
    with pytest.raises(ArchiveError, match=text):
        continue_in(LOG, archive)
