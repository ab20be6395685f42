"""Feed a `Table` from compacted topics.

The table is filled in one step, once everything that was on the topics at the start has been read
(`caught_up`): a half-filled table would judge nodes without some of their pods. Then records are
applied as they come. While the broker is away the table keeps its records, `state` says so, and
reading continues where it stopped. If a topic was recreated, or tombstones may have been missed,
the topics are read into a fresh table, which replaces the old one in one step. After a restart the
table begins with a snapshot on disk, if there is one. An invalid record is passed to `on_bad` as a
dead letter, counted and skipped.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

from pipeline.clock import Clock
from pipeline.errors import (
    BrokerUnavailableError,
    CheckpointError,
    KafkaError,
    RecordError,
    TopicDeniedError,
    TopicDriftError,
)
from pipeline.kafka.follow import (
    Backoff,
    ConsumerRecord,
    Fetching,
    Follower,
    LostOffsetError,
    Positions,
    TopicPartition,
    open_follower,
)
from pipeline.kafka.refused_records import refuse
from pipeline.kafka.topic_admin import existing_partitions
from pipeline.logs import get_logger
from pipeline.table import limits
from pipeline.table.apply_records import Headers, apply
from pipeline.table.event_loop_turns import by_turns
from pipeline.table.state_table import Table
from pipeline.table.table_snapshot import Copied, copied, load, save
from pipeline.tasks import run_within
from pipeline.topics.codec import check_readable
from pipeline.topics.dead_letters import DeadLetter, dead_letter
from pipeline.topics.registry import (
    HEARTBEATS,
    NODE_STATE,
    NODE_VIEWS,
    NODES,
    PODS,
    RESOURCES,
    WINDOWS,
    Topic,
)

NODE_TOPICS: Final[tuple[Topic, ...]] = (NODE_STATE, NODES)
"""Topics of a table of nodes."""
NODE_AND_POD_TOPICS: Final[tuple[Topic, ...]] = (*NODE_TOPICS, RESOURCES, PODS, HEARTBEATS)
"""Topics of a table of nodes, their offers and their pods, with the heartbeats of their source."""
OPTIONAL_TOPICS: Final[tuple[Topic, ...]] = (HEARTBEATS,)
"""Topics that may be missing: older installations lack them, and decisions do not need them."""
VIEW_TOPICS: Final[tuple[Topic, ...]] = (NODE_VIEWS,)
"""Topics of a table of node views."""
HISTORY_TOPICS: Final[tuple[Topic, ...]] = (NODE_STATE,)
"""Topics of a table of recent usage of nodes."""
POD_HISTORY_TOPICS: Final[tuple[Topic, ...]] = (WINDOWS,)
"""Topics of a table of recent usage of pods."""

_log = get_logger(__name__)

Apply = Callable[[Table, Topic, bytes | None, bytes | None, Headers], bool]
Take = Callable[[Topic, ConsumerRecord], bool]
DeadLetterSink = Callable[[DeadLetter], Awaitable[None]]


@dataclass(slots=True)
class FeedState:
    """The state of a feed, for readiness and metrics.

    `lag_records` is the number of records behind the ends of the topics, None before they are
    known; `contact` is when the broker last answered; everything that was appended by
    `complete_until` (monotonic) has been read; `missing` are the topics that are read once they
    exist and may be read. `applied`, `older`, `tombstones` and `bad`
    (by reason) count records, `rereads` how often the topics were read again.
    """

    message: str = "starting"
    caught_up: bool = False
    connected: bool = False
    lag_records: int | None = None
    contact: float | None = None
    complete_until: float | None = None
    missing: tuple[str, ...] = ()
    applied: int = 0
    older: int = 0
    tombstones: int = 0
    rereads: int = 0
    bad: Counter[str] = field(default_factory=Counter)

    def lacks(self, topic: Topic) -> str:
        """Why a topic is not read although others are; empty if it is, or none is."""
        names = [name for name in self.missing if name.endswith(f".{topic.name}")]
        return f"{names[0]} is missing, or may not be read" if names else ""


class _RereadError(Exception):
    """The topics must be read again, for the reason in the message."""


class Feed:
    """Feeds `table` from `topics` below `prefix`; `run` it until cancelled.

    `client` is what `client_options` returns; `name` is for the log. The others are read while one
    of the `optional` topics is missing or may not be read. With `recent_seconds` older
    records are not read. `apply_record` applies a record to the table; `take_record` takes whole
    records into something else in its place, and must allow for repeats, in any order.
    """

    def __init__(
        self,
        table: Table,
        *,
        client: Mapping[str, Any],
        prefix: str,
        clock: Clock,
        on_bad: DeadLetterSink | None = None,
        topics: Sequence[Topic] = NODE_TOPICS,
        optional: Collection[Topic] = OPTIONAL_TOPICS,
        snapshot: Path | None = None,
        name: str = "table",
        apply_record: Apply = apply,
        take_record: Take | None = None,
        recent_seconds: float | None = None,
    ) -> None:
        self.name = name
        self._take_record = take_record
        self._apply_record = apply_record
        self._recent_seconds = recent_seconds
        self.table = table
        self.state = FeedState()
        self._client = client
        self._topics = {topic.full_name(prefix): topic for topic in topics}
        self._optional = {topic.full_name(prefix) for topic in topics if topic in optional}
        self._denied: set[str] = set()
        self._look_at = 0.0
        self._clock = clock
        self._on_bad = on_bad
        self._snapshot = snapshot
        self._writing = threading.Lock()
        self._positions: Positions = {}
        self._topic_ids: dict[str, str] = {}
        self._answered_at = clock.monotonic()
        self._last_ends: tuple[float, Positions] = 0.0, {}
        self._caught_up = asyncio.Event()
        self._has_failed = asyncio.Event()
        self._failure: KafkaError | None = None
        self._warned = ""

    async def wait_caught_up(self) -> None:
        """Return when the table has everything that was on the topics when reading began."""
        await self._caught_up.wait()

    async def wait_failure(self) -> KafkaError:
        """Return the error when the broker or a topic cannot be reached; the feed goes on
        trying."""
        await self._has_failed.wait()
        assert self._failure is not None
        return self._failure

    async def run(self) -> NoReturn:
        """Feed the table for ever: connect, catch up, follow, and again after a failure."""
        backoff = Backoff(limits.FIRST_PAUSE_SECONDS, limits.LONGEST_PAUSE_SECONDS)
        if self._snapshot is not None:
            await self._restore(self._snapshot)
        while True:
            try:
                await self._connect_and_follow()
            except (LostOffsetError, _RereadError) as reason:
                self.state.rereads += 1
                self._positions, self._topic_ids = {}, {}
                backoff.reset()
                _log.warning("reading the topics again", reason=str(reason))
            except (KafkaError, OSError) as error:
                is_left_out = self._leave_out(error)
                # Each connection finds out anew what else is denied.
                is_denied = isinstance(error, TopicDeniedError)
                if is_left_out or (self.state.connected and not is_denied):
                    backoff.reset()
                if not is_left_out:
                    self._note_failure(error)
            await self._clock.sleep(backoff.pause())

    async def _restore(self, path: Path) -> None:
        """Begin with a snapshot, unless tombstones may have been missed since."""
        began = self._clock.monotonic()
        try:
            fresh = self.table.emptied()
            saved = await asyncio.to_thread(load, path, fresh)
        except (OSError, CheckpointError) as error:
            _log.warning("snapshot not read", file=str(path), reason=str(error))
            return
        if saved is None:
            _log.info("no snapshot yet", file=str(path))
            return
        age = self._clock.now() - saved.saved_at
        if not 0 <= age < limits.FORGOTTEN_AFTER_SECONDS:
            _log.warning(
                "snapshot not read",
                file=str(path),
                reason=f"it is {age:.0f} s old, so tombstones may be missing"
                if age >= 0
                else f"it was written {-age:.0f} s from now: a clock was set back",
            )
            return
        saved.table.bring_up_to_date(self._clock.now())
        self.table.adopt(saved.table)
        self._positions = {TopicPartition(*source): offset for *source, offset in saved.positions}
        self._topic_ids = dict(saved.topic_ids)
        self._answered_at = self._clock.monotonic() - age
        self.state.caught_up = True
        self._caught_up.set()
        _log.info(
            "table restored",
            nodes=len(self.table),
            pods=len(self.table.pods),
            age_seconds=round(age, 1),
            seconds=round(self._clock.monotonic() - began, 3),
        )

    async def save_periodically(self) -> NoReturn:
        """Write a snapshot every minute, for ever."""
        while True:
            await self._clock.sleep(limits.SAVE_EVERY_SECONDS)
            await self.save()

    async def save(self) -> None:
        """Write a snapshot, if a file is configured and the table has caught up."""
        if self._snapshot is None or not self.state.caught_up or not self._positions:
            return
        positions = [(*source, offset) for source, offset in self._positions.items()]
        now, began = self._clock.now(), self._clock.monotonic()
        try:
            # In one turn of the event loop: pods' names and amounts must belong together.
            copy = copied(self.table, positions, now, self._topic_ids)
            size = await asyncio.to_thread(self._write, self._snapshot, copy)
        except OSError as error:
            _log.warning("snapshot not written", file=str(self._snapshot), reason=str(error))
            return
        seconds = round(self._clock.monotonic() - began, 3)
        _log.debug("snapshot written", bytes=size, seconds=seconds)

    def _write(self, path: Path, copy: Copied) -> int:
        # The thread of a cancelled call may still be writing.
        with self._writing:
            return save(path, copy)

    def _leave_out(self, error: KafkaError | OSError) -> bool:
        """Read the other topics from now on if an optional one may not be read."""
        topic = error.topic if isinstance(error, TopicDeniedError) else ""
        others = self._topics.keys() - {topic, *self.state.missing}
        if topic not in self._optional or topic in self._denied or not others:
            return False
        self._denied.add(topic)
        self._positions, self._topic_ids = {}, {}
        return True

    def _note_failure(self, error: KafkaError | OSError) -> None:
        """Keep the table, and let `state` and one log line say why it is not fed."""
        if not isinstance(error, KafkaError):
            error = BrokerUnavailableError(f"the broker is away: {type(error).__name__}: {error}")
        elif isinstance(error, BrokerUnavailableError) and self.state.connected:
            error = BrokerUnavailableError(f"the broker is away: {error.message}")
        if error.message != self._warned:
            self._warned = error.message
            _log.warning(
                f"{self.name}: not fed, records are kept",
                reason=error.message,
                hint=error.hint,
                nodes=len(self.table),
            )
        self.state.message = error.message
        self.state.connected = False
        self._failure = error
        self._has_failed.set()

    async def _connect_and_follow(self) -> None:
        fetching = Fetching(min_bytes=limits.FETCH_BYTES, max_wait_ms=limits.FETCH_WAIT_MS)
        partitions = await self._partitions()
        self._note_missing(set(self._topics) - {tp.topic for tp in partitions})
        self._last_ends = 0.0, {}
        async with open_follower(self._client, partitions, fetching) as follower:
            if self._positions:
                self._resume(follower)
            else:
                await self._load(follower)
            await self._probe(follower)
            self.state.message = "following"
            while True:
                await self._read(follower, self.table)
                if self._warned:
                    _log.info(f"{self.name}: fed again", nodes=len(self.table))
                    self._warned = ""
                await self._look_for_missing()

    async def _partitions(self) -> list[TopicPartition]:
        """All partitions of the topics that the broker shows and may be read. Raises
        `TopicDriftError` if one is missing that may not, or all are."""
        if self._clock.monotonic() >= self._look_at:
            self._look_at = self._clock.monotonic() + limits.MISSING_TOPIC_SECONDS
            self._denied = {name for name in self._denied if await self._is_denied(name)}
        listing = existing_partitions(self._client, self._topics, self._optional)
        existing = await run_within(limits.START_TIMEOUT_SECONDS, listing)
        if readable := [tp for tp in existing if tp.topic not in self._denied]:
            return readable
        raise TopicDriftError(f"waiting for topic {' and '.join(sorted(self._topics))}")

    def _note_missing(self, missing: Collection[str]) -> None:
        if self.state.missing != (names := tuple(sorted(missing))):
            self.state.missing = names
            for name in names:
                _log.warning("a topic is missing, or may not be read", topic=name,
                             hint="run `springtide topics apply`, and grant the rights that "
                             "`springtide topics acls` prints")  # fmt: skip

    async def _look_for_missing(self) -> None:
        """Raise `_RereadError` once a topic can be read that was missing."""
        if not self.state.missing or self._clock.monotonic() < self._look_at:
            return
        missing = set(self._topics) - {tp.topic for tp in await self._partitions()}
        if created := set(self.state.missing) - missing:
            raise _RereadError(f"{' and '.join(sorted(created))} can be read now")
        self._note_missing(missing)

    async def _is_denied(self, topic: str) -> bool:
        """Whether the broker still denies to read a topic."""
        listing = existing_partitions(self._client, [topic], [topic])
        partitions = await run_within(limits.START_TIMEOUT_SECONDS, listing)
        async with open_follower(self._client, partitions) as follower:
            await run_within(limits.START_TIMEOUT_SECONDS, follower.begin())
            try:
                await follower.poll(timeout_seconds=limits.PROBE_TIMEOUT_SECONDS)
            except TopicDeniedError:
                return True
        return False

    async def _load(self, follower: Follower) -> None:
        """Read everything that is on the topics into a fresh table, then adopt it."""
        began = self._clock.monotonic()
        if self._recent_seconds is None:
            since_ms = {}
        else:
            start_ms = int((self._clock.now() - self._recent_seconds) * 1000)
            since_ms = dict.fromkeys(self._topics, start_ms)
        await self._check_topics(follower)
        await run_within(limits.START_TIMEOUT_SECONDS, follower.begin(since_ms))
        self.state.message = "catching up"
        fresh = self.table.emptied()
        while not follower.is_caught_up:
            await self._read(follower, fresh)
        fresh.bring_up_to_date(self._clock.now())
        self.table.adopt(fresh)
        self._positions = dict(follower.positions)
        self.state.lag_records = 0
        self.state.caught_up = True
        self._caught_up.set()
        _log.info(
            f"{self.name} caught up",
            nodes=len(self.table),
            records=sum(self._positions.values()),
            seconds=round(self._clock.monotonic() - began, 3),
        )

    def _resume(self, follower: Follower) -> None:
        """Read on where reading stopped, if no tombstone can have been missed since."""
        if set(self._positions) != set(follower.assigned):
            raise _RereadError("the topics have other partitions than before")
        if self._clock.monotonic() - self._answered_at > limits.FORGOTTEN_AFTER_SECONDS:
            raise _RereadError("away for so long that tombstones may be missing")
        follower.read_from(self._positions, {})

    async def _read(self, follower: Follower, table: Table) -> None:
        """Apply records to `table` for two seconds."""
        await self._probe(follower)
        until = self._clock.monotonic() + limits.PROBE_EVERY_SECONDS
        while self._clock.monotonic() < until:
            records = await follower.poll(max_records=limits.RECORDS_AT_ONCE)
            trickling = table is self.table and len(records) < limits.RECORDS_AT_ONCE
            async for record in by_turns(records, trickling=trickling):
                await self._apply(table, record)
                if table is self.table:
                    # With each record: a snapshot may be taken, or the connection be lost, at any
                    # time, and a record before a tombstone must not be read again without it.
                    tp = TopicPartition(record.topic, record.partition)
                    self._positions[tp] = record.offset + 1
            if table is self.table:
                self._positions = dict(follower.positions)
            elif follower.is_caught_up:
                return

    async def _probe(self, follower: Follower) -> None:
        """Ask where the logs end, which alone tells a broker that is away from a quiet one."""
        await self._check_topics(follower)
        asked_at = self._clock.monotonic()
        ends = await run_within(limits.PROBE_TIMEOUT_SECONDS, follower.ends())
        if any(ends[tp] < position for tp, position in follower.positions.items()):
            raise _RereadError("a log ends before its next offset: the topic was recreated")
        self.state.connected = True
        self.state.contact = self._clock.now()
        self._answered_at = self._clock.monotonic()
        self.state.lag_records = sum(end - follower.positions[tp] for tp, end in ends.items())
        # Where records come all the time, the present end is never reached.
        for seen_at, seen in (self._last_ends, (asked_at, ends)):
            if seen and all(follower.positions[tp] >= end for tp, end in seen.items()):
                self.state.complete_until = seen_at
        self._last_ends = asked_at, ends

    async def _check_topics(self, follower: Follower) -> None:
        """Raise `_RereadError` if a topic was recreated: it may be longer than before."""
        ids = await run_within(limits.PROBE_TIMEOUT_SECONDS, follower.topic_ids())
        for topic, topic_id in ids.items():
            if self._topic_ids.setdefault(topic, topic_id) != topic_id:
                raise _RereadError(f"{topic} was recreated")

    async def _apply(self, table: Table, record: ConsumerRecord) -> None:
        try:
            check_readable(record.value)
            newer = self._taken(table, record)
        except RecordError as error:
            await self._refuse(record, error)
            return
        self.state.applied += newer
        self.state.older += not newer
        self.state.tombstones += record.value is None

    def _taken(self, table: Table, record: ConsumerRecord) -> bool:
        topic = self._topics[record.topic]
        if self._take_record is not None:
            return self._take_record(topic, record)
        return self._apply_record(table, topic, record.key, record.value, record.headers)

    async def _refuse(self, record: ConsumerRecord, error: RecordError) -> None:
        self.state.bad[error.reason] += 1
        refuse(record.topic, error, partition=record.partition, offset=record.offset)
        if self._on_bad:
            await self._on_bad(
                dead_letter(
                    record.topic, record.partition, record.offset, record.key, record.value, error
                )
            )
