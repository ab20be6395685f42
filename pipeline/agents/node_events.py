"""Events of nodes: changes of alerts, and judged peaks. Unlike other results all are published,
because their topics are logs, not tables."""

from collections.abc import Iterator, Sequence
from typing import Final

from pipeline.kafka.producer import Keyed
from pipeline.metrics import counter
from pipeline.topics.accuracy import AccuracyRecord
from pipeline.topics.alerts import AlertRecord
from pipeline.topics.codec import encode_json
from pipeline.topics.registry import ACCURACY, ALERTS, Topic

NodeEvent = AlertRecord | AccuracyRecord

EVENTS_AT_ONCE: Final = 500
"""Events in one append: a backlog may have thousands."""

ALERT_CHANGES = counter(
    "worker_alert_changes",
    "Published changes of alerts of hot nodes; a recovery may publish one again.",
    ["rule", "transition"],
)
_BY_PREDICTOR = ["predictor", "resource", "pool"]
JUDGED_PEAKS = counter(
    "worker_judged_peaks",
    "Predicted peaks of Prod whose horizon is over; a recovery may judge one again.",
    _BY_PREDICTOR,
)
UNJUDGED_PEAKS = counter(
    "worker_unjudged_peaks",
    "Predicted peaks of Prod that could not be judged, because usage or the peak was unknown.",
    _BY_PREDICTOR,
)
VIOLATIONS = counter("worker_peak_violations", "Judged peaks that usage exceeded.", _BY_PREDICTOR)
SEVERITY = counter(
    "worker_peak_severity_ratio",
    "Sum over violations of the share of usage by which the peak was too low.",
    _BY_PREDICTOR,
)
SAVINGS = counter(
    "worker_peak_savings_ratio",
    "Sum over judged peaks of the share of the requests that was given away.",
    _BY_PREDICTOR,
)


def batches(
    events: Sequence[tuple[str, NodeEvent]],
) -> Iterator[tuple[Topic, Sequence[tuple[str, NodeEvent]]]]:
    """Bounded appends of these events of nodes, each to one topic, in order."""
    for topic, kind in ((ALERTS, AlertRecord), (ACCURACY, AccuracyRecord)):
        own = [(node, event) for node, event in events if isinstance(event, kind)]
        for start in range(0, len(own), EVENTS_AT_ONCE):
            yield topic, own[start : start + EVENTS_AT_ONCE]


def encode(events: Sequence[tuple[str, NodeEvent]]) -> list[Keyed]:
    """The records of these events."""
    return [Keyed(node.encode(), encode_json(event)) for node, event in events]


def count(event: NodeEvent) -> None:
    """Count a published event."""
    if isinstance(event, AlertRecord):
        ALERT_CHANGES.labels(event.rule, event.transition).inc()
        return
    for predictor, judgement in event.predictors.items():
        for resource, judged in (("cpu", judgement.cpu), ("memory", judgement.memory)):
            labels = predictor, resource, event.pool
            if judged.violated is None:
                # Without requests there is nothing to judge.
                UNJUDGED_PEAKS.labels(*labels).inc(getattr(event.requests, resource) != 0.0)
                continue
            JUDGED_PEAKS.labels(*labels).inc()
            VIOLATIONS.labels(*labels).inc(judged.violated)
            SEVERITY.labels(*labels).inc(judged.severity or 0.0)
            SAVINGS.labels(*labels).inc(judged.savings or 0.0)
