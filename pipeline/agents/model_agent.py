"""The model agent: the log of record in; predictions, resources and node state out.

A node state follows from an applied window, resources where the node takes part, and a prediction
where one is due (`reporting`). Of several windows of a node that are applied at once, while there
is a backlog, the newest of each are published: these topics are tables.
All that it publishes is a function of `springtide.windows` up to an offset. Models and position
move together, without an await in between, so that a checkpoint taken at any moment is exact; what
follows from a batch is published afterwards, and again by recovery if that did not happen.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack

import msgspec

from pipeline.agents.join_agent import refuse
from pipeline.agents.koordlet_metrics import Profile, names_of
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
from pipeline.kafka.producer import LARGEST_VALUE_BYTES, Keyed, Output
from pipeline.logs import get_logger
from pipeline.metrics import counter
from pipeline.processors.model.bank import Bank
from pipeline.tasks import run_all
from pipeline.topics.node_state import Counters
from pipeline.topics.registry import NODE_STATE, PREDICTIONS, RESOURCES, WINDOWS
from pipeline.topics.windows import decode_window, sample_offset_of

log = get_logger(__name__)

OVERSIZED = counter(
    "worker_oversized_results", "Results that are more than a record takes.", ["topic"]
)

Reported = tuple[str, NodeReport | None]
"""A node and what is to be published of it; None where it departed."""


_LIVES = NodeReport(None, b"")


class ModelCursor(PartitionModels):
    """The models of one partition and their position in its `windows`.

    `joined` is the highest sample offset met below `next_offset`. Who holds `busy` may apply and
    publish.
    """

    def __init__(
        self,
        ownership: Ownership,
        next_offset: int,
        bank: Bank,
        output: Output,
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
        # Whether resources were published of a node, or taken back; unknown after a start.
        self.offering: dict[str, bool] = {}
        self.busy = asyncio.Lock()
        self._reported: set[str] = set()
        self._output = output
        self._windows = WINDOWS.full_name(rules.prefix)
        self._replayed: dict[str, PendingReport] = {}

    @property
    def owned(self) -> bool:
        return self.ownership.owned

    @property
    def profile(self) -> Profile:
        """What each predictor says of Prod, of nodes with a window since the loading.

        A copy: other threads may ask.
        """
        return Profile(names_of(self.bank.predictors), self.amounts.copy())

    async def process(self, records: Sequence[LogRecord]) -> None:
        """Apply records, then publish what follows from each applied window."""
        await process([(self, records)])

    async def idle(self) -> None:
        """Return when nothing is being published any more."""
        async with self.busy:
            pass

    def apply(
        self, records: Sequence[LogRecord]
    ) -> tuple[list[Reported], list[tuple[LogRecord, RecordError]]]:
        """Bring models and position behind `records`; gives reports in order, and what is bad."""
        reported, refused = apply([(self, records)])
        return reported[self], refused[self]

    def replay(self, records: Sequence[LogRecord], covers: Mapping[str, int]) -> None:
        """Bring models and position behind `records` as `apply` does, without a report.

        What lies below the offset in `covers` for its node is in the node's checkpoint: it is not
        even decoded. `report_replayed` makes the report of each node: its last window and the last
        prediction that was due.
        """
        wanted = []
        for record in records:
            try:
                self.joined = max(self.joined, sample_offset_of(record.value or b""))
            except RecordError:
                continue
            if record.offset >= covers.get((record.key or b"").decode(errors="replace"), 0):
                wanted.append(record)
        for (_, node), applied in learn_all(self.decode(wanted)[0]).items():
            if applied is not None:
                self._replayed[node] = applied.after(self._replayed.get(node)).pending()
        self.next_offset = records[-1].offset + 1

    def report_replayed(self, limit: int) -> bool:
        """Report up to `limit` replayed nodes; return whether any are left."""
        nodes = list(self._replayed)[:limit]
        report([self._replayed.pop(node) for node in nodes])
        return bool(self._replayed)

    def lose(self, node: str, windows: int) -> None:
        """Count these windows as lost to the models of a node, also in what `report_replayed` is
        to say of it."""
        counters = self.counters[node]
        counters = msgspec.structs.replace(counters, lost=counters.lost + windows)
        self.counters[node] = counters
        if told := self._replayed.get(node):
            self._replayed[node] = told._replace(counters=counters)

    async def publish(self, reported: Iterable[Reported]) -> None:
        """Write reports, tombstones for departed nodes, and await their delivery.

        Nothing is written once the partition is lost: a tombstone of the next owner has no offset
        by which readers could tell that it is newer. What no record takes is counted and left out:
        the worker would end of it, and so would each that takes the partition over.
        """
        predictions, states, resources = [], [], []
        reported = list(reported)
        for node, of_node in reported:
            key, prediction = node.encode(), of_node.prediction if of_node else None
            if of_node is None or prediction is not None:
                predictions.append(Keyed(key, prediction))
            states.append(Keyed(key, of_node.node_state if of_node else None))
            offered = of_node.resources if of_node else None
            if offered is not None or self.offering.get(node, True):
                resources.append(Keyed(key, offered))
            self.offering[node] = offered is not None
        prefix, partition = self.rules.prefix, self.ownership.partition
        for topic, records in (
            (PREDICTIONS, predictions), (RESOURCES, resources), (NODE_STATE, states),
        ):  # fmt: skip
            fitting = [record for record in records if _fits(topic.name, record)]
            if fitting and self.owned:
                await self._output.append(topic.full_name(prefix), partition, fitting)
        for node, of_node in reported:
            self._reported.add(node)
            if of_node is not None:
                of_node.pack()
            else:
                self.offering.pop(node, None)
                if self.reports.get(node, _LIVES) is None:
                    del self.reports[node]

    def take_reported(self) -> set[str]:
        """Nodes of which something was published since this was asked last."""
        taken, self._reported = self._reported, set()
        return taken

    async def refuse(self, refused: Iterable[tuple[LogRecord, RecordError]]) -> None:
        """Put these records into the dead letters."""
        for record, error in refused:
            await refuse(self._output, self.rules.prefix, self._windows, record, error)

    def decode(
        self, records: Sequence[LogRecord]
    ) -> tuple[list[PartitionWindow], list[tuple[LogRecord, RecordError]]]:
        """The windows in `records`, and what is none."""
        windows: list[PartitionWindow] = []
        refused: list[tuple[LogRecord, RecordError]] = []
        for record in records:
            try:
                window = record.said
                if window is None:
                    window = decode_window(record.value or b"")
                if record.key != window.header.node.encode():
                    raise KeyMismatchError(f"window of {window.header.node!r} has another key")
            except RecordError as error:
                refused.append((record, error.at(self._windows, record.partition, record.offset)))
            else:
                windows.append(PartitionWindow(self, record.offset, window))
        return windows, refused

    def forget(self, node: str) -> None:
        super().forget(node)
        self._replayed.pop(node, None)


Batch = tuple[ModelCursor, Sequence[LogRecord]]
"""Records for one cursor, at and after its position, none left out."""


async def process(batches: Sequence[Batch]) -> None:
    """Apply records of distinct partitions in one call, then publish what follows from them, side
    by side. What was let go is left alone."""
    async with AsyncExitStack() as stack:
        for cursor, _ in sorted(batches, key=lambda batch: batch[0].ownership.partition):
            await stack.enter_async_context(cursor.busy)
        held = [(cursor, records) for cursor, records in batches if cursor.owned and records]
        reported, refused = apply(held)
        await run_all(_tell(cursor, refused[cursor], reported[cursor]) for cursor, _ in held)


async def _tell(
    cursor: ModelCursor,
    refused: Sequence[tuple[LogRecord, RecordError]],
    reported: Sequence[Reported],
) -> None:
    await cursor.refuse(refused)
    await cursor.publish(reported)


def learn_all(
    windows: Sequence[PartitionWindow],
) -> dict[tuple[PartitionModels, str], Applied | None]:
    """Apply windows in order; gives the newest of each node that was applied, with its newest
    prediction, and None where the node departed."""
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
    """Bring models and positions behind these records; gives reports in order, and what is bad."""
    windows: list[PartitionWindow] = []
    reported: dict[PartitionModels, list[Reported]] = defaultdict(list)
    refused: dict[PartitionModels, list[tuple[LogRecord, RecordError]]] = {}
    for cursor, records in batches:
        mine, refused[cursor] = cursor.decode(records)
        cursor.joined = max([cursor.joined, *(at.window.sample_offset for at in mine)])
        windows += mine
    newest = learn_all(windows)
    made = iter(report_applied([applied for applied in newest.values() if applied is not None]))
    for (models, node), applied in newest.items():
        reported[models].append((node, None if applied is None else next(made)))
    for cursor, records in batches:
        cursor.next_offset = records[-1].offset + 1
    return reported, refused


def _fits(topic: str, record: Keyed) -> bool:
    size = len(record.value or b"")
    if size <= LARGEST_VALUE_BYTES:
        return True
    OVERSIZED.labels(topic).inc()
    log.error("result is larger than a record may be", topic=topic, key=record.key.decode(),
              bytes=size)  # fmt: skip
    return False
