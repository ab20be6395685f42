"""Apply windows of several partitions to their models in one call, and encode the results.

To *apply* a window is to count it and, if it is new, to let its node's models learn it. A *report*
has the encoded results of a node after a window; the model agent publishes it. A report is a
function of its partition's log up to the window, whatever other windows share the call. Windows of
all partitions share calls because a call for a few nodes costs little more than one for a single
node. Nothing here awaits, so models and counters never disagree about which windows were applied.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from pipeline.agents.koordlet_metrics import prod_amounts
from pipeline.agents.partition_models import NodeReport, PartitionModels, PartitionWindow
from pipeline.metrics import counter, gauge
from pipeline.processors.accuracy.judged_peaks import judge
from pipeline.processors.hot_nodes.detection import Applied as AppliedWindows
from pipeline.processors.hot_nodes.detection import detect, end_alerts
from pipeline.processors.model import bank
from pipeline.processors.model.bank import NodeInBank, Outcome, split_into_rounds
from pipeline.processors.model.node_peaks import PeakBatch, PeakSummary
from pipeline.processors.model.result_records import encode_node_states, encode_prediction
from pipeline.processors.model.window_batch import WindowBatch
from pipeline.processors.overcommit.node_offers import offers, records
from pipeline.processors.overcommit.window_columns import Prod
from pipeline.times import format_time
from pipeline.topics.alerts import OpenAlert
from pipeline.topics.codec import encode_json
from pipeline.topics.node_state import Counters, Dispute

WINDOWS_SEEN = counter("worker_windows", "Windows by outcome.", ["status"])
OLD_DEPARTURES = counter(
    "worker_old_departures", "Departures ignored because a later window of the node was applied."
)
LAST_END = gauge(
    "worker_last_window_end_timestamp_seconds", "Latest window applied.", ["partition"]
)


class DuePrediction(NamedTuple):
    """A prediction to publish: the peaks of a node after the window `source`, `peaks[position]`.

    It is encoded late, because a newer prediction of the node often replaces it first.
    """

    source: PartitionWindow
    peaks: PeakBatch
    position: int

    def encode(self) -> bytes:
        peaks = self.peaks[self.position]
        return encode_prediction(self.source.window, peaks, _log_position(self.source))


class PendingReport(NamedTuple):
    """An applied window to be reported, with the node's counters, dispute, open alerts, compared
    usage in percent by rule and peaks as of then, and the newest prediction to be published with
    it."""

    source: PartitionWindow
    counters: Counters
    dispute: Dispute | None
    alerts: tuple[OpenAlert, ...]
    compared_percent: Mapping[str, float]
    summary: PeakSummary
    prediction: bytes | None


class Applied(NamedTuple):
    """A window of `batch` that was applied, with the node's counters, dispute, open alerts,
    compared usage in percent by rule and peaks as of then, `peaks[position]`, and the newest
    prediction to be published with it."""

    source: PartitionWindow
    batch: WindowBatch
    counters: Counters
    dispute: Dispute | None
    alerts: tuple[OpenAlert, ...]
    compared_percent: Mapping[str, float]
    peaks: PeakBatch
    position: int
    prediction: DuePrediction | bytes | None

    def after(self, before: "Applied | PendingReport | None") -> "Applied":
        """This window, with the prediction of an earlier window of the node if it has none."""
        if before is None or self.prediction is not None:
            return self
        return self._replace(prediction=before.prediction)

    def pending(self) -> PendingReport:
        """The report without references to other nodes: `peaks` would keep theirs in memory."""
        summary, prediction = self.peaks.summaries[self.position], self.prediction
        if isinstance(prediction, DuePrediction):
            prediction = prediction.encode()
        return PendingReport(
            self.source, self.counters, self.dispute, self.alerts, self.compared_percent, summary,
            prediction,
        )  # fmt: skip


def apply_in_order(
    windows: Sequence[PartitionWindow],
) -> dict[tuple[PartitionModels, str], Applied | None]:
    """Apply windows in order; return the newest applied window of each node.

    Each has the newest prediction to be published of its node. A deleted node has None. A
    retraction or departure older than the last applied window of its node is ignored.
    """
    newest: dict[tuple[PartitionModels, str], Applied | None] = {}
    for run in segments(windows):
        if run[0].window.type != "window":
            if apply_end(run[0]):
                newest[run[0].models, run[0].node] = None
            continue
        for applied in apply_distinct(run):
            key = applied.source.models, applied.source.node
            newest[key] = applied.after(newest.get(key))
    return newest


def apply_end(source: PartitionWindow) -> bool:
    """Apply a retraction or departure; False if a later window of its node was applied before."""
    models, node, end = source.models, source.node, source.window
    # A worker that was paused writes what it knew of the node back then.
    if models.bank.has_window_since(node, end.appended_ms):
        OLD_DEPARTURES.inc()
        return False
    models.add_events(node, end_alerts((models.bank, node), _log_position(source)))
    if end.type == "retraction":
        models.retract(node, end.appended_ms)
    else:
        _judge_unfinished(source)
        models.forget(node)
    return True


def segments(windows: Sequence[PartitionWindow]) -> list[list[PartitionWindow]]:
    """Split windows into runs without a node twice, and single ends of nodes, in order.

    The windows of a node must be applied one after the other; those of distinct nodes share a call.
    """
    segments: list[list[PartitionWindow]] = []
    runs: list[list[PartitionWindow]] = [[]]
    for source in windows:
        if source.window.type != "window":
            runs += [[source], []]
        else:
            runs[-1].append(source)
    for run in runs:
        groups = split_into_rounds(source.node for source in run)
        segments += [[run[position] for position in group] for group in groups]
    return segments


def apply_distinct(windows: Sequence[PartitionWindow]) -> list[Applied]:
    """Apply windows of distinct nodes; return those that were new, in order."""
    rules = windows[0].models.rules
    batch = WindowBatch([source.window for source in windows])
    training = batch.training(rules.statistic)
    outcomes = bank.apply([source.models.bank for source in windows], training)
    for status, seen in Counter(outcome.status for outcome in outcomes).items():
        WINDOWS_SEEN.labels(status).inc(seen)
    applied = []
    for position, (source, outcome) in enumerate(zip(windows, outcomes, strict=True)):
        _count(source, outcome)
        if outcome.status == "applied":
            source.models.retracted.pop(source.node, None)
            applied.append(position)
        else:
            source.models.bank.corroborate(training.heads[position], batch.average.node[position])
    return _with_peaks(windows, batch, outcomes, applied) if applied else []


def _with_peaks(
    sources: Sequence[PartitionWindow],
    batch: WindowBatch,
    outcomes: Sequence[Outcome],
    places: Sequence[int],
) -> list[Applied]:
    """Compute peaks and events after the windows at these places of `batch`, which were applied."""
    windows = [sources[place] for place in places]
    latest: dict[int, int] = {}
    for source in windows:
        partition, end_ms = source.models.ownership.partition, source.window.header.window_end_ms
        latest[partition] = max(latest.get(partition, end_ms), end_ms)
    for partition, end_ms in latest.items():
        LAST_END.labels(str(partition)).set(end_ms / 1000)
    nodes = [(source.models.bank, source.node) for source in windows]
    peaks = bank.peaks(nodes)
    if windows[0].models.rules.node_metrics:
        for source, amounts in zip(windows, prod_amounts(peaks).items(), strict=True):
            source.models.amounts.update([amounts])
    due = bank.due(nodes, peaks).tolist()
    applied_windows = AppliedWindows(
        nodes, batch, np.array(places), [outcomes[place] for place in places], peaks,
        lambda i: _log_position(windows[i]),
    )  # fmt: skip
    detection = detect(applied_windows)
    for i, change in detection.changes:
        windows[i].models.add_events(windows[i].node, [change])
    _judge_peaks(windows, nodes, peaks)
    return [
        Applied(
            source,
            batch,
            source.models.counters[source.node],
            source.models.bank.dispute(source.node),
            detection.open_alerts[position],
            detection.compared_percent[position],
            peaks,
            position,
            DuePrediction(source, peaks, position) if due[position] else None,
        )
        for position, source in enumerate(windows)
    ]


def _judge_peaks(
    windows: Sequence[PartitionWindow], nodes: Sequence[NodeInBank], peaks: PeakBatch
) -> None:
    """Add the records of peaks whose horizon is over to the events of their nodes."""
    for i, ended in bank.ended_peaks(nodes, peaks):
        source = windows[i]
        hot_nodes = source.window.node.hot_nodes
        record = judge(
            ended,
            node=source.node,
            pool=hot_nodes.pool if hot_nodes else "",
            decides=peaks.decides[i],
            horizon_seconds=bank.horizon_seconds(nodes[i]),
            end_ms=source.window.header.window_end_ms,
            position=_log_position(source),
        )
        source.models.add_events(source.node, [record])


def _judge_unfinished(departure: PartitionWindow) -> None:
    """Add the records of the peaks that a departed node leaves behind, as of its last window. Its
    usage after that is unknown: they are judged only if nearly all of their horizon was over."""
    models, node = departure.models, departure.node
    unfinished = models.bank.unfinished_peaks(node)
    if not unfinished:
        return
    (last,) = models.bank.peaks([node])
    records = [
        judge(
            peak,
            node=node,
            pool="",
            decides=last.decides,
            horizon_seconds=bank.horizon_seconds((models.bank, node)),
            end_ms=last.end_ms,
            position=_log_position(departure),
        )
        for peak in unfinished
    ]
    models.add_events(node, records)


def encode_applied(applied: Sequence[Applied]) -> list[NodeReport]:
    """`encode_reports` of windows that were just applied.

    If they are all windows of one batch, its columns are used again.
    """
    pending = [window.pending() for window in applied]
    if applied and len(batch := applied[0].batch) == len(applied):
        pairs = zip(applied, batch.windows, strict=True)
        if all(window.source.window is read for window, read in pairs):
            return encode_reports(pending, batch)
    return encode_reports(pending)


def encode_reports(
    pending: Sequence[PendingReport], batch: WindowBatch | None = None
) -> list[NodeReport]:
    """Encode the reports of these windows, the last of their nodes.

    They also become the newest `reports` of their partitions, there with the previous prediction
    if they have none: after a failure all results of a node are published again. `batch` are the
    columns of these windows if they were read before.
    """
    if not pending:
        return []
    sources = [last.source for last in pending]
    if batch is None:
        batch = WindowBatch([source.window for source in sources])
    states = encode_node_states(
        batch,
        [last.summary for last in pending],
        bank.recent_usage([(source.models.bank, source.node) for source in sources]),
        [last.counters for last in pending],
        [last.dispute for last in pending],
        [last.alerts for last in pending],
        [last.compared_percent for last in pending],
        [_log_position(source) for source in sources],
    )
    reports: list[NodeReport] = []
    for last, state, resources in zip(pending, states, _resources(pending, batch), strict=True):
        latest, node = last.source.models.reports, last.source.node
        new = NodeReport(last.prediction, state, resources)
        previous = latest.get(node) if last.prediction is None else None
        latest[node] = previous.with_newer(state, resources) if previous else new
        reports.append(new)
    return reports


def _resources(pending: Sequence[PendingReport], batch: WindowBatch) -> list[bytes | None]:
    """Encode Mid and Batch of each node; None for a node without an overcommit policy."""
    encoded: list[bytes | None] = [None] * len(pending)
    positions = [i for i, window in enumerate(batch.windows) if window.node.overcommit is not None]
    if positions:
        batch, pending = batch.select(positions), [pending[i] for i in positions]
        summaries = [last.summary for last in pending]
        resource_records = records(
            batch,
            offers(batch, *_prods(summaries)),
            [summary.decides for summary in summaries],
            [_log_position(last.source) for last in pending],
        )
        for i, record in zip(positions, resource_records, strict=True):
            encoded[i] = encode_json(record)
    return encoded


def _prods(summaries: Sequence[PeakSummary]) -> tuple[Prod, list[Prod]]:
    """Prod by the deciding predictor of each node, and by each predictor that does not decide for
    all nodes."""
    amounts = np.array([summary.prod_amounts for summary in summaries])
    peaks = np.array([summary.prod_peaks for summary in summaries])
    decides = [summary.deciding for summary in summaries]
    nodes = np.arange(len(summaries))
    decided = Prod(amounts[nodes, decides], peaks[nodes, decides])
    others = [i for i in range(amounts.shape[1]) if set(decides) != {i}]
    return decided, [Prod(amounts[:, i], peaks[:, i]) for i in others]


def _log_position(source: PartitionWindow) -> dict[str, int]:
    models = source.models
    epoch = models.ownership.epoch
    return {"generation": models.generation, "offset": source.offset, "epoch": epoch}


def _count(source: PartitionWindow, outcome: Outcome) -> None:
    counters = source.models.counters
    old = counters.get(source.node, Counters())
    applied = outcome.status == "applied"
    bad_values = sum(source.window.bad_values.values())
    counters[source.node] = msgspec.structs.replace(
        old,
        applied=old.applied + applied,
        duplicate=old.duplicate + (outcome.status == "duplicate"),
        late=old.late + (outcome.status == "late"),
        second_exporter=old.second_exporter + (outcome.status == "second_exporter"),
        gaps=old.gaps + outcome.gap,
        untrained=old.untrained + (applied and not outcome.trained),
        bad_values=old.bad_values + bad_values,
        last_gap_at=_end(source) if outcome.gap else old.last_gap_at,
        last_bad_value_at=_end(source) if applied and bad_values else old.last_bad_value_at,
    )


def _end(source: PartitionWindow) -> str:
    return format_time(source.window.header.window_end_ms / 1000)
