"""The model agent: windows in; predictions, resources, node states, alerts and judged peaks out.

Each applied window gives a node state, resources if the node has overcommit, and a prediction if
one is due. If several windows of a node are applied at once, only the newest results are published:
the result topics are tables. Alerts and judged peaks are logs: every one of these events is
published.

All results are a function of `windows` up to an offset. Models and position change together,
without an await in between, so a checkpoint is exact at any moment. Results are published
afterwards. If that fails, the worker ends, and recovery publishes them again. No checkpoint covers
an event that is not delivered (`CheckpointRounds`), so a replay finds it again.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any, TypeVar

import msgspec

from pipeline import tracing
from pipeline.agents.apply_windows import (
    Applied,
    PendingReport,
    apply_in_order,
    encode_applied,
    encode_reports,
)
from pipeline.agents.departed_nodes import DepartedNodes
from pipeline.agents.failed_windows import (
    ABSENT,
    ATTEMPTS,
    MAX_NODES,
    SKIPPED,
    FailedWindows,
    SavedNode,
    node_of,
)
from pipeline.agents.koordlet_metrics import ProdAmounts, predictor_labels
from pipeline.agents.node_events import NodeEvent
from pipeline.agents.ownership import Ownership
from pipeline.agents.partition_models import (
    ModelRules,
    NodeReport,
    PartitionModels,
    PartitionWindow,
)
from pipeline.agents.published_models import NamedReport, PublishedModels
from pipeline.agents.refusals import Refused, refuse_records
from pipeline.agents.window_spans import note_applied
from pipeline.errors import FailedWindowError, KeyMismatchError, RecordError, StateError
from pipeline.kafka.partition_log import LogRecord
from pipeline.kafka.producer import Keyed, Producer
from pipeline.processors.model.bank import Bank
from pipeline.tasks import run_all
from pipeline.topics.checkpoints import FIRST_GENERATION, SkippedWindow, skip_key
from pipeline.topics.codec import encode_pack
from pipeline.topics.node_state import Counters
from pipeline.topics.registry import CHECKPOINTS, WINDOWS
from pipeline.topics.windows import decode_window, sample_offset_of

T = TypeVar("T")


class ModelCursor(PublishedModels):
    """The models of one partition and their position in its `windows`.

    `failures` are the windows that could not be applied. Hold `busy` to apply and publish: results
    of a node must reach the topics in the order of its windows.
    """

    def __init__(
        self,
        ownership: Ownership,
        next_offset: int,
        bank: Bank,
        output: Producer,
        rules: ModelRules,
        *,
        joined: int = -1,
        rejoined_from: int = 0,
        generation: int = FIRST_GENERATION,
        reports: dict[str, NodeReport | None] | None = None,
        counters: dict[str, Counters] | None = None,
        retracted: dict[str, int] | None = None,
        failures: FailedWindows | None = None,
        departed: DepartedNodes | None = None,
        events: dict[str, tuple[NodeEvent, ...]] | None = None,
    ) -> None:
        super().__init__(
            ownership, bank, rules, reports or {}, counters or {}, retracted or {}, next_offset,
            output,
        )  # fmt: skip
        self.joined = joined
        self.rejoined_from = rejoined_from
        self.generation = generation
        self.failures = failures or FailedWindows()
        self.departed = departed or DepartedNodes()
        self.events = events or {}
        self.busy = asyncio.Lock()
        self._windows = WINDOWS.full_name(rules.prefix)
        self._replayed: dict[str, PendingReport] = {}

    @property
    def prod_amounts(self) -> ProdAmounts:
        """The amounts of Prod of all nodes with a window since the partition was loaded.

        A copy, because other threads may read it.
        """
        return ProdAmounts(predictor_labels(self.bank.predictors), self.amounts.copy())

    async def process(self, records: Sequence[LogRecord]) -> None:
        """Apply records and publish the results."""
        await process_batches([(self, records)])

    async def idle(self) -> None:
        """Wait until nothing is being published."""
        async with self.busy:
            pass

    def replay(self, records: Sequence[LogRecord], covers: Mapping[str, int]) -> None:
        """Apply `records` during recovery, without reports.

        `covers` has the offset up to which the checkpoint of a node covers the log: records below
        it are not even decoded. `encode_replayed` then encodes one report per node, from its last
        window and its last prediction that would have been published.
        """
        ahead = []
        for record in records:
            try:
                self.raise_joined(record.offset, sample_offset_of(record.value or b""))
            except RecordError:
                continue
            if record.offset >= covers.get((record.key or b"").decode(errors="replace"), 0):
                ahead.append(record)
        began = tracing.now()
        for (_, node), applied in apply_in_order(self.decode(ahead)[0]).items():
            if applied is not None:
                _note(applied, began, is_replay=True)
                self._replayed[node] = applied.after(self._replayed.get(node)).pending()
        self.next_offset = records[-1].offset + 1

    def encode_replayed(self, limit: int) -> bool:
        """Encode the reports of up to `limit` replayed nodes; return whether any are left."""
        nodes = self.replayed_nodes[:limit]
        encode_reports([self._replayed[node] for node in nodes])
        for node in nodes:
            del self._replayed[node]
        return bool(self._replayed)

    @property
    def replayed_nodes(self) -> list[str]:
        """The nodes whose replayed reports are not encoded yet, in order."""
        return list(self._replayed)

    def replay_alone(self, record: LogRecord) -> None:
        """Replay one record, and encode its report, too, because that may fail as well."""
        self.replay([record], {})
        node = node_of(record)
        if node in self._replayed:
            encode_reports([self._replayed[node]])

    def save(self, node: str) -> SavedNode:
        """Return all that applying a window of `node` may change."""
        state = self.bank.encode_state(node) if node in self.bank.node_models else None
        return SavedNode(state, [values.get(node, ABSENT) for values in self._values()])

    def restore(self, node: str, saved: SavedNode) -> None:
        """Undo what was applied to `node` since `save`."""
        self.bank.forget(node)
        if saved.state is not None:
            self.bank.restore(node, saved.state)
        for values, value in zip(self._values(), saved.values, strict=True):
            values.pop(node, None)
            if value is not ABSENT:
                values[node] = value

    def _values(self) -> tuple[dict[str, Any], ...]:
        return (
            self.counters, self.reports, self.retracted, self.amounts, self.events, self._replayed
        )  # fmt: skip

    async def apply_alone(self, record: LogRecord, apply: Callable[[], T]) -> T | None:
        """Return `apply()`, which applies one record that may fail; None if the record is skipped.

        Raises StateError if windows of too many nodes fail.
        """
        node, failure = node_of(record), None
        for _ in range(0 if record.offset in self.failures.skipped else ATTEMPTS):
            saved = self.save(node)
            try:
                return apply()
            except MemoryError:
                self.abandon()
                raise
            except Exception as error:  # foreign code may raise anything
                self.restore(node, saved)
                failure = error
        if failure is not None:
            await self._record_skip(record, failure)
        if self.owned:
            self.skip(record)
        return None

    async def _record_skip(self, record: LogRecord, failure: Exception) -> None:
        """Write the dead letter of a window that failed, and that replays skip it."""
        node, epoch = node_of(record), self.ownership.epoch
        if self.failures.are_too_many_with(node):
            self.abandon()
            raise StateError(
                f"windows of more than {MAX_NODES} nodes of partition {record.partition} cannot be "
                f"applied: {failure!r:.300}",
                hint="the log holds all windows: correct the worker or the predictor, and restart",
            ) from failure
        error = FailedWindowError(f"the window of {node!r:.80} failed: {failure!r:.300}")
        await self.refuse([(record, error)])
        skipped = SkippedWindow(node=node, epoch=epoch, offset=record.offset, error=error.message)
        skip = Keyed(skip_key(epoch, record.offset), encode_pack(skipped))
        topic = CHECKPOINTS.full_name(self.rules.prefix)
        await self.output.append(topic, record.partition, [skip])
        self.failures.add(record)
        SKIPPED.inc()

    def skip(self, record: LogRecord) -> None:
        """Advance past a record that is skipped, and count it as lost to its node."""
        node = node_of(record)
        if node in self.counters:
            counters = self.counters[node]
            self.counters[node] = msgspec.structs.replace(counters, lost=counters.lost + 1)
        with suppress(RecordError):
            self.raise_joined(record.offset, sample_offset_of(record.value or b""))
        self.next_offset = record.offset + 1

    def lose(self, node: str, windows: int) -> None:
        """Add `windows` to the lost windows of a node, also in its replayed report."""
        counters = self.counters[node]
        counters = msgspec.structs.replace(counters, lost=counters.lost + windows)
        self.counters[node] = counters
        if pending := self._replayed.get(node):
            self._replayed[node] = pending._replace(counters=counters)

    async def refuse(self, refused: Refused) -> None:
        """Write these records to the dead letters."""
        await refuse_records(self.output, self.rules.prefix, self._windows, refused)

    def decode(self, records: Sequence[LogRecord]) -> tuple[list[PartitionWindow], Refused]:
        """Decode `records` into valid windows and refused records."""
        windows: list[PartitionWindow] = []
        refused: list[tuple[LogRecord, RecordError]] = []
        for record in records:
            try:
                window = record.window
                if window is None:
                    window = decode_window(record.value or b"")
                if record.key != window.header.node.encode():
                    raise KeyMismatchError(
                        f"window of {window.header.node!r} has the key {record.key!r:.100}"
                    )
            except RecordError as error:
                refused.append((record, error))
            else:
                windows.append(PartitionWindow(self, record.offset, window))
        return windows, refused

    def retract(self, node: str, deleted_ms: int) -> None:
        super().retract(node, deleted_ms)
        self._replayed.pop(node, None)

    def forget(self, node: str) -> None:
        super().forget(node)
        self._replayed.pop(node, None)


Batch = tuple[ModelCursor, Sequence[LogRecord]]
"""Consecutive records from the position of a cursor on."""


async def process_batches(batches: Sequence[Batch]) -> None:
    """Apply records of distinct partitions in one call, then publish the results concurrently.

    Revoked partitions are skipped. If the call fails, its partitions are given up at once: the next
    owner replays the records. Records of nodes whose windows failed before are applied alone.
    """
    async with AsyncExitStack() as stack:
        for cursor, _ in sorted(batches, key=lambda batch: batch[0].ownership.partition):
            await stack.enter_async_context(cursor.busy)
        owned = [(cursor, records) for cursor, records in batches if cursor.owned and records]
        together = [batch for batch in owned if not batch[0].failures.concern(batch[1])]
        reports, refused = _apply_or_abandon(together)
        await run_all(_publish(cursor, refused[cursor], reports[cursor]) for cursor, _ in together)
        for cursor, records in owned:
            if cursor.failures.concern(records):
                await _process_apart(cursor, records)


async def _process_apart(cursor: ModelCursor, records: Sequence[LogRecord]) -> None:
    """Apply and publish records, those that may fail each alone."""
    for run in cursor.failures.runs(records):
        if not cursor.owned:
            return
        batches = [(cursor, run)]
        applied = (
            await cursor.apply_alone(run[0], partial(apply_batches, batches))
            if cursor.failures.concern(run)
            else _apply_or_abandon(batches)
        )
        if applied is not None:
            reports, refused = applied
            await _publish(cursor, refused[cursor], reports[cursor])


def _apply_or_abandon(
    batches: Sequence[Batch],
) -> tuple[dict[PartitionModels, list[NamedReport]], dict[PartitionModels, Refused]]:
    try:
        return apply_batches(batches)
    except BaseException:
        for cursor, _ in batches:
            cursor.abandon()
        raise


async def _publish(cursor: ModelCursor, refused: Refused, reports: Sequence[NamedReport]) -> None:
    await cursor.refuse(refused)
    await cursor.publish_events()
    await cursor.publish(reports)


def apply_batches(
    batches: Sequence[Batch],
) -> tuple[dict[PartitionModels, list[NamedReport]], dict[PartitionModels, Refused]]:
    """Apply records of distinct partitions; return reports in order, and invalid records."""
    began = tracing.now()
    windows: list[PartitionWindow] = []
    reports: dict[PartitionModels, list[NamedReport]] = defaultdict(list)
    refused: dict[PartitionModels, Refused] = {}
    for cursor, records in batches:
        decoded, refused[cursor] = cursor.decode(records)
        for source in decoded:
            cursor.raise_joined(source.offset, source.window.sample_offset)
        windows += decoded
    newest = apply_in_order(windows)
    encoded = iter(encode_applied([applied for applied in newest.values() if applied is not None]))
    for (models, node), applied in newest.items():
        reports[models].append((node, None if applied is None else next(encoded)))
        if applied is not None:
            _note(applied, began)
    for cursor, records in batches:
        cursor.next_offset = records[-1].offset + 1
    return reports, refused


def _note(applied: Applied, began: float, *, is_replay: bool = False) -> None:
    """Keep the context of the trace of an applied window, for its results."""
    if tracing.is_on():
        source = applied.source
        note_applied(
            source.models.traces, source.window, source.offset, began, is_replay=is_replay
        )  # fmt: skip
