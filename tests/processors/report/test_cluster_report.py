"""Reports of small clusters: hours of traces, and what stays unknown."""

import csv
import math
from dataclasses import replace

import numpy as np
import pytest

from pipeline.errors import InvalidRecordError
from pipeline.processors.arrays import FloatArray
from pipeline.processors.kubernetes.pod_classes import CLASS_CODES
from pipeline.processors.report import sized_workloads
from pipeline.processors.report.cluster_report import ClusterReport, Waste, cluster_report
from pipeline.processors.report.cluster_usage import ClusterUsage, check_size, usage_of_trace
from pipeline.processors.report.report_page import MOST_ROWS, report_page
from pipeline.processors.report.report_rows import LEVELS, csv_lines, rows
from pipeline.processors.report.report_text import text_lines
from tests.processors.backtest.trace_exports import random_trace

GIBIBYTE = 2.0**30
PROD, BATCH = CLASS_CODES["prod"], CLASS_CODES["batch"]


def cluster(hours: int = 48) -> ClusterUsage:
    """Two nodes of 4 cores and 8 Gi; a, b and c use half of their 1 core and 1 Gi, d has ended."""
    pods = 4
    highest = np.broadcast_to([500.0, 0.5 * GIBIBYTE], (pods, hours, 2)).copy()
    highest[3, hours // 2 :] = np.nan
    return ClusterUsage(
        end_seconds=1_700_006_400,
        nodes=("n1", "n2"),
        pools=("", "big"),
        capacity=np.full((2, 2), np.nan),
        allocatable=np.array([[4000.0, 8 * GIBIBYTE]] * 2),
        node_usage=np.broadcast_to([1000.0, GIBIBYTE], (2, hours, 2)).copy(),
        pods=("shop/a", "shop/b", "shop/c", "shop/d"),
        workloads=("Deployment/shop/web", "Deployment/shop/web", "", "Job/shop/old"),
        classes=np.full(pods, PROD),
        node_index=np.array([0, 0, 1, 1]),
        runs=np.array([True, True, True, False]),
        requests=np.array([[1000.0, GIBIBYTE]] * pods),
        limits=np.zeros((pods, 2)),
        highest=highest,
        mean=np.array([[400.0, 0.4 * GIBIBYTE]] * pods),
        last_mean=highest[:, -1].copy(),
    )


def notes(report: ClusterReport) -> str:
    return "\n".join(report.notes)


def test_pods_that_ended_count_in_no_requests() -> None:
    report = cluster_report(cluster())
    assert report.cluster.pods.tolist() == [3]
    assert report.cluster.requests[0, 0] == 3000.0
    assert report.cluster.usage[0, 0] == pytest.approx(1200.0)
    assert report.nodes.pods.tolist() == [2, 1]
    assert report.workloads.names == ("Deployment/shop/web", "Job/shop/old")
    assert report.workloads.pods.tolist() == [2, 0]
    assert math.isnan(report.workloads.unused[1, 0])


def test_how_many_pods_are_sized_at_once_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    random = np.random.default_rng(7)
    usage = replace(cluster(), workloads=("Job/shop/b", "Deployment/shop/a", "", "Job/shop/b"))
    usage.highest[:] *= random.uniform(0.5, 2.0, usage.highest.shape)
    usage.highest[random.random(usage.highest.shape) < 0.1] = np.nan
    all_at_once = sized_workloads.sized_workloads(usage)
    assert not np.isnan(all_at_once.target).any()
    monkeypatch.setattr(sized_workloads, "_PODS_AT_ONCE", 1)
    for one, two in zip(all_at_once, sized_workloads.sized_workloads(usage), strict=True):
        np.testing.assert_array_equal(one, two)


def test_unknown_usage_is_not_zero() -> None:
    usage = cluster()
    usage.highest[2], usage.mean[2] = np.nan, np.nan
    report = cluster_report(usage)
    assert report.nodes.without_usage.tolist() == [[0, 0], [1, 1]]
    assert np.isnan(report.nodes.unused[1]).all()
    assert np.isnan(report.nodes.peaks[:, 1]).all()
    assert np.isnan(report.nodes.mid[:, 1]).all()
    assert report.cluster.nodes_without_offer.tolist() == [[1, 1]]
    assert report.cluster.mid[0, 0, 0] == report.nodes.mid[0, 0, 0]
    assert "1 running pods have no known cpu usage" in notes(report)
    assert "1 nodes have no cpu peak: no usage of Prod is known" in notes(report)
    unknown = [row for row in rows(report, "node") if row.name == "n2"]
    assert [(row.unused, row.risks[0].peak, row.risks[0].mid) for row in unknown] == [
        (None, None, None),
        (None, None, None),
    ]


def test_a_resource_whose_allocatable_is_unknown_is_named() -> None:
    usage = cluster()
    usage.allocatable[:, 1] = np.nan  # memory, as in traces
    lines = notes(cluster_report(usage))
    assert "2 nodes have no known allocatable memory: their offers of it are unknown" in lines
    assert "allocatable cpu" not in lines


def test_pod_without_a_request_is_no_waste() -> None:
    usage = cluster()
    usage.requests[0] = 0.0
    report = cluster_report(usage)
    assert report.cluster.without_request.tolist() == [[1, 1]]
    assert report.cluster.requests[0, 0] == 2000.0
    assert report.cluster.usage[0, 0] == pytest.approx(800.0)
    assert report.cluster.usage_without_request[0, 0] == pytest.approx(400.0)
    assert "1 running pods request no cpu" in notes(report)


def test_node_without_prod_offers_what_others_leave() -> None:
    usage = cluster()
    usage.classes[2:] = BATCH
    report = cluster_report(usage)
    assert report.nodes.peaks[:, 1].tolist() == [[0.0, 0.0]] * 3
    assert report.nodes.mid[:, 1].tolist() == [[0.0, 0.0]] * 3
    # 60% of capacity, less what the node uses beyond its pods (0.5 cores), less the buffer.
    assert report.nodes.batch[0, 1, 0] == (2400 - 500) * 0.9


def test_peaks_of_pods_do_not_hide_what_other_processes_use() -> None:
    usage = cluster()
    usage.classes[2:] = BATCH
    usage.last_mean[2] = 100.0, GIBIBYTE / 4  # its node uses 1 core, of which 0.9 are of others
    report = cluster_report(usage)
    assert report.nodes.batch[0, 1, 0] == (2400 - 900) * 0.9


def test_unknown_usage_of_nodes_is_not_cool() -> None:
    report = cluster_report(replace(cluster(), node_usage=np.full((2, 48, 2), np.nan)))
    hot = {row.name: (row.hot, row.hot_hours) for row in rows(report, "node")}
    assert hot == {"n1": (None, None), "n2": (None, None)}
    assert "2 nodes have no known usage of their own" in notes(report)
    lines = [*text_lines(report, "node")]
    assert [line.split()[2] for line in lines] == ["HOT", "-", "-"]
    usage = cluster()
    usage.node_usage[0, :, 0] = np.nan  # cpu of n1 alone
    lines = [*text_lines(cluster_report(usage), "node")]
    assert {line.split()[0]: line.split()[2] for line in lines[1:]} == {"n1": "-", "n2": "no"}


def test_hours_above_a_threshold_are_hot() -> None:
    usage = cluster()
    usage.node_usage[0, -3:, 0] = 3000.0
    usage.node_usage[0, -1, 0] = 3500.0
    report = cluster_report(usage, high_percent={"cpu": 65.0, "memory": 95.0})
    row = next(rows(report, "node"))
    assert (row.hot_hours, row.hot, row.last_hour_percent) == (3, "critical", 87.5)


def test_short_history_is_stated() -> None:
    assert "usage is known in 48 of 48 hours, less than a week" in notes(cluster_report(cluster()))
    usage = cluster(hours=168)
    assert "less than a week" not in notes(cluster_report(usage))
    usage.highest[:, :100] = np.nan  # the retention of a Prometheus
    assert "usage is known in 68 of 168 hours, less than a week" in notes(cluster_report(usage))


def test_single_hour_has_no_prediction_below_the_requests_of_strangers() -> None:
    report = cluster_report(cluster(hours=1))
    assert (report.nodes.peaks[:, :, 0] <= report.nodes.requests[:, 0]).all()
    assert (report.nodes.peaks[:, :, 0] >= [500.0 * 2, 500.0]).all()


def test_csv_has_a_row_for_each_group_and_resource() -> None:
    report = cluster_report(cluster())
    lines = [*csv_lines(report)]
    assert len(lines) == 1 + 2 * (1 + 1 + 2 + 2)
    assert len({line.count(",") for line in lines}) == 1
    assert "peak_at_0.01,mid_at_0.01,batch_at_0.01,peak_at_0.02" in lines[0]


def test_unused_amounts_are_computed_once_for_all_rows_of_a_level(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    report, unused, levels = cluster_report(cluster()), vars(Waste)["unused"], []

    def counted(waste: Waste) -> FloatArray:
        levels.append(waste.level)
        return np.asarray(unused.fget(waste))

    monkeypatch.setattr(Waste, "unused", property(counted))
    assert len([*rows(report)]) == 2 * (1 + 1 + 2 + 2)
    assert levels == [*LEVELS]


def test_names_in_csv_are_no_formulas() -> None:
    names = ("=1+1", "@SUM(A1)", "Deployment/shop/web", "")
    usage = replace(cluster(), workloads=names, pools=("-2", "+3"))
    usage.requests[:] = 1.0  # less than the target
    lines = [*csv.reader(csv_lines(cluster_report(usage)))]
    assert {line[1] for line in lines if line[0] == "workload"} == {"'=1+1", "'@SUM(A1)", names[2]}
    assert {line[1] for line in lines if line[0] == "pool"} == {"'-2", "'+3"}
    saved = lines[0].index("saved")
    assert min(float(line[saved]) for line in lines[1:] if line[saved]) < 0.0


@pytest.mark.parametrize("seed", range(5))
def test_hours_of_a_trace_are_counted_from_its_end(seed: int) -> None:
    random = np.random.default_rng(seed)
    trace = random_trace(random, 40, int(random.choice([300, 900, 1200, 3600])), mixed=True)
    usage = usage_of_trace(trace)
    for stay in range(len(trace.pods)):
        expected: dict[int, list[float]] = {}
        own = trace.stay_usage(stay)
        for i, step in enumerate(range(int(trace.start[stay]), int(trace.end[stay]))):
            after = (trace.steps - step - 1) * trace.step_seconds
            expected.setdefault(usage.hours - 1 - after // 3600, []).append(own[i, 0])
        for hour in range(usage.hours):
            known = [value for value in expected.get(hour, []) if not math.isnan(value)]
            highest = usage.highest[stay, hour, 0]
            assert math.isnan(highest) if not known else highest == max(known)
        assert usage.runs[stay] == (trace.end[stay] == trace.steps)


def test_steps_longer_than_an_hour_and_too_many_pods_are_refused() -> None:
    trace = random_trace(np.random.default_rng(1), 4, 7200, mixed=False)
    with pytest.raises(InvalidRecordError, match="steps are 7,200 s long"):
        usage_of_trace(trace)
    with pytest.raises(InvalidRecordError, match="1,000,000 pods in 168 hours"):
        check_size(1_000_000, 168)


def test_page_has_every_group_and_says_what_is_left_out() -> None:
    usage = cluster()
    report = cluster_report(replace(usage, workloads=("<b>&", *usage.workloads[1:])))
    page = report_page(report)
    assert "2 nodes, 3 running pods" in page
    for name in ("n1", "n2", "big", "Deployment/shop/web", "&lt;b&gt;&amp;"):
        assert name in page
    assert "<b>&" not in page
    assert "<script" not in page
    assert "are left out" not in page


def test_page_of_many_nodes_shows_those_that_leave_most_unused() -> None:
    usage = cluster()
    nodes = MOST_ROWS + 20
    page = report_page(
        cluster_report(
            replace(
                usage,
                nodes=tuple(f"node-{i}" for i in range(nodes)),
                pools=("",) * nodes,
                capacity=np.full((nodes, 2), np.nan),
                allocatable=np.broadcast_to(usage.allocatable[0], (nodes, 2)),
                node_usage=np.full((nodes, usage.hours, 2), np.nan),
            )
        )
    )
    assert "20 of 320 nodes are left out" in page
