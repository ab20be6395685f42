"""The model agent: the log of record in; predictions and node state out.

A node state follows from every applied window, a prediction where one is due (`reporting`).
All that it publishes is a function of `springtide.windows` up to an offset. Models and position
move together, without an await in between, so that a checkpoint taken at any moment is exact; what
follows from a batch is published afterwards, and again by recovery if that did not happen.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.agents.join import refuse
from pipeline.agents.log import LogRecord
from pipeline.agents.output import LARGEST_VALUE_BYTES, Keyed, Output
from pipeline.agents.profile import Profile, amounts_of, names_of
from pipeline.agents.shard import Ownership
from pipeline.errors import KeyMismatchError, RecordError
from pipeline.logs import get_logger
from pipeline.metrics import counter, gauge
from pipeline.processors.bank import Bank
from pipeline.processors.columns import node_windows, window_usages
from pipeline.processors.peaks import Headline, NodePeaks
from pipeline.processors.report import node_state_record, prediction_record
from pipeline.processors.window import Outcome, rounds
from pipeline.topics.codec import encode_json
from pipeline.topics.node_state import Counters
from pipeline.topics.registry import NODE_STATE, PREDICTIONS, WINDOWS
from pipeline.topics.windows import Window, decode_window, sample_offset_of

log = get_logger(__name__)

_ZSTD = pa.Codec("zstd", compression_level=1)

WINDOWS_SEEN = counter("worker_windows", "Windows by what became of them.", ["status"])
LAST_END = gauge(
    "worker_last_window_end_timestamp_seconds", "Latest window applied.", ["partition"]
)
OVERSIZED = counter(
    "worker_oversized_results", "Results that are more than a record takes.", ["topic"]
)

GENERATION = 1
"""Of the windows topic. A topic made anew (other partitions) gets the next one."""


@dataclass(frozen=True, slots=True)
class ModelRules:
    """What the model agent needs of the settings."""

    prefix: str
    statistic: str
    memory_policy: str
    node_metrics: bool = True


class Report:
    """What follows from a window, as it is written; without a prediction the last one stands.

    The prediction lies here packed: a worker keeps that of every node, 20 KiB where there are a
    hundred pods.
    """

    __slots__ = ("_packed", "_size", "node_state")

    def __init__(self, prediction: bytes | None, node_state: bytes) -> None:
        self._size = 0 if prediction is None else len(prediction)
        self._packed = None if prediction is None else _ZSTD.compress(prediction, asbytes=True)
        self.node_state = node_state

    @property
    def prediction(self) -> bytes | None:
        """As it was given."""
        if self._packed is None:
            return None
        unpacked: bytes = _ZSTD.decompress(self._packed, decompressed_size=self._size, asbytes=True)
        return unpacked

    def with_state(self, node_state: bytes) -> "Report":
        """The same prediction beside a newer state."""
        newer = copy(self)
        newer.node_state = node_state
        return newer


class _Applied(NamedTuple):
    """A window that was applied, where it lies, the node's counters and peaks as of then, and the
    prediction to be published, if one is due."""

    offset: int
    window: Window
    counters: Counters
    peaks: Headline
    prediction: bytes | None


_LIVES = Report(None, b"")


class ModelCursor:
    """The models of one partition and their position in its `windows`.

    `joined` is the highest sample offset met below `next_offset`. `reports` maps a node to its
    newest prediction and state, None from its departure until the tombstones are delivered.
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
        reports: dict[str, Report | None] | None = None,
        counters: dict[str, Counters] | None = None,
    ) -> None:
        self.ownership = ownership
        self.next_offset = next_offset
        self.joined = joined
        self.bank = bank
        self.reports = reports if reports is not None else {}
        self.counters = counters if counters is not None else {}
        self._output = output
        self._rules = rules
        self._windows = WINDOWS.full_name(rules.prefix)
        self._busy = asyncio.Lock()
        self._replayed: dict[str, _Applied] = {}
        self._amounts: dict[str, npt.NDArray[np.float64]] = {}

    @property
    def owned(self) -> bool:
        return self.ownership.owned

    @property
    def profile(self) -> Profile:
        """What can be reclaimed by each predictor, of nodes with a window since the loading.

        A copy: other threads may ask.
        """
        return Profile(names_of(self.bank.predictors), self._amounts.copy())

    async def process(self, records: Sequence[LogRecord]) -> None:
        """Apply records, then publish what follows from each applied window."""
        async with self._busy:
            if not self.owned:
                return
            reported, refused = self.apply(records)
            for record, error in refused:
                await refuse(self._output, self._rules.prefix, self._windows, record, error)
            await self.publish(reported)

    async def idle(self) -> None:
        """Return when nothing is being published any more."""
        async with self._busy:
            pass

    def apply(
        self, records: Sequence[LogRecord]
    ) -> tuple[list[tuple[str, Report | None]], list[tuple[LogRecord, RecordError]]]:
        """Bring models and position behind `records`; gives reports in order, and what is bad."""
        windows, refused = self._decode(records)
        self.joined = max([self.joined, *(window.sample_offset for _, window in windows)])
        reported: list[tuple[str, Report | None]] = []
        for segment in _segments(windows):
            first = segment[0][1]
            if first.type == "departure":
                reported.append((first.header.node, None))
                self._forget(first.header.node)
            else:
                for round_ in _rounds(segment):
                    reported += self._reports(self._learn(round_))
        self.next_offset = records[-1].offset + 1
        return reported, refused

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
        for segment in _segments(self._decode(wanted)[0]):
            first = segment[0][1]
            if first.type == "departure":
                self._forget(first.header.node)
                continue
            for round_ in _rounds(segment):
                for applied in self._learn(round_):
                    node = applied.window.header.node
                    if applied.prediction is None and (before := self._replayed.get(node)):
                        applied = applied._replace(prediction=before.prediction)
                    self._replayed[node] = applied
        self.next_offset = records[-1].offset + 1

    def report_replayed(self, limit: int) -> bool:
        """Report at most `limit` nodes as of their last replayed window; whether any are left."""
        nodes = list(self._replayed)[:limit]
        self._reports([self._replayed.pop(node) for node in nodes])
        return bool(self._replayed)

    async def publish(self, reported: Iterable[tuple[str, Report | None]]) -> None:
        """Write reports, tombstones for departed nodes, and await their delivery.

        Nothing is written once the partition is lost: a tombstone of the next owner has no offset
        by which readers could tell that it is newer. What no record takes is counted and left out:
        the worker would end of it, and so would each that takes the partition over.
        """
        predictions, states = [], []
        reported = list(reported)
        for node, report in reported:
            key, prediction = node.encode(), report.prediction if report else None
            if report is None or prediction is not None:
                predictions.append(Keyed(key, prediction))
            states.append(Keyed(key, report.node_state if report else None))
        prefix, partition = self._rules.prefix, self.ownership.partition
        for topic, records in ((PREDICTIONS, predictions), (NODE_STATE, states)):
            fitting = [record for record in records if _fits(topic.name, record)]
            if fitting and self.owned:
                await self._output.append(topic.full_name(prefix), partition, fitting)
        for node, _ in reported:
            if self.reports.get(node, _LIVES) is None:
                del self.reports[node]

    def _decode(
        self, records: Sequence[LogRecord]
    ) -> tuple[list[tuple[int, Window]], list[tuple[LogRecord, RecordError]]]:
        windows: list[tuple[int, Window]] = []
        refused: list[tuple[LogRecord, RecordError]] = []
        for record in records:
            try:
                window = decode_window(record.value or b"")
                if record.key != window.header.node.encode():
                    raise KeyMismatchError(f"window of {window.header.node!r} has another key")
            except RecordError as error:
                refused.append((record, error.at(self._windows, record.partition, record.offset)))
            else:
                windows.append((record.offset, window))
        return windows, refused

    def _learn(self, windows: Sequence[tuple[int, Window]]) -> list[_Applied]:
        rules = self._rules
        outcomes = self.bank.apply(
            node_windows([window for _, window in windows], rules.statistic, rules.memory_policy)
        )
        for status, seen in Counter(outcome.status for outcome in outcomes).items():
            WINDOWS_SEEN.labels(status).inc(seen)
        applied = []
        for (offset, window), outcome in zip(windows, outcomes, strict=True):
            self._count(window, outcome)
            if outcome.status == "applied":
                applied.append((offset, window))
        if not applied:
            return []
        latest = max(window.header.window_end_ms for _, window in applied)
        LAST_END.labels(str(self.ownership.partition)).set(latest / 1000)
        peaks = self.bank.peaks([window.header.node for _, window in applied])
        if rules.node_metrics:
            self._amounts |= amounts_of(peaks)
        due = np.flatnonzero(self.bank.due(peaks)).tolist()
        predictions = {i: self._prediction(*applied[i], peaks[i]) for i in due}
        return [
            _Applied(
                offset, window, self.counters[window.header.node], headline, predictions.get(i)
            )
            for i, ((offset, window), headline) in enumerate(
                zip(applied, peaks.headlines(), strict=True)
            )
        ]

    def _prediction(self, offset: int, window: Window, peaks: NodePeaks) -> bytes:
        epoch = self.ownership.epoch
        return encode_json(
            prediction_record(window, peaks, generation=GENERATION, offset=offset, epoch=epoch)
        )

    def _reports(self, applied: Sequence[_Applied]) -> list[tuple[str, Report | None]]:
        """What follows from these windows; `reports` has it with the prediction that stands."""
        position = {"generation": GENERATION, "epoch": self.ownership.epoch}
        usages = window_usages([a.window for a in applied], self._rules.memory_policy)
        recent = self.bank.recent_usage([a.window.header.node for a in applied])
        reports: list[tuple[str, Report | None]] = []
        for (offset, window, counters, peaks, prediction), used, lately in zip(
            applied, usages, recent, strict=True
        ):
            node = window.header.node
            state = encode_json(
                node_state_record(window, peaks, lately, counters, used, offset=offset, **position)
            )
            report = Report(prediction, state)
            reports.append((node, report))
            standing = self.reports.get(node) if prediction is None else None
            self.reports[node] = standing.with_state(state) if standing else report
        return reports

    def _count(self, window: Window, outcome: Outcome) -> None:
        old = self.counters.get(window.header.node, Counters())
        applied = outcome.status == "applied"
        self.counters[window.header.node] = msgspec.structs.replace(
            old,
            applied=old.applied + applied,
            duplicate=old.duplicate + (outcome.status == "duplicate"),
            late=old.late + (outcome.status == "late"),
            second_exporter=old.second_exporter + (outcome.status == "second_exporter"),
            gaps=old.gaps + outcome.gap,
            untrained=old.untrained + (applied and not outcome.trained),
            bad_values=old.bad_values + sum(window.bad_values.values()),
        )

    def _forget(self, node: str) -> None:
        self.bank.forget(node)
        self.counters.pop(node, None)
        self._replayed.pop(node, None)
        self._amounts.pop(node, None)
        self.reports[node] = None


def _fits(topic: str, record: Keyed) -> bool:
    size = len(record.value or b"")
    if size <= LARGEST_VALUE_BYTES:
        return True
    OVERSIZED.labels(topic).inc()
    log.error("result is larger than a record may be", topic=topic, key=record.key.decode(),
              bytes=size)  # fmt: skip
    return False


def _segments(windows: Sequence[tuple[int, Window]]) -> list[list[tuple[int, Window]]]:
    """Runs of windows, and each departure by itself, in order."""
    segments: list[list[tuple[int, Window]]] = []
    for item in windows:
        departs = item[1].type == "departure"
        if departs or not segments or segments[-1][0][1].type == "departure":
            segments.append([])
        segments[-1].append(item)
    return segments


def _rounds(windows: Sequence[tuple[int, Window]]) -> list[list[tuple[int, Window]]]:
    """Groups in which no node occurs twice, so that each window has its own report."""
    groups = rounds(window.header.node for _, window in windows)
    return [[windows[position] for position in group] for group in groups]
