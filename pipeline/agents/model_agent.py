"""The model agent: windows in; predictions, resources and node states out.

Each applied window gives a node state, resources if the node has overcommit, and a prediction if
one is due. If several windows of a node are applied at once, only the newest results are published:
the result topics are tables.

All results are a function of `windows` up to an offset. Models and position change together,
without an await in between, so a checkpoint is exact at any moment. Results are published
afterwards. If that fails, the worker ends, and recovery publishes them again.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack

import msgspec

from pipeline.agents.apply_windows import (
    PendingReport,
    apply_in_order,
    encode_applied,
    encode_reports,
)
from pipeline.agents.join_agent import refuse_record
from pipeline.agents.koordlet_metrics import ProdAmounts, predictor_labels
from pipeline.agents.ownership import Ownership
from pipeline.agents.partition_models import (
    ModelRules,
    NodeReport,
    PartitionModels,
    PartitionWindow,
)
from pipeline.errors import KeyMismatchError, RecordError
from pipeline.kafka.partition_log import LogRecord
from pipeline.kafka.producer import LARGEST_VALUE_BYTES, Keyed, Producer
from pipeline.logs import get_logger
from pipeline.metrics import counter
from pipeline.processors.model.bank import Bank
from pipeline.tasks import run_all
from pipeline.topics.node_state import Counters
from pipeline.topics.registry import NODE_STATE, PREDICTIONS, RESOURCES, WINDOWS
from pipeline.topics.windows import decode_window, sample_offset_of

log = get_logger(__name__)

OVERSIZED = counter(
    "worker_oversized_results", "Results larger than the record limit, not published.", ["topic"]
)

NamedReport = tuple[str, NodeReport | None]
"""A node and the report to publish; None if the node was deleted."""

Refused = list[tuple[LogRecord, RecordError]]
"""Invalid records, for the dead letters."""


class ModelCursor(PartitionModels):
    """The models of one partition and their position in its `windows`.

    `joined` is the highest sample offset in the windows below `next_offset`. Hold `busy` to apply
    and publish: results of a node must reach the topics in the order of its windows.
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
        reports: dict[str, NodeReport | None] | None = None,
        counters: dict[str, Counters] | None = None,
        retracted: dict[str, int] | None = None,
    ) -> None:
        super().__init__(ownership, bank, rules, reports or {}, counters or {}, retracted or {})
        self.next_offset = next_offset
        self.joined = joined
        # Whether the last published resources of a node exist; missing if unknown.
        self._has_resources: dict[str, bool] = {}
        self.busy = asyncio.Lock()
        self._published: set[str] = set()
        self.output = output
        self._windows = WINDOWS.full_name(rules.prefix)
        self._replayed: dict[str, PendingReport] = {}

    @property
    def owned(self) -> bool:
        return self.ownership.owned

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
                self.joined = max(self.joined, sample_offset_of(record.value or b""))
            except RecordError:
                continue
            if record.offset >= covers.get((record.key or b"").decode(errors="replace"), 0):
                ahead.append(record)
        for (_, node), applied in apply_in_order(self.decode(ahead)[0]).items():
            if applied is not None:
                self._replayed[node] = applied.after(self._replayed.get(node)).pending()
        self.next_offset = records[-1].offset + 1

    def encode_replayed(self, limit: int) -> bool:
        """Encode the reports of up to `limit` replayed nodes; return whether any are left."""
        nodes = list(self._replayed)[:limit]
        encode_reports([self._replayed.pop(node) for node in nodes])
        return bool(self._replayed)

    def lose(self, node: str, windows: int) -> None:
        """Add `windows` to the lost windows of a node, also in its replayed report."""
        counters = self.counters[node]
        counters = msgspec.structs.replace(counters, lost=counters.lost + windows)
        self.counters[node] = counters
        if pending := self._replayed.get(node):
            self._replayed[node] = pending._replace(counters=counters)

    async def publish(self, reports: Iterable[NamedReport]) -> None:
        """Publish reports, and tombstones for deleted nodes, and wait for their delivery.

        Nothing is written after the partition was revoked: tombstones of the next owner have no
        offset by which readers could see that they are newer. Results above the record limit are
        counted and dropped: they would stop this worker, and each that takes the partition over.
        """
        predictions, states, resources = [], [], []
        reports = list(reports)
        for node, newest in reports:
            key, prediction = node.encode(), newest.prediction if newest else None
            if newest is None or prediction is not None:
                predictions.append(Keyed(key, prediction))
            states.append(Keyed(key, newest.node_state if newest else None))
            offer = newest.resources if newest else None
            if offer is not None or self._has_resources.get(node, True):
                resources.append(Keyed(key, offer))
            self._has_resources[node] = offer is not None
        prefix, partition = self.rules.prefix, self.ownership.partition
        for topic, records in (
            (PREDICTIONS, predictions), (RESOURCES, resources), (NODE_STATE, states),
        ):  # fmt: skip
            fitting = [record for record in records if _fits(topic.name, record)]
            if fitting and self.owned:
                await self.output.append(topic.full_name(prefix), partition, fitting)
        self._published.update(node for node, _ in reports)
        for node, newest in reports:
            if newest is not None:
                newest.pack()
                continue
            self._has_resources.pop(node, None)
            # The node may have a new report: it returned while the tombstones were written.
            if node in self.reports and self.reports[node] is None:
                del self.reports[node]

    def take_published(self) -> set[str]:
        """Return and reset the nodes whose results were published since the last call."""
        taken, self._published = self._published, set()
        return taken

    async def refuse(self, refused: Refused) -> None:
        """Write these records to the dead letters."""
        for record, error in refused:
            await refuse_record(self.output, self.rules.prefix, self._windows, record, error)

    def decode(self, records: Sequence[LogRecord]) -> tuple[list[PartitionWindow], Refused]:
        """Decode `records` into valid windows and refused records."""
        windows: list[PartitionWindow] = []
        refused: Refused = []
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
    owner replays the records.
    """
    async with AsyncExitStack() as stack:
        for cursor, _ in sorted(batches, key=lambda batch: batch[0].ownership.partition):
            await stack.enter_async_context(cursor.busy)
        owned = [(cursor, records) for cursor, records in batches if cursor.owned and records]
        try:
            reports, refused = apply_batches(owned)
        except BaseException:
            for cursor, _ in owned:
                cursor.abandon()
            raise
        await run_all(_publish(cursor, refused[cursor], reports[cursor]) for cursor, _ in owned)


async def _publish(cursor: ModelCursor, refused: Refused, reports: Sequence[NamedReport]) -> None:
    await cursor.refuse(refused)
    await cursor.publish(reports)


def apply_batches(
    batches: Sequence[Batch],
) -> tuple[dict[PartitionModels, list[NamedReport]], dict[PartitionModels, Refused]]:
    """Apply records of distinct partitions; return reports in order, and invalid records."""
    windows: list[PartitionWindow] = []
    reports: dict[PartitionModels, list[NamedReport]] = defaultdict(list)
    refused: dict[PartitionModels, Refused] = {}
    for cursor, records in batches:
        decoded, refused[cursor] = cursor.decode(records)
        cursor.joined = max([cursor.joined, *(source.window.sample_offset for source in decoded)])
        windows += decoded
    newest = apply_in_order(windows)
    encoded = iter(encode_applied([applied for applied in newest.values() if applied is not None]))
    for (models, node), applied in newest.items():
        reports[models].append((node, None if applied is None else next(encoded)))
    for cursor, records in batches:
        cursor.next_offset = records[-1].offset + 1
    return reports, refused


def _fits(topic: str, record: Keyed) -> bool:
    size = len(record.value or b"")
    if size <= LARGEST_VALUE_BYTES:
        return True
    OVERSIZED.labels(topic).inc()
    log.error("result exceeds the record limit, not publishing it", topic=topic,
              key=record.key.decode(), bytes=size)  # fmt: skip
    return False
