"""Keeps a `Table` equal to the compacted topics, by a plain consumer without a group.

Owes the rest: the table is filled in one step, when all that lay in the topics at the start has
been read (`caught_up`), then follows them live. While the broker is away the table keeps what it
has, `state` says so, and reading goes on where it stopped; a log that was deleted, or that has
forgotten tombstones meanwhile, is read anew beside the table, which then takes it over in one step.
A snapshot on disk, if there is one, is where it begins after a restart.
A bad record costs itself: it goes to `on_bad` as a dead letter, is counted, and is passed over.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka import errors as kafka_errors
from aiokafka.admin import AIOKafkaAdminClient

from pipeline.clock import Clock
from pipeline.errors import (
    BrokerUnavailableError,
    CheckpointError,
    KafkaError,
    RecordError,
    TopicDriftError,
)
from pipeline.kafka.client import COMMITTED
from pipeline.logs import get_logger
from pipeline.table.apply_records import apply
from pipeline.table.event_loop_turns import by_turns
from pipeline.table.state_table import Table
from pipeline.table.table_snapshot import Copied, copied, load, save
from pipeline.tasks import run_within
from pipeline.topics.dead_letters import DeadLetter, dead_letter
from pipeline.topics.registry import (
    DAY_MS,
    MAX_RECORD_BYTES,
    NODE_STATE,
    NODE_VIEWS,
    NODES,
    PODS,
    RESOURCES,
    Topic,
)

FED_BY: Final[tuple[Topic, ...]] = (NODE_STATE, NODES)
"""What is known of nodes."""
AND_PODS: Final[tuple[Topic, ...]] = (*FED_BY, RESOURCES, PODS)
"""That, what they offer, and who runs on them."""
VIEWS: Final[tuple[Topic, ...]] = (NODE_VIEWS,)
"""What their actuators are told, for a table that has nothing else."""
HISTORY: Final[tuple[Topic, ...]] = (NODE_STATE,)
"""What nodes used lately, for a table that has nothing else."""

# A tombstone is kept for a day; after half of that away one may have been missed.
_FORGOTTEN_AFTER_SECONDS: Final = DAY_MS / 2000
_PROBE_EVERY_SECONDS: Final = 2.0
_PROBE_TIMEOUT_SECONDS: Final = 5.0
_START_TIMEOUT_SECONDS: Final = 30.0
_STOP_TIMEOUT_SECONDS: Final = 2.0
_PAUSE_SECONDS: Final = (0.25, 5.0)
_RECORDS_AT_ONCE: Final = 100
_POLL_MS: Final = 250
# A fetch costs more than the records in it: of those that trickle in some are taken together.
_FETCH_BYTES: Final = 1 << 18
_FETCH_WAIT_MS: Final = 200
_SAVE_EVERY_SECONDS: Final = 60.0

_log = get_logger(__name__)

Apply = Callable[[Table, Topic, bytes | None, bytes | None], bool]
OnBad = Callable[[DeadLetter], Awaitable[None]]
Positions = dict[TopicPartition, int]
T = TypeVar("T")


@dataclass(slots=True)
class FeedState:
    """How the feed is doing: for readiness, metrics and people.

    `lag_records` is how far behind the ends of the logs, None before they are known; `contact` is
    the clock's time at which the broker last answered.
    """

    message: str = "starting"
    caught_up: bool = False
    connected: bool = False
    lag_records: int | None = None
    contact: float | None = None
    applied: int = 0
    older: int = 0
    tombstones: int = 0
    rereads: int = 0
    bad: Counter[str] = field(default_factory=Counter)


class _RereadError(Exception):
    """What was read no longer fits the log; the message says why."""


class Feed:
    """Feeds `table` from the topics of `prefix`; `client` is what aiokafka's clients take
    (`bootstrap_servers` and security), `name` what the log calls it. `run` until cancelled.
    A feed of the last `recent_seconds` reads nothing that is older; `use` is done with each record
    instead of `apply`.
    """

    def __init__(
        self,
        table: Table,
        *,
        client: Mapping[str, Any],
        prefix: str,
        clock: Clock,
        on_bad: OnBad | None = None,
        topics: Sequence[Topic] = FED_BY,
        snapshot: Path | None = None,
        name: str = "table",
        use: Apply | None = None,
        recent_seconds: float | None = None,
    ) -> None:
        self.name = name
        self._use = use or apply
        self._recent_seconds = recent_seconds
        self.table = table
        self.state = FeedState()
        self._client = client
        self._topics = {topic.full_name(prefix): topic for topic in topics}
        self._clock = clock
        self._on_bad = on_bad
        self._snapshot = snapshot
        self._writing = threading.Lock()
        self._positions: Positions = {}
        self._seen_at = clock.monotonic()
        self._caught_up = asyncio.Event()
        self._troubled = asyncio.Event()
        self._failure: KafkaError | None = None

    async def wait_caught_up(self) -> None:
        """Return when the table holds all that lay in the topics when reading began."""
        await self._caught_up.wait()

    async def wait_failure(self) -> KafkaError:
        """Return why, when the feed cannot reach the broker or its topics; it goes on trying."""
        await self._troubled.wait()
        assert self._failure is not None
        return self._failure

    async def run(self) -> NoReturn:
        """Feed the table for ever: connect, catch up, follow, and again after a failure."""
        pause, longest = _PAUSE_SECONDS
        if self._snapshot is not None:
            await self._restore(self._snapshot)
        while True:
            try:
                await self._connect_and_follow()
            except _RereadError as reason:
                self.state.rereads += 1
                self._positions = {}
                _log.warning("reading the topics anew", reason=str(reason))
                pause = _PAUSE_SECONDS[0]
            except (KafkaError, kafka_errors.KafkaError, OSError) as error:
                pause = _PAUSE_SECONDS[0] if self.state.connected else min(2 * pause, longest)
                self._trouble(error)
            await self._clock.sleep(pause)

    async def _restore(self, path: Path) -> None:
        """Begin with what a snapshot holds, if it is not so old that tombstones may be gone."""
        began = self._clock.monotonic()
        try:
            fresh = Table(self.table.columns, self.table.pods.counting)
            found = await asyncio.to_thread(load, path, fresh)
        except (OSError, CheckpointError) as error:
            _log.warning("snapshot not read", file=str(path), reason=str(error))
            return
        if found is None:
            _log.info("there is no snapshot yet", file=str(path))
            return
        age = self._clock.now() - found.saved_at
        if not 0 <= age < _FORGOTTEN_AFTER_SECONDS:
            _log.warning(
                "snapshot not read",
                file=str(path),
                reason=f"it was written {age:.0f} s ago: what was deleted since may be forgotten"
                if age >= 0
                else f"it was written {-age:.0f} s from now: a clock was set back",
            )
            return
        found.table.bring_up_to_date(self._clock.now())
        self.table.adopt(found.table)
        self._positions = {TopicPartition(topic, at): to for topic, at, to in found.positions}
        self._seen_at = self._clock.monotonic() - age
        self.state.caught_up = True
        self._caught_up.set()
        _log.info(
            "table restored",
            nodes=len(self.table),
            pods=len(self.table.pods),
            age_seconds=round(age, 1),
            seconds=round(self._clock.monotonic() - began, 3),
        )

    async def keep_saved(self) -> NoReturn:
        """Write a snapshot every minute, for ever."""
        while True:
            await self._clock.sleep(_SAVE_EVERY_SECONDS)
            await self.save()

    async def save(self) -> None:
        """Write a snapshot, if there is to be one and there is something to be kept."""
        if self._snapshot is None or not self.state.caught_up or not self._positions:
            return
        positions = [(at.topic, at.partition, to) for at, to in self._positions.items()]
        now, began = self._clock.now(), self._clock.monotonic()
        try:
            # In one moment: nothing may change between the pods' names and what they use.
            copy = copied(self.table, positions, now)
            size = await asyncio.to_thread(self._write, self._snapshot, copy)
        except OSError as error:
            _log.warning("snapshot not written", file=str(self._snapshot), reason=str(error))
            return
        seconds = round(self._clock.monotonic() - began, 3)
        _log.debug("snapshot written", bytes=size, seconds=seconds)

    def _write(self, path: Path, copy: Copied) -> int:
        # Whoever was cancelled is still writing.
        with self._writing:
            return save(path, copy)

    def _trouble(self, error: KafkaError | kafka_errors.KafkaError | OSError) -> None:
        if not isinstance(error, KafkaError):
            said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            error = BrokerUnavailableError(f"the broker is away: {said}")
        if error.message != self.state.message:
            _log.warning(
                f"{self.name} is not fed; it keeps what it has",
                reason=error.message,
                hint=error.hint,
                nodes=len(self.table),
            )
        self.state.message = error.message
        self.state.connected = False
        self._failure = error
        self._troubled.set()

    async def _connect_and_follow(self) -> None:
        partitions = await run_within(_START_TIMEOUT_SECONDS, self._partitions())
        consumer = AIOKafkaConsumer(
            **self._client,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            max_partition_fetch_bytes=MAX_RECORD_BYTES,
            fetch_min_bytes=_FETCH_BYTES,
            fetch_max_wait_ms=_FETCH_WAIT_MS,
            **COMMITTED,
        )
        try:
            await run_within(_START_TIMEOUT_SECONDS, consumer.start())
            consumer.assign(partitions)
            if not self._positions:
                await self._load(consumer, partitions)
            await self._follow(consumer, partitions)
        except kafka_errors.OffsetOutOfRangeError as error:
            raise _RereadError(
                "the log no longer has the offset that was to be read next"
            ) from error
        finally:
            with suppress(kafka_errors.KafkaError, OSError):
                await run_within(_STOP_TIMEOUT_SECONDS, consumer.stop())

    async def _partitions(self) -> list[TopicPartition]:
        """All partitions of the topics. Raises `TopicDriftError` if one is missing.

        Asks for all topics: asking for one by name would make some brokers create it.
        """
        admin = AIOKafkaAdminClient(**self._client)
        try:
            await admin.start()
            found = {topic["topic"]: topic for topic in await admin.describe_topics()}
        except kafka_errors.KafkaConnectionError as error:
            servers = self._client.get("bootstrap_servers")
            raise BrokerUnavailableError(f"no broker answers at {servers}") from error
        finally:
            await admin.close()
        if missing := sorted(set(self._topics) - set(found)):
            raise TopicDriftError(f"waiting for topic {' and '.join(missing)}")
        return [
            TopicPartition(name, partition["partition"])
            for name in self._topics
            for partition in found[name]["partitions"]
        ]

    async def _load(self, consumer: AIOKafkaConsumer, partitions: list[TopicPartition]) -> None:
        """Read all that is there now into a fresh table, then let ours become it."""
        began = self._clock.monotonic()
        ends: Positions = await run_within(_START_TIMEOUT_SECONDS, consumer.end_offsets(partitions))
        positions = await self._beginnings(consumer, ends)
        for partition, offset in positions.items():
            consumer.seek(partition, offset)
        self._contact(ends, positions)
        self.state.message = "catching up"
        fresh = Table(self.table.columns, self.table.pods.counting)
        heard = self._clock.monotonic()
        while any(positions[partition] < end for partition, end in ends.items()):
            if await self._take(consumer, fresh, positions):
                heard = self._clock.monotonic()
                self._contact(ends, positions)
            elif self._clock.monotonic() - heard > _PROBE_TIMEOUT_SECONDS:
                # Nothing came: either the broker is away, which this says, or it is slow.
                await self._probe(consumer, positions)
                heard = self._clock.monotonic()
        fresh.bring_up_to_date(self._clock.now())
        self.table.adopt(fresh)
        self._positions = positions
        self.state.caught_up = True
        self._caught_up.set()
        _log.info(
            f"{self.name} caught up",
            nodes=len(self.table),
            records=sum(ends.values()),
            seconds=round(self._clock.monotonic() - began, 3),
        )

    async def _beginnings(self, consumer: AIOKafkaConsumer, ends: Positions) -> Positions:
        if self._recent_seconds is None:
            asked = consumer.beginning_offsets(list(ends))
            return dict(await run_within(_START_TIMEOUT_SECONDS, asked))
        since_ms = int((self._clock.now() - self._recent_seconds) * 1000)
        found = await run_within(
            _START_TIMEOUT_SECONDS, consumer.offsets_for_times(dict.fromkeys(ends, since_ms))
        )
        # Where nothing has been written since, reading begins at the end.
        return {
            partition: end if found[partition] is None else found[partition].offset
            for partition, end in ends.items()
        }

    async def _follow(self, consumer: AIOKafkaConsumer, partitions: list[TopicPartition]) -> None:
        if set(self._positions) != set(partitions):
            raise _RereadError("the topics have other partitions than before")
        if self._clock.monotonic() - self._seen_at > _FORGOTTEN_AFTER_SECONDS:
            raise _RereadError("away for so long that tombstones may be gone")
        for partition, offset in self._positions.items():
            consumer.seek(partition, offset)
        await self._probe(consumer, self._positions)
        self.state.message = "following"
        due = self._clock.monotonic() + _PROBE_EVERY_SECONDS
        while True:
            await self._take(consumer, self.table, self._positions)
            if self._clock.monotonic() >= due:
                await self._probe(consumer, self._positions)
                due = self._clock.monotonic() + _PROBE_EVERY_SECONDS

    async def _probe(self, consumer: AIOKafkaConsumer, positions: Positions) -> None:
        """Ask where the logs end: only so is a broker that is away told from one that is quiet."""
        ends: Positions = await run_within(
            _PROBE_TIMEOUT_SECONDS, consumer.end_offsets(list(positions))
        )
        if any(ends[partition] < position for partition, position in positions.items()):
            raise _RereadError("a log ends before what was already read: the topic was made anew")
        self._contact(ends, positions)

    def _contact(self, ends: Positions, positions: Positions) -> None:
        self.state.connected = True
        self.state.contact = self._clock.now()
        self._seen_at = self._clock.monotonic()
        behind = (max(0, end - positions[partition]) for partition, end in ends.items())
        self.state.lag_records = sum(behind)

    async def _take(self, consumer: AIOKafkaConsumer, table: Table, positions: Positions) -> bool:
        """Apply the next records to `table` and move `positions`; whether anything came."""
        batches = await consumer.getmany(timeout_ms=_POLL_MS, max_records=_RECORDS_AT_ONCE)
        records = [*chain.from_iterable(batches.values())]
        is_read = table is self.table and self.state.caught_up
        trickling = is_read and len(records) < _RECORDS_AT_ONCE
        async for record in by_turns(records, trickling=trickling):
            await self._apply(table, record)
        # Where more lies ready the next call would return at once, and nobody else have a turn.
        await asyncio.sleep(0)
        before = sum(positions.values())
        for partition in positions:
            positions[partition] = await consumer.position(partition)
        return sum(positions.values()) > before

    async def _apply(self, table: Table, record: ConsumerRecord) -> None:
        try:
            newer = self._use(table, self._topics[record.topic], record.key, record.value)
        except RecordError as error:
            await self._refuse(record, error.at(record.topic, record.partition, record.offset))
            return
        self.state.applied += newer
        self.state.older += not newer
        self.state.tombstones += record.value is None

    async def _refuse(self, record: ConsumerRecord, error: RecordError) -> None:
        self.state.bad[error.reason] += 1
        _log.warning("record refused", reason=error.reason, error=str(error))
        if self._on_bad:
            await self._on_bad(
                dead_letter(
                    record.topic, record.partition, record.offset, record.key, record.value, error
                )
            )
