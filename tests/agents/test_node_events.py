"""Metrics of judged peaks: rates, severity and savings by pool and predictor."""

import msgspec

from pipeline.agents import node_events
from pipeline.topics.accuracy import AccuracyRecord
from tests.metric_values import sum_of
from tests.processors.accuracy.test_judged_peaks import record

METRICS = {
    "judged": node_events.JUDGED_PEAKS,
    "unjudged": node_events.UNJUDGED_PEAKS,
    "violations": node_events.VIOLATIONS,
    "severity": node_events.SEVERITY,
    "savings": node_events.SAVINGS,
}


def counted(pool: str, *records: AccuracyRecord) -> dict[str, float]:
    """What the metrics of CPU of a pool count for these peaks."""
    for each in records:
        node_events.count(msgspec.structs.replace(each, pool=pool))
    labels = {"predictor": "percentile", "resource": "cpu", "pool": pool}
    return {name: round(sum_of(metric, **labels), 9) for name, metric in METRICS.items()}


def test_peaks_are_counted_by_pool() -> None:
    violated, held = record((400.0, 0.0), (500.0, 0.0)), record((600.0, 0.0), (9.0, 0.0))
    assert counted("first", violated, held) == {
        "judged": 2.0, "unjudged": 0.0, "violations": 1.0, "severity": 0.2, "savings": 1.0
    }  # fmt: skip
    assert counted("second", record((600.0, 0.0), (9.0, 0.0)))["judged"] == 1.0


def test_peak_that_is_not_judged_is_no_peak_that_held() -> None:
    """Nor is one without requests counted at all: there is nothing to judge."""
    unknown = record((400.0, 0.0), (500.0, 0.0), known=(0.5, 1.0))
    without_requests = record((0.0, 0.0), (500.0, 0.0), (0.0, 0.0))
    assert counted("third", unknown, without_requests) == {
        "judged": 0.0, "unjudged": 1.0, "violations": 0.0, "severity": 0.0, "savings": 0.0
    }  # fmt: skip
