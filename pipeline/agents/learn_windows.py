"""What windows teach the models, and what is told of it: in one call for several partitions.

Owes the rest: what follows from a window is a function of the log of its partition up to it, with
whatever other windows it shares a call. For a few nodes at once models take little more than for
one, so a worker puts together what it has of all its partitions. Nothing here awaits.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from pipeline.agents.koordlet_metrics import prod_amounts
from pipeline.agents.partition_models import NodeReport, PartitionWindow
from pipeline.metrics import counter, gauge
from pipeline.processors.join.window_batch import WindowBatch
from pipeline.processors.model import bank
from pipeline.processors.model.model_config import Outcome, rounds
from pipeline.processors.model.peaks import AllPeaks, Headline
from pipeline.processors.model.result_records import encode_node_states, encode_prediction
from pipeline.processors.overcommit.node_offers import offers, records
from pipeline.processors.overcommit.window_columns import Prod
from pipeline.times import format_time
from pipeline.topics.codec import encode_json
from pipeline.topics.node_state import Counters

WINDOWS_SEEN = counter("worker_windows", "Windows by what became of them.", ["status"])
LAST_END = gauge(
    "worker_last_window_end_timestamp_seconds", "Latest window applied.", ["partition"]
)

GENERATION = 1
"""Of the windows topic. A topic made anew (other partitions) gets the next one."""


class DuePrediction(NamedTuple):
    """A prediction that is to be published: the peaks of a node after this window, as `at` of
    `peaks` has them."""

    source: PartitionWindow
    peaks: AllPeaks
    at: int


class PendingReport(NamedTuple):
    """An applied window and what is to be said of it: the node's counters and peaks as of then, and
    the newest prediction to be published with it, or none."""

    source: PartitionWindow
    counters: Counters
    headline: Headline
    prediction: bytes | None


class Applied(NamedTuple):
    """A window of `batch` that was applied, the node's counters as of then and its peaks, which
    `at` of `peaks` has, and the newest prediction to be published with it: as peaks, as bytes, or
    none."""

    source: PartitionWindow
    batch: WindowBatch
    counters: Counters
    peaks: AllPeaks
    at: int
    due: DuePrediction | None = None
    prediction: bytes | None = None

    def after(self, before: "Applied | PendingReport | None") -> "Applied":
        """This, with the prediction of an earlier window of the node if it has none."""
        if before is None or self.due or self.prediction:
            return self
        due = before.due if isinstance(before, Applied) else None
        return self._replace(due=due, prediction=before.prediction)

    def pending(self) -> PendingReport:
        """What is to be said, on its own: peaks hold on to those of other nodes."""
        headline, prediction = self.peaks.headline(self.at), self.prediction
        if self.due is not None:
            source, peaks, at = self.due
            prediction = encode_prediction(source.window, peaks[at], _position(source))
        return PendingReport(self.source, self.counters, headline, prediction)


def segments(windows: Sequence[PartitionWindow]) -> list[list[PartitionWindow]]:
    """Runs of windows, and each departure by itself, in order; in a run no node occurs twice."""
    found: list[list[PartitionWindow]] = []
    runs: list[list[PartitionWindow]] = [[]]
    for placed in windows:
        if placed.window.type == "departure":
            runs += [[placed], []]
        else:
            runs[-1].append(placed)
    for run in runs:
        groups = rounds(placed.node for placed in run)
        found += [[run[position] for position in group] for group in groups]
    return found


def learn(windows: Sequence[PartitionWindow]) -> list[Applied]:
    """Apply windows of distinct nodes; what was applied, in order."""
    rules = windows[0].models.rules
    batch = WindowBatch([placed.window for placed in windows], rules.memory_policy)
    outcomes = bank.apply(
        [placed.models.bank for placed in windows], batch.training(rules.statistic)
    )
    for status, seen in Counter(outcome.status for outcome in outcomes).items():
        WINDOWS_SEEN.labels(status).inc(seen)
    applied = []
    for placed, outcome in zip(windows, outcomes, strict=True):
        _count(placed, outcome)
        if outcome.status == "applied":
            applied.append(placed)
    return _told(applied, batch) if applied else []


def _told(windows: Sequence[PartitionWindow], batch: WindowBatch) -> list[Applied]:
    """What the models say after `windows`, which were applied."""
    latest: dict[int, int] = {}
    for cursor, _, window in windows:
        partition, end_ms = cursor.ownership.partition, window.header.window_end_ms
        latest[partition] = max(latest.get(partition, end_ms), end_ms)
    for partition, end_ms in latest.items():
        LAST_END.labels(str(partition)).set(end_ms / 1000)
    nodes = [(placed.models.bank, placed.node) for placed in windows]
    peaks = bank.peaks(nodes)
    if windows[0].models.rules.node_metrics:
        for placed, amounts in zip(windows, prod_amounts(peaks).items(), strict=True):
            placed.models.amounts.update([amounts])
    due = bank.due(nodes, peaks).tolist()
    return [
        Applied(
            placed,
            batch,
            placed.models.counters[placed.node],
            peaks,
            at,
            DuePrediction(placed, peaks, at) if due[at] else None,
        )
        for at, placed in enumerate(windows)
    ]


def report_applied(applied: Sequence[Applied]) -> list[NodeReport]:
    """`report` of windows that were just applied, whose columns are read already if these are all
    windows of one batch."""
    pending = [window.pending() for window in applied]
    if applied and len(batch := applied[0].batch) == len(applied):
        pairs = zip(applied, batch.windows, strict=True)
        if all(window.source.window is read for window, read in pairs):
            return report(pending, batch)
    return report(pending)


def report(pending: Sequence[PendingReport], batch: WindowBatch | None = None) -> list[NodeReport]:
    """What is published of these windows, the last of their nodes, and put it into `reports` of
    their partitions, with the standing prediction where there is no new one. `batch` are the
    columns of these windows, if they were read before."""
    if not pending:
        return []
    sources = [last.source for last in pending]
    if batch is None:
        policy = sources[0].models.rules.memory_policy
        batch = WindowBatch([source.window for source in sources], policy)
    states = encode_node_states(
        batch,
        [last.headline for last in pending],
        bank.recent_usage([(source.models.bank, source.node) for source in sources]),
        [last.counters for last in pending],
        [_position(source) for source in sources],
    )
    reports: list[NodeReport] = []
    for last, state, resources in zip(pending, states, _resources(pending, batch), strict=True):
        all_reports, node, prediction = (
            last.source.models.reports,
            last.source.node,
            last.prediction,
        )
        new = NodeReport(prediction, state, resources)
        standing = all_reports.get(node) if prediction is None else None
        all_reports[node] = standing.with_newer(state, resources) if standing else new
        reports.append(new)
    return reports


def _resources(pending: Sequence[PendingReport], batch: WindowBatch) -> list[bytes | None]:
    """What each of these nodes has for Mid and Batch; None where no policy turns them on."""
    encoded: list[bytes | None] = [None] * len(pending)
    positions = [i for i, window in enumerate(batch.windows) if window.node.overcommit is not None]
    if positions:
        batch, pending = batch.select(positions), [pending[i] for i in positions]
        headlines = [last.headline for last in pending]
        made = records(
            batch,
            offers(batch, *_prods(headlines)),
            [headline.decides for headline in headlines],
            [_position(last.source) for last in pending],
        )
        for i, record in zip(positions, made, strict=True):
            encoded[i] = encode_json(record)
    return encoded


def _prods(headlines: Sequence[Headline]) -> tuple[Prod, list[Prod]]:
    """What counts of what the predictors say of Prod, and what each of them says that does not
    decide for all."""
    amounts = np.array([headline.prod_amounts for headline in headlines])
    peaks = np.array([headline.prod_peaks for headline in headlines])
    decides = [headline.deciding for headline in headlines]
    nodes = np.arange(len(headlines))
    decided = Prod(amounts[nodes, decides], peaks[nodes, decides])
    others = [i for i in range(amounts.shape[1]) if set(decides) != {i}]
    return decided, [Prod(amounts[:, i], peaks[:, i]) for i in others]


def _position(source: PartitionWindow) -> dict[str, int]:
    epoch = source.models.ownership.epoch
    return {"generation": GENERATION, "offset": source.offset, "epoch": epoch}


def _count(placed: PartitionWindow, outcome: Outcome) -> None:
    counters = placed.models.counters
    old = counters.get(placed.node, Counters())
    applied = outcome.status == "applied"
    bad_values = sum(placed.window.bad_values.values())
    counters[placed.node] = msgspec.structs.replace(
        old,
        applied=old.applied + applied,
        duplicate=old.duplicate + (outcome.status == "duplicate"),
        late=old.late + (outcome.status == "late"),
        second_exporter=old.second_exporter + (outcome.status == "second_exporter"),
        gaps=old.gaps + outcome.gap,
        untrained=old.untrained + (applied and not outcome.trained),
        bad_values=old.bad_values + bad_values,
        last_gap_at=_end(placed) if outcome.gap else old.last_gap_at,
        last_bad_value_at=_end(placed) if applied and bad_values else old.last_bad_value_at,
    )


def _end(placed: PartitionWindow) -> str:
    return format_time(placed.window.header.window_end_ms / 1000)
