"""The join agent: samples and the inventory in, the log of record out.

It waits for nothing: a pod that is not known now is unknown in this window, and one that was
deleted is known for as long as a window may hold what it used. Where it goes on after a restart it
finds by reading its own output: each window carries the offset of its sample, and windows are
appended in the order of their samples with no hole below any that is there.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pipeline.agents.cluster_state import Inventory
from pipeline.agents.ownership import Ownership
from pipeline.errors import (
    InvalidRecordError,
    KeyMismatchError,
    OversizedRecordError,
    RecordError,
)
from pipeline.kafka.partition import partition_of
from pipeline.kafka.partition_log import LogRecord
from pipeline.kafka.producer import LARGEST_VALUE_BYTES, Keyed, Output
from pipeline.logs import get_logger
from pipeline.metrics import counter
from pipeline.processors.join.node_facts import node_facts
from pipeline.processors.join.sample_join import Beside, check_not_future, join, put_beside
from pipeline.topics.dead_letters import dead_letter
from pipeline.topics.nodes import KnownNode, Strategy
from pipeline.topics.registry import (
    DEAD_LETTERS,
    SAMPLES,
    WINDOWS,
)
from pipeline.topics.sample_rows import read_rows
from pipeline.topics.windows import NodeFacts, Window, as_decoded, departure, encode_window

log = get_logger(__name__)

JOINED = counter("worker_joined_windows", "Samples written to the log as windows.")
DEPARTURES = counter("worker_departures", "Deleted nodes written to the log.")
IGNORED = counter("worker_departed_samples", "Samples of deleted nodes, not joined.")
DEAD = counter("worker_dead_letters", "Records refused.", ["topic", "reason"])
BAD_VALUES = counter("worker_bad_values", "Values made null.", ["node", "column"])


@dataclass(frozen=True, slots=True)
class JoinRules:
    """What the join needs of the settings."""

    prefix: str
    partitions: int
    future_tolerance_seconds: float
    strategy: Strategy


HandOn = Callable[[Sequence[LogRecord]], Awaitable[None]]
"""Takes what was appended to the log, in order; the time is that of the last sample."""


class _Joined(NamedTuple):
    """A window to be appended, and the window itself where decoding the record would give it."""

    record: Keyed
    said: Window | None = None


class JoinCursor:
    """The join's position in one partition of `samples`."""

    def __init__(
        self,
        ownership: Ownership,
        next_offset: int,
        inventory: Inventory,
        output: Output,
        rules: JoinRules,
        hand_on: HandOn,
    ) -> None:
        self.ownership = ownership
        self.next_offset = next_offset
        self.inventory = inventory
        self._output = output
        self._rules = rules
        self._hand_on = hand_on
        self._samples = SAMPLES.full_name(rules.prefix)
        self._windows = WINDOWS.full_name(rules.prefix)
        # Samples and departures are appended by different tasks; the log takes one at a time.
        self._appending = asyncio.Lock()
        self._told: set[str] = set()
        self._beside: dict[str, Beside] = {}
        self._facts: dict[str, tuple[KnownNode, NodeFacts]] = {}

    @property
    def owned(self) -> bool:
        return self.ownership.owned

    async def process(self, records: Sequence[LogRecord]) -> None:
        """Write a window for each good sample and a dead letter for each bad one."""
        async with self._appending:
            if not self.owned:
                return
            joined, refused = self._join(records)
            for record, error in refused:
                await refuse(self._output, self._rules.prefix, self._samples, record, error)
            if not self.ownership.owned:  # lost while the dead letters were written
                return
            if joined:
                await self._append(joined, records[-1].appended_ms)
                JOINED.inc(len(joined))
            self.next_offset = records[-1].offset + 1

    async def idle(self) -> None:
        """Return when nothing is being appended any more."""
        async with self._appending:
            pass

    async def depart(self, node: str, appended_ms: int) -> None:
        """Write the departure of a deleted node."""
        async with self._appending:
            if not self.owned:
                return
            record = Keyed(node.encode(), encode_window(departure(node, appended_ms)))
            await self._append([_Joined(record)], appended_ms)
            self._beside.pop(node, None)
            self._facts.pop(node, None)
            self._told &= self.inventory.departed.keys()
            DEPARTURES.inc()

    async def _append(self, windows: Sequence[_Joined], appended_ms: int) -> None:
        partition, records = self.ownership.partition, [window.record for window in windows]
        offsets = await self._output.append(self._windows, partition, records)
        await self._hand_on([
            LogRecord(partition, offset, key, value, appended_ms, said)
            for offset, ((key, value), said) in zip(offsets, windows, strict=True)
        ])  # fmt: skip

    def _join(
        self, records: Sequence[LogRecord]
    ) -> tuple[list[_Joined], list[tuple[LogRecord, RecordError]]]:
        joined: list[_Joined] = []
        refused: list[tuple[LogRecord, RecordError]] = []
        for record in records:
            try:
                window = self._window(record)
            except RecordError as error:
                refused.append((record, error.at(self._samples, record.partition, record.offset)))
            else:
                if window is not None:
                    joined.append(window)
        return joined, refused

    def _window(self, record: LogRecord) -> _Joined | None:
        sample = read_rows(record.value or b"")
        node = sample.header.node
        if record.key != node.encode():
            raise KeyMismatchError(f"sample of {node!r} has the key {record.key!r:.100}")
        expected = partition_of(node, self._rules.partitions)
        if record.partition != expected:
            raise InvalidRecordError(
                f"sample of {node!r} lies in partition {record.partition}, not {expected}",
                hint="set the producer's partitioner to murmur2",
            )
        check_not_future(sample.header, record.appended_ms, self._rules.future_tolerance_seconds)
        # Who deleted it watches the cluster: samples alone, of an exporter that is about to end,
        # do not bring it back.
        if node in self.inventory.departed:
            if node not in self._told:
                self._told.add(node)
                log.warning("samples of a deleted node are not joined", node=node)
            IGNORED.inc()
            return None
        view = self.inventory.view(node)
        beside = put_beside(sample.listing, view.pods, self._beside.get(node))
        self._beside[node] = beside
        window = join(
            sample,
            view,
            self._rules.strategy,
            sample_offset=record.offset,
            appended_ms=record.appended_ms,
            beside=beside,
            facts=self._facts_of(view.record),
        )
        uids, header = sample.listing.uids, sample.header
        self.inventory.gone.joined(node, uids, header.window_start_ms, header.window_end_ms)
        value = encode_window(window)
        if len(value) > LARGEST_VALUE_BYTES:
            raise OversizedRecordError(f"window of {node!r} would take {len(value)} bytes")
        for column, count in window.bad_values.items():
            BAD_VALUES.labels(node, column).inc(count)
        # A sample that had to be mended is read as others will read it.
        said = as_decoded(window, value) if window.rows.sample is sample else None
        return _Joined(Keyed(node.encode(), value), said)

    def _facts_of(self, record: KnownNode | None) -> NodeFacts | None:
        if record is None:
            return None
        found = self._facts.get(record.node)
        if found is None or found[0] is not record:
            found = self._facts[record.node] = record, node_facts(record, self._rules.strategy)
        return found[1]


async def refuse(
    output: Output, prefix: str, topic: str, record: LogRecord, error: RecordError
) -> None:
    """Put a refused record into the dead letters, and say so in log and metrics."""
    name = topic.removeprefix(f"{prefix}.")
    DEAD.labels(name, error.reason).inc()
    log.warning("record refused", topic=topic, partition=record.partition, offset=record.offset,
                reason=error.reason, error=error.message)  # fmt: skip
    letter = dead_letter(topic, record.partition, record.offset, record.key, record.value, error)
    await output.dead_letter(DEAD_LETTERS.full_name(prefix), record.partition, letter)
