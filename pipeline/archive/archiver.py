"""Follow `springtide.windows` and write it to an archive, segment by segment.

The position in the topic is that of the newest segment, so that nothing is lost or archived twice
wherever the process ends. What cannot be got any more is a gap, which is logged, counted, and part
of the next segment. While Kafka or the disk is away the archiver tries again: the topic has the
windows for some days.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, date, datetime, timedelta
from typing import Final

import pyarrow as pa

from pipeline.archive.archive_files import (
    Gap,
    SegmentMetadata,
    UnreadableRecord,
    locked,
    newest_segment,
    recover,
    remove_before,
)
from pipeline.archive.log_positions import Log, continue_in
from pipeline.archive.segment_writer import SegmentWriter
from pipeline.clock import Clock
from pipeline.errors import ArchiveError, KafkaError, RecordError, TopicDriftError
from pipeline.kafka.client import client_options
from pipeline.kafka.follow import (
    Backoff,
    ConsumerRecord,
    Follower,
    LostOffsetError,
    open_follower,
    topic_partitions,
)
from pipeline.kafka.refused_records import refuse
from pipeline.logs import get_logger
from pipeline.metrics import counter, gauge
from pipeline.metrics_server import Readiness
from pipeline.processors.archive.archive_rows import LoggedWindow
from pipeline.settings import Settings
from pipeline.topics.registry import WINDOWS
from pipeline.topics.windows import decode_window

log = get_logger(__name__)

ARCHIVED = counter("archive_windows", "Records of the log that are in complete files.")
FILES = counter("archive_files", "Files that were completed.")
LOST = counter(
    "archive_lost_records", "Records that the topic lost before they were archived.", ["reason"]
)
FAILED = counter("archive_failed_writes", "Segments that could not be written.")
BEHIND = gauge("archive_behind_records", "Records of the topic that are in no complete file.")
UNSAVED = gauge(
    "archive_unsaved_seconds", "Age of the oldest record that was read and is in no complete file."
)

_PROBE_SECONDS: Final = 5.0
_FIRST_PAUSE_SECONDS: Final = 1.0
_LONGEST_PAUSE_SECONDS: Final = 30.0
_LISTED_RECORDS: Final = 100


class _WriteError(ArchiveError):
    """The disk refuses."""


class _Segment:
    """The segment that is being written, from the offsets `starts` on; `unreadable` lists at most
    `_LISTED_RECORDS`."""

    def __init__(
        self, source: Log, writer: SegmentWriter, starts: Sequence[int], gaps: Sequence[Gap]
    ) -> None:
        self.source, self.writer, self.gaps = source, writer, gaps
        self.starts, self.positions = list(starts), list(starts)
        self.unreadable: list[UnreadableRecord] = []
        self.unreadable_count = 0
        self.oldest_ms: int | None = None
        self.opened_at: float | None = None
        self.has_failed = False

    def take(self, records: Sequence[ConsumerRecord], now: float) -> None:
        """Add the next records."""
        for record in records:
            if self.oldest_ms is None:
                self.oldest_ms, self.opened_at = record.timestamp, now
            self.oldest_ms = min(self.oldest_ms, record.timestamp)
            try:
                window = decode_window(record.value or b"")
            except RecordError as error:
                self._skip(record, error)
            else:
                self.writer.add(LoggedWindow(record.partition, record.offset, window))
            self.positions[record.partition] = record.offset + 1

    def _skip(self, record: ConsumerRecord, error: RecordError) -> None:
        refuse(record.topic, error, partition=record.partition, offset=record.offset)
        self.unreadable_count += 1
        if len(self.unreadable) < _LISTED_RECORDS:
            self.unreadable.append(
                UnreadableRecord(
                    partition=record.partition, offset=record.offset, reason=str(error)[:300]
                )
            )

    @property
    def has_news(self) -> bool:
        """Whether there is anything to write."""
        return bool(self.gaps) or self.oldest_ms is not None

    def metadata(self) -> SegmentMetadata:
        """What its files state."""
        return SegmentMetadata(
            topic=self.source.topic,
            cluster_id=self.source.cluster_id,
            topic_id=self.source.topic_id,
            segment=self.writer.segment,
            days=(),
            offsets=tuple(zip(self.starts, self.positions, strict=True)),
            gaps=tuple(self.gaps),
            unreadable=tuple(self.unreadable),
            unreadable_count=self.unreadable_count,
        )


async def archive(
    settings: Settings, clock: Clock, readiness: Readiness, *, until_end: bool = False
) -> None:
    """Archive the windows of the settings' topic until cancelled, or until the present end of the
    topic. A cancelled archiver completes the files that it writes. `readiness` says why it cannot.

    Raises `ArchiveError` if the directory is in use, damaged or of another topic. With `until_end`
    it also raises if Kafka or the disk fails, else it tries again.
    """
    with ExitStack() as stack:
        with _on_disk():
            stack.enter_context(locked(settings.archive.directory))
        archiver = _Archiver(settings, clock)
        stack.enter_context(readiness.leading(lambda: archiver.unwritten or archiver.trouble))
        backoff, problem = Backoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS), ""
        while True:
            archiver.has_progressed = False
            try:
                await archiver.follow(until_end)
                return
            except LostOffsetError as error:
                archiver.trouble = error.message
                log.warning("looking for the position again", reason=error.message)
            except (KafkaError, _WriteError) as error:
                archiver.trouble = error.message
                if until_end:
                    raise
                if error.message != problem:
                    log.warning("windows are not archived, trying again", reason=error.message,
                                hint=error.hint)  # fmt: skip
                problem = error.message
            if archiver.has_progressed:
                backoff.reset()
                problem = ""
            await clock.sleep(backoff.pause())


@contextmanager
def _on_disk() -> Iterator[None]:
    """Raise what the disk refuses as `_WriteError`."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise _WriteError(
            f"the archive cannot be written: {error}",
            hint="free space, create its parent, or correct the permissions; archive.keep_days "
            "bounds the archive",
        ) from error


