"""The usage of a cluster from made readings of metrics-server.

`tests/cluster/test_report_of_metrics.py` asks a real API server.
"""

from collections import Counter

import numpy as np
import pytest

from pipeline.errors import InvalidRecordError
from pipeline.processors.imported_usage.fetched_usage import FetchedUsage, PodName, SampleColumns
from pipeline.processors.kubernetes.pod_classes import CLASS_CODES
from pipeline.processors.report.cluster_report import cluster_report
from pipeline.processors.report.cluster_usage import ClusterUsage
from pipeline.processors.report.report_rows import rows
from pipeline.processors.report.report_text import text_lines
from pipeline.processors.report.watched_usage import WatchedCluster, watched_usage
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.pods import Owner, PodRecord
from pipeline.topics.resource_amounts import Resources

END, GIB = 1_700_000_000, 2**30
NODE = Resources(cpu_millicores=8000, memory_bytes=32 * GIB)
NODES = [
    NodeRecord(node=name, allocatable=NODE, capacity=NODE, labels={"agentpool": "general"})
    for name in ("n2", "n1")
]


def pod(name: str, node: str = "n1", **fields: object) -> PodRecord:
    requests = Resources(cpu_millicores=1000, memory_bytes=GIB)
    stated = {
        "node": node, "uid": name, "cgroup_uid": name, "namespace": "shop", "name": name,
        "pod_class": "prod", "phase": "Running", "requests": requests,
    }  # fmt: skip
    return PodRecord(**(stated | fields))  # type: ignore[arg-type]


def usage(cores: float, size: float, **others: float) -> SampleColumns:
    return {"cpu_cores_avg": cores, "memory_bytes_avg": size, **others}


def watched(
    pods: list[PodRecord], usages: dict[str, SampleColumns], **others: object
) -> ClusterUsage:
    fetched = FetchedUsage(
        nodes={"n1": usage(2.0, 8 * GIB)},
        pods={PodName("shop", name): columns for name, columns in usages.items()},
        **others,  # type: ignore[arg-type]
    )
    cluster = WatchedCluster(END, 90, fetched, NODES, pods, Counter({"pods that are bad": 1}))
    return watched_usage(cluster)


def test_usage_is_the_mean_and_the_highest_reading() -> None:
    columns = usage(0.2, GIB / 4, cpu_cores_max=0.3)
    found = watched([pod("a"), pod("b", "n2")], {"a": columns})
    assert found.nodes == ("n1", "n2")
    assert found.pods == ("shop/a", "shop/b")
    np.testing.assert_array_equal(found.highest[:, 0], [[300, GIB / 4], [np.nan, np.nan]])
    np.testing.assert_array_equal(found.mean, [[200, GIB / 4], [np.nan, np.nan]])
    np.testing.assert_array_equal(found.node_usage[:, 0], [[2000, 8 * GIB], [np.nan, np.nan]])
    np.testing.assert_array_equal(found.requests, [[1000, GIB], [1000, GIB]])
    np.testing.assert_array_equal(found.limits, np.zeros((2, 2)))


def test_only_pods_that_have_a_node_and_have_not_ended_count() -> None:
    pods = [
        pod("done", phase="Succeeded"), pod("unplaced", "", phase="Pending"), pod("gone", "n9"),
        pod("starts", phase="Pending"), pod("runs"),
    ]  # fmt: skip
    found = watched(pods, {each.name: usage(0.1, GIB) for each in pods})
    assert found.pods == ("shop/runs", "shop/starts")


def test_workload_pool_and_class_are_those_of_the_objects() -> None:
    owner = Owner(kind="ReplicaSet", name="web-5d4f")
    web = pod("web-5d4f-x", owner=owner, labels={"pod-template-hash": "5d4f"})
    batch = pod("batch", pod_class="batch", requests=Resources())
    found = watched([web, batch], {"batch": usage(1.0, GIB), "web-5d4f-x": usage(1.0, GIB)})
    assert found.workloads == ("", "Deployment/shop/web")
    assert found.pools == ("general", "general")
    assert found.classes.tolist() == [CLASS_CODES["batch"], CLASS_CODES["prod"]]


def test_without_usage_of_any_pod_there_is_no_report() -> None:
    with pytest.raises(InvalidRecordError, match="usage of no pod that runs"):
        watched([pod("a")], {"another": usage(1.0, GIB)})


def test_without_usage_the_error_says_what_was_refused_and_what_was_stale() -> None:
    failed, left_out = {"pods": "GET pods: 403 forbidden"}, Counter(ahead=7)
    with pytest.raises(InvalidRecordError) as raised:
        watched([pod("a")], {}, failed=failed, left_out=left_out)
    assert "GET pods: 403 forbidden" in raised.value.message
    assert "7 nodes and pods whose readings are of a later time" in raised.value.message


def test_objects_that_are_listed_twice_count_once() -> None:
    readings = FetchedUsage(pods={PodName("shop", "a"): usage(0.2, GIB)})
    twice = WatchedCluster(END, 90, readings, [*NODES, *NODES], [pod("a")] * 2, Counter())
    report = cluster_report(watched_usage(twice))
    assert [report.cluster.nodes.tolist(), report.cluster.pods.tolist()] == [[2], [1]]


def test_usage_that_nobody_reported_is_null_in_json_and_csv() -> None:
    found = cluster_report(watched([pod("a")], {"a": {"cpu_cores_avg": 0.2}}))
    cpu, memory = rows(found, "cluster")
    assert (cpu.usage_mean, cpu.usage_mean_without_request) == (200.0, 0.0)
    assert (memory.usage_mean, memory.usage_mean_without_request) == (None, None)


def test_the_report_says_how_long_it_watched_and_what_it_left_out() -> None:
    found = watched(
        [pod("a"), pod("b")], {"a": usage(0.2, GIB / 4)},
        failed={"nodes": "the server refuses"}, left_out=Counter(stale=2),
        bad_values=Counter({"pod.cpu_cores": 1}),
    )  # fmt: skip
    lines = [*text_lines(cluster_report(found))]
    assert lines[0] == "2 nodes, 2 running pods, 1m30s until 2023-11-14T22:13:20Z"
    notes = [line for line in lines if line.startswith("note:")]
    assert "note: usage was watched for 1m30s" in notes[0]
    for note in (
        "metrics-server: the server refuses",
        "left out: 2 nodes and pods without a reading of the last five minutes",
        "left out: 1 pods that are bad",
        "left out: 1 values that are negative, not finite, or too large",
        "1 running pods have no known cpu usage",
    ):
        assert f"note: {note}" in notes
    assert not any("less than a week" in note for note in notes)


def test_peaks_after_a_minute_of_low_usage_are_far_above_it() -> None:
    """The pods are strangers: nobody knows what they use at other times."""
    pods = [pod(f"p{i}", "n1" if i % 2 else "n2") for i in range(8)]
    report = cluster_report(watched(pods, {each.name: usage(0.05, GIB / 20) for each in pods}))
    requests = report.cluster.requests[0]
    assert (report.cluster.usage[0] <= 0.051 * requests).all()
    assert (report.cluster.peaks[:, 0] >= 0.5 * requests).all()
