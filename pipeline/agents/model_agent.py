"""The model agent: windows in; predictions, resources and node states out.

Each applied window gives a node state, resources if the node has overcommit, and a prediction if
one is due. If several windows of a node are applied at once, only the newest results are published:
the result topics are tables.

All results are a function of `windows` up to an offset. Models and position change together,
without an await in between, so a checkpoint is exact at any moment. Results are published
afterwards. If that fails, recovery publishes them again.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack

import msgspec

from pipeline.agents.join_agent import refuse_record
from pipeline.agents.koordlet_metrics import ProdAmounts, predictor_labels
from pipeline.agents.learn_windows import (
    Applied,
    PendingReport,
    learn,
    report,
    report_applied,
    segments,
)
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

Reported = tuple[str, NodeReport | None]
"""A node and the report to publish; None if the node departed."""


_MISSING = NodeReport(None, b"")


class ModelCursor(PartitionModels):
    """The models of one partition and their position in its `windows`.

    `joined` is the highest sample offset in the windows below `next_offset`. Hold `busy` to apply
    and publish.
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
    ) -> None:
        super().__init__(
            ownership,
            bank,
            rules,
            reports if reports is not None else {},
            counters if counters is not None else {},
        )
        self.next_offset = next_offset
        self.joined = joined
        # Whether the last published resources of a node exist; missing if unknown.
        self._has_resources: dict[str, bool] = {}
        self.busy = asyncio.Lock()
        self._reported: set[str] = set()
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
        await process([(self, records)])

    async def idle(self) -> None:
        """Wait until nothing is being published."""
        async with self.busy:
            pass

    def apply(
        self, records: Sequence[LogRecord]
    ) -> tuple[list[Reported], list[tuple[LogRecord, RecordError]]]:
        """Apply `records`; return reports in order, and invalid records."""
        reported, refused = apply([(self, records)])
        return reported[self], refused[self]

    def replay(self, records: Sequence[LogRecord], covers: Mapping[str, int]) -> None:
        """Apply `records` during recovery, without reports.

        `covers` has the offset up to which the checkpoint of a node covers the log: records below
        it are not even decoded. `report_replayed` creates the report of each node from its last
        window and its last due prediction.
        """
        ahead = []
        for record in records:
            try:
                self.joined = max(self.joined, sample_offset_of(record.value or b""))
            except RecordError:
                continue
            if record.offset >= covers.get((record.key or b"").decode(errors="replace"), 0):
                ahead.append(record)
        for (_, node), applied in learn_all(self.decode(ahead)[0]).items():
            if applied is not None:
                self._replayed[node] = applied.after(self._replayed.get(node)).pending()
        self.next_offset = records[-1].offset + 1

    def report_replayed(self, limit: int) -> bool:
        """Create the reports of up to `limit` replayed nodes; return whether any are left."""
        nodes = list(self._replayed)[:limit]
        report([self._replayed.pop(node) for node in nodes])
        return bool(self._replayed)

    def lose(self, node: str, windows: int) -> None:
        """Add `windows` to the lost windows of a node, also in its replayed report."""
        counters = self.counters[node]
        counters = msgspec.structs.replace(counters, lost=counters.lost + windows)
        self.counters[node] = counters
        if pending := self._replayed.get(node):
            self._replayed[node] = pending._replace(counters=counters)

    async def publish(self, reported: Iterable[Reported]) -> None:
        """Publish reports, and tombstones for departed nodes, and wait for their delivery.

        Nothing is written after the partition was revoked: tombstones of the next owner have no
        offset by which readers could see that they are newer. Results above the record limit are
        counted and dropped: they would stop this worker, and each that takes the partition over.
        """
        predictions, states, resources = [], [], []
        reported = list(reported)
        for node, newest in reported:
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
        for node, newest in reported:
            self._reported.add(node)
            if newest is not None:
                newest.pack()
            else:
                self._has_resources.pop(node, None)
                if self.reports.get(node, _MISSING) is None:
                    del self.reports[node]

    def take_reported(self) -> set[str]:
        """Return and reset the nodes whose results were published since the last call."""
        taken, self._reported = self._reported, set()
        return taken

    async def refuse(self, refused: Iterable[tuple[LogRecord, RecordError]]) -> None:
        """Write these records to the dead letters."""
        for record, error in refused:
            await refuse_record(self.output, self.rules.prefix, self._windows, record, error)

    def decode(
        self, records: Sequence[LogRecord]
    ) -> tuple[list[PartitionWindow], list[tuple[LogRecord, RecordError]]]:
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

    def forget(self, node: str) -> None:
        super().forget(node)
        self._replayed.pop(node, None)


Batch = tuple[ModelCursor, Sequence[LogRecord]]
"""Consecutive records from the position of a cursor on."""


async def process(batches: Sequence[Batch]) -> None:
    """Apply records of distinct partitions in one call, then publish the results concurrently.

    Revoked partitions are skipped.
    """
    async with AsyncExitStack() as stack:
        for cursor, _ in sorted(batches, key=lambda batch: batch[0].ownership.partition):
            await stack.enter_async_context(cursor.busy)
        owned = [(cursor, records) for cursor, records in batches if cursor.owned and records]
        reported, refused = apply(owned)
        await run_all(_publish(cursor, refused[cursor], reported[cursor]) for cursor, _ in owned)


async def _publish(
    cursor: ModelCursor,
    refused: Sequence[tuple[LogRecord, RecordError]],
    reported: Sequence[Reported],
) -> None:
    await cursor.refuse(refused)
    await cursor.publish(reported)


def learn_all(
    windows: Sequence[PartitionWindow],
) -> dict[tuple[PartitionModels, str], Applied | None]:
    """Apply windows in order; return the newest applied window of each node, None if it departed.

    Each has the newest due prediction of the node.
    """
    newest: dict[tuple[PartitionModels, str], Applied | None] = {}
    for run in segments(windows):
        if run[0].window.type == "departure":
            run[0].models.forget(run[0].node)
            newest[run[0].models, run[0].node] = None
            continue
        for applied in learn(run):
            key = applied.source.models, applied.source.node
            newest[key] = applied.after(newest.get(key))
    return newest


def apply(
    batches: Sequence[Batch],
) -> tuple[
    dict[PartitionModels, list[Reported]],
    dict[PartitionModels, list[tuple[LogRecord, RecordError]]],
]:
    """Apply records of distinct partitions; return reports in order, and invalid records."""
    windows: list[PartitionWindow] = []
    reported: dict[PartitionModels, list[Reported]] = defaultdict(list)
    refused: dict[PartitionModels, list[tuple[LogRecord, RecordError]]] = {}
    for cursor, records in batches:
        decoded, refused[cursor] = cursor.decode(records)
        cursor.joined = max([cursor.joined, *(source.window.sample_offset for source in decoded)])
        windows += decoded
    newest = learn_all(windows)
    reports = iter(report_applied([applied for applied in newest.values() if applied is not None]))
    for (models, node), applied in newest.items():
        reported[models].append((node, None if applied is None else next(reports)))
    for cursor, records in batches:
        cursor.next_offset = records[-1].offset + 1
    return reported, refused


def _fits(topic: str, record: Keyed) -> bool:
    size = len(record.value or b"")
    if size <= LARGEST_VALUE_BYTES:
        return True
    OVERSIZED.labels(topic).inc()
    log.error("result exceeds the record limit, not publishing it", topic=topic,
              key=record.key.decode(), bytes=size)  # fmt: skip
    return False
