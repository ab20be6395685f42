"""Anomalies of usage and invalid thresholds per node."""

from typing import Any

import numpy as np
import pytest

from pipeline.clock import ManualClock
from pipeline.errors import InvalidRecordError
from pipeline.processors.loadaware.node_thresholds import ANNOTATION
from pipeline.processors.model.usage_anomalies import ANOMALIES
from pipeline.table import FeedState, Table
from pipeline.table.data_outages import DataOutages
from pipeline.table.node_anomalies import anomalies_by_row, invalid_thresholds
from pipeline.table.node_columns import TableNode
from pipeline.table.node_documents import node_facts, node_list, node_state_document
from pipeline.table.table_metrics import TableMetrics
from pipeline.times import format_time
from pipeline.topics.node_state import Counters, Dispute, UsageDeviation
from pipeline.topics.pods import CountedPod
from pipeline.topics.resource_amounts import Resources, Usage
from tests.table.records import GIB, NOW, ROOM, any_pod, node_state, running, table_of

FOUR: Usage = Usage(cpu_cores=4.0, memory_bytes=16 * GIB)
STILL = {
    "15m": UsageDeviation(
        mean=Usage(cpu_cores=1.0, memory_bytes=4 * GIB),
        stdev=Usage(cpu_cores=0.0, memory_bytes=0.0),
    )
}


def odd_nodes() -> Table:
    """A node with each anomaly, named by it, and two nodes without any."""
    lately, before = format_time(NOW - 900), format_time(NOW - 920)
    states: dict[str, dict[str, Any]] = {
        "stale": {"age": 500.0}, "missing": {"cpu": None}, "beyond": {"cpu": 4.5},
        "frozen": {"deviation": STILL}, "spike": {"cpu": 3.0, "deviation": STILL},
        "gaps": {"counters": Counters(gaps=7, last_gap_at=lately)},
        "impossible": {"counters": Counters(bad_values=1, last_bad_value_at=lately)},
        "disputed": {"dispute": Dispute(source="prometheus")},
        "good": {"counters": Counters(gaps=9, last_gap_at=before, last_bad_value_at=before)},
        "of a worker of before": {"counters": Counters(gaps=9, bad_values=9)},
    }  # fmt: skip
    return table_of(*(node_state(name, capacity=FOUR, **more) for name, more in states.items()))


FOUND: dict[str, list[str]] = {
    **{name: [name] for name in ANOMALIES if name != "partial"},
    "spike": ["frozen", "spike"],
    "good": [],
    "of a worker of before": [],
}


def by_node(table: Table) -> dict[str, list[str]]:
    names = list(table)
    return dict(zip(names, anomalies_by_row(table, table.lookup(names), NOW, 180.0), strict=True))


def gauges(table: Table) -> dict[tuple[str, str], float]:
    """The metrics page by name and label."""
    metrics = TableMetrics(table, FeedState(), ManualClock(NOW), 180.0, DataOutages(table, 180.0))
    return {
        (
            sample.name.removeprefix("springtide_table_"),
            "".join(sample.labels.values()),
        ): sample.value
        for metric in metrics.collect()
        for sample in metric.samples
    }


def test_no_gauge_has_a_label_that_is_reserved() -> None:
    """promtool refuses `quantile` and `le` outside of summaries and histograms."""
    table = Table()
    table.put_node(TableNode(node="a", allocatable=ROOM))
    table.put_pod(running(any_pod(limits=Resources(cpu_millicores=2000)), "a"))
    page = TableMetrics(table, FeedState(), ManualClock(NOW), 180.0, DataOutages(table, 180.0))
    labels = {label for each in page.collect() for s in each.samples for label in s.labels}
    assert "statistic" in labels
    assert not labels & {"quantile", "le"}
    assert gauges(table)["limits_ratio", "cpumedian"] == 0.5


def test_anomalies_are_listed_per_node_and_counted_on_the_metrics_page() -> None:
    table = odd_nodes()
    assert by_node(table) == FOUND
    document = node_list(table, NOW, 180.0, node_facts(table, tuple(table)))
    assert {item.node: item.oddities for item in document.items} == FOUND
    spiky = node_state_document(table, "spike", NOW, 180.0, node_facts(table, ["spike"]))
    assert spiky is not None
    assert spiky.oddities == ["frozen", "spike"]
    page = gauges(table)
    assert {name: page["odd_nodes", name] for name in ANOMALIES} == {
        name: sum(name in names for names in FOUND.values()) for name in ANOMALIES
    }


def test_the_metrics_page_shows_the_cost_of_pods() -> None:
    table = table_of(node_state("a"))
    table.put_pod(CountedPod(node="a", uid="u", cgroup_uid="u"))
    table.bring_up_to_date(NOW)
    table.drop_pod("a", "u")
    page = gauges(table)
    assert (page["pod_events_total", ""], page["recomputed_rows_total", ""]) == (2, 1)


def test_anomalies_are_judged_at_the_end_of_the_last_window() -> None:
    """So it depends on the log alone, not on the time of the question."""
    end = format_time(NOW - 100)
    table = table_of(node_state("a", age=100.0, counters=Counters(last_gap_at=end)))
    for later in (0.0, 70.0):
        assert anomalies_by_row(table, table.lookup(["a"]), NOW + later, 180.0) == [["gaps"]]


def test_an_invalid_time_is_a_bad_record() -> None:
    with pytest.raises(InvalidRecordError, match="last_gap_seconds"):
        table_of(node_state("a", counters=Counters(last_gap_at="yesterday")))


def annotated(table: Table, name: str, text: str | None) -> None:
    table.put_node(TableNode(node=name, annotations={} if text is None else {ANNOTATION: text}))


def test_invalid_thresholds_are_listed_and_counted_until_corrected() -> None:
    table = table_of(node_state("a"), node_state("b"))
    assert invalid_thresholds(table) == {}
    for name, text in (
        ("a", "{"), ("b", '{"usageThresholds": {"cpu": 20}}'), ("c", "[]"), ("d", None),
    ):  # fmt: skip
        annotated(table, name, text)
    assert invalid_thresholds(table) == {"a": "{", "c": "[]"}
    assert invalid_thresholds(table, ["c", "stranger", "b"]) == {"c": "[]"}
    assert gauges(table)["unusable_threshold_nodes", ""] == 2
    document = node_list(table, NOW, 180.0, node_facts(table, tuple(table)))
    problems = {item.node: item.usage_thresholds_problem for item in document.items}
    assert problems["b"] is None
    assert problems["a"] == node_facts(table, "a").threshold_problems["a"]
    assert (problems["a"] or "").startswith(f"annotation {ANNOTATION}: not JSON")
    # A new window does not change the annotation.
    table.put_state(node_state("a", offset=1))
    annotated(table, "c", '{"usageThresholds": {"cpu": 20}}')
    assert invalid_thresholds(table) == {"a": "{"}
    table.drop_node("a")
    assert not np.any(table["invalid_thresholds"])