class _Archiver:
    """Writes segments, one after the other; its caller has the lock of the directory."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._kafka, self._settings, self._clock = settings.kafka, settings.archive, clock
        self._topic = WINDOWS.full_name(settings.kafka.topic_prefix)
        self._segment: _Segment | None = None
        self._probe_at = 0.0
        self.has_progressed = False
        self.trouble = "connecting to Kafka"
        """Why the log is not followed now; empty if it is."""
        self.unwritten = ""
        """Why the last files were not written: empty again once others are, since a full disk
        shows only when files are completed."""

    async def follow(self, until_end: bool) -> None:
        """Connect, and archive until the connection is lost, or until the end of the topic."""
        partitions = topic_partitions(self._kafka, WINDOWS)
        async with open_follower(client_options(self._kafka), partitions) as follower:
            source = await self._source(follower)
            self._begin(source, follower)
            self.trouble = ""
            try:
                await self._read(follower, until_end)
            finally:
                # Whatever ended the connection: what was read is valid.
                self._commit()

    async def _source(self, follower: Follower) -> Log:
        cluster = await follower.cluster_id()
        ids = await follower.topic_ids()
        # A broker that is too old to tell ids tells no cluster either.
        if cluster and self._topic not in ids:
            raise TopicDriftError(f"topic {self._topic} is missing")
        firsts, ends = await follower.beginnings(), await follower.ends()
        if await follower.topic_ids() != ids:
            raise LostOffsetError(f"{self._topic} was deleted or recreated")
        bounds = [(firsts[tp], ends[tp]) for tp in follower.assigned]
        return Log(self._topic, cluster, ids.get(self._topic, ""), bounds)

    def _begin(self, source: Log, follower: Follower) -> None:
        """Continue where the newest segment ends."""
        with _on_disk():
            recover(self._settings.directory)
            newest = newest_segment(self._settings.directory)
        starts, gaps = continue_in(source, newest)
        number = 0 if newest is None else newest.segment + 1
        for gap in gaps:
            lost = max(gap.next - gap.first, 0) if gap.reason == "retention" else 0
            LOST.labels(gap.reason).inc(lost)
            log.warning("records are missing in the archive", partition=gap.partition,
                        first=gap.first, next=gap.next, reason=gap.reason)  # fmt: skip
        writer = SegmentWriter(self._settings.directory, number)
        self._segment = _Segment(source, writer, starts, gaps)
        ends = [end for _, end in source.bounds]
        follower.read_from(
            dict(zip(follower.assigned, starts, strict=True)),
            dict(zip(follower.assigned, ends, strict=True)),
        )
        log.info("archiving", directory=str(self._settings.directory), segment=number,
                 behind=sum(ends) - sum(starts))  # fmt: skip
        self._sweep()

    async def _read(self, follower: Follower, until_end: bool) -> None:
        while not (until_end and follower.is_caught_up):
            records = await follower.poll()
            segment, now = self._open_segment, self._clock.monotonic()
            with self._writing(segment):
                segment.take(records, now)
            if self._is_due(segment, now):
                self._commit()
            if now >= self._probe_at:
                await self._probe(follower)

    @property
    def _open_segment(self) -> _Segment:
        assert self._segment is not None
        return self._segment

    def _is_due(self, segment: _Segment, now: float) -> bool:
        if segment.writer.rows >= self._settings.file_rows or segment.writer.is_full:
            return True
        opened_at = segment.opened_at
        return opened_at is not None and now - opened_at >= self._settings.file_seconds

    async def _probe(self, follower: Follower) -> None:
        """Publish how far the archive is behind; raise `LostOffsetError` if the topic is another
        one, or shorter than before."""
        self._probe_at = self._clock.monotonic() + _PROBE_SECONDS
        segment = self._open_segment
        ids, ends = await follower.topic_ids(), await follower.ends()
        topic_id = segment.source.topic_id
        if topic_id and ids.get(self._topic) != topic_id:
            raise LostOffsetError(f"{self._topic} was deleted or recreated")
        if any(ends[tp] < position for tp, position in follower.positions.items()):
            raise LostOffsetError(f"{self._topic} ends before its next offset")
        BEHIND.set(sum(ends.values()) - sum(segment.starts))
        oldest_ms = segment.oldest_ms
        UNSAVED.set(0.0 if oldest_ms is None else self._clock.now() - oldest_ms / 1000)

    def _commit(self) -> None:
        """Complete the files of the open segment, if it has any record, and open the next one."""
        segment = self._open_segment
        if not segment.has_news or segment.has_failed:
            return
        with self._writing(segment):
            files = segment.writer.commit(segment.metadata(), self._today())
        self.unwritten = ""
        ARCHIVED.inc(segment.writer.windows)
        FILES.inc(len(files))
        self.has_progressed = True
        log.info("segment written", segment=segment.writer.segment, files=len(files),
                 windows=segment.writer.windows, rows=segment.writer.rows)  # fmt: skip
        writer = SegmentWriter(self._settings.directory, segment.writer.segment + 1)
        self._segment = _Segment(segment.source, writer, segment.positions, ())
        self._sweep()

    @contextmanager
    def _writing(self, segment: _Segment) -> Iterator[None]:
        try:
            with _on_disk():
                yield
        except _WriteError as error:
            self.unwritten = error.message
            FAILED.inc()
            segment.has_failed = True
            segment.writer.abandon()
            raise

    def _sweep(self) -> None:
        """Remove the days that are not kept."""
        if self._settings.keep_days is None:
            return
        with _on_disk():
            first = self._today() - timedelta(days=self._settings.keep_days - 1)
            if removed := remove_before(self._settings.directory, first):
                log.info("old files removed", files=removed, before=first.isoformat())

    def _today(self) -> date:
        return datetime.fromtimestamp(self._clock.now(), UTC).date()
