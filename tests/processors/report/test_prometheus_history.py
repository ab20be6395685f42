"""The usage of a cluster from made answers of Prometheus: nodes, owners, tiers, what is unknown.

`tests/report` asks a real one.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

from pipeline.errors import InvalidRecordError, UsageError
from pipeline.processors.backtest.prometheus_ranges import RangeColumns, read_vector
from pipeline.processors.kubernetes.pod_classes import CLASS_CODES
from pipeline.processors.report.cluster_usage import ClusterUsage
from pipeline.processors.report.history_answers import (
    History,
    HourSamples,
    Labels,
    PartMeans,
    Vector,
    hour_samples,
    steady_means,
)
from pipeline.processors.report.prometheus_history import cluster_usage
from pipeline.processors.report.prometheus_queries import (
    ENDED_REQUESTS,
    INSTANT,
    MEANS,
    NODE_RANGES,
    POD_RANGES,
    SCRAPES,
    SERIES,
    Span,
    filled,
    pod_matchers,
    rate_seconds,
)

END = 1_700_006_400
HOURS = 3


def pod(name: str, node: str = "n1", **others: str) -> dict[str, str]:
    return {"namespace": "shop", "pod": name, "node": node, **others}


def owned(name: str, kind: str, owner: str, node: str = "n1") -> dict[str, str]:
    return pod(name, node, created_by_kind=kind, created_by_name=owner)


def hourly(*series: tuple[Labels, Mapping[int, float]]) -> HourSamples:
    """Series with the given values by hour."""
    points = [(i, hour, value) for i, (_, own) in enumerate(series) for hour, value in own.items()]
    return HourSamples(
        [labels for labels, _ in series],
        np.array([i for i, _, _ in points], np.int32),
        np.array([hour for _, hour, _ in points], np.int16),
        np.array([value for _, _, value in points], np.float64),
    )


def usage_of(
    *cpu: tuple[Labels, Mapping[int, float]],
    ranges: Mapping[str, Sequence[HourSamples]] | None = None,
    means: Mapping[str, Sequence[PartMeans]] | None = None,
    cpu_mean: Vector = (),
    rate: int = 300,
    **vectors: Vector,
) -> ClusterUsage:
    """Of a node n1 of 4 cores, on which the pods of `cpu` run, in cores by hour; `cpu_mean` is of
    the whole time."""
    answers: dict[str, Vector] = dict.fromkeys((*INSTANT, *SERIES), ())
    answers["running"] = [(pod(labels["pod"], labels.get("node", "n1")), 1.0) for labels, _ in cpu]
    answers["allocatable"] = [({"node": "n1", "resource": "cpu"}, 4.0)]
    spans: dict[str, Sequence[HourSamples]] = {"memory": (), "node_cpu": (), "node_memory": ()}
    return cluster_usage(
        History(
            END,
            HOURS,
            rate,
            answers | vectors,
            spans | {"cpu": [hourly(*cpu)]} | dict(ranges or {}),
            means or {"cpu": [PartMeans(0, HOURS, cpu_mean)], "memory": []},
        )
    )


def test_values_are_placed_in_the_hours_that_they_end() -> None:
    labels = [pod("a"), pod("b")]
    seconds = np.array([END, END - 7200, END - 3600])
    columns = RangeColumns(labels, np.array([1, 2]), seconds, np.array([1.0, 2.0, 3.0]))
    samples = hour_samples(columns, END, HOURS)
    assert samples.owner.tolist() == [0, 1, 1]
    assert samples.hour.tolist() == [2, 0, 1]


@pytest.mark.parametrize("second", [END + 3600, END - 1, END - 3 * 3600])
def test_values_at_other_times_are_refused(second: int) -> None:
    columns = RangeColumns([pod("a")], np.array([1]), np.array([second]), np.array([1.0]))
    with pytest.raises(InvalidRecordError, match="at times that were not asked for"):
        hour_samples(columns, END, HOURS)


def test_amounts_are_millicores_and_bytes_and_unknown_ones_are_not_zero() -> None:
    usage = usage_of(
        (pod("a"), {0: 0.5, 2: 1.5}),
        (pod("b"), {}),
        ranges={"memory": [hourly((pod("a"), {2: 2.0**30}))]},
        cpu_mean=[(pod("a"), 0.75)],
        requests=[(pod("a", resource="cpu"), 2.0), (pod("gone", resource="cpu"), 9.0)],
        limits=[(pod("a", resource="memory"), 2.0**31)],
    )
    assert usage.pods == ("shop/a", "shop/b")
    np.testing.assert_array_equal(usage.highest[0, :, 0], [500.0, np.nan, 1500.0])
    np.testing.assert_array_equal(usage.highest[0, :, 1], [np.nan, np.nan, 2.0**30])
    assert np.isnan(usage.highest[1]).all()
    np.testing.assert_array_equal(usage.mean, [[750.0, np.nan], [np.nan, np.nan]])
    np.testing.assert_array_equal(usage.requests, [[2000.0, 0.0], [0.0, 0.0]])
    np.testing.assert_array_equal(usage.limits, [[0.0, 2.0**31], [0.0, 0.0]])
    np.testing.assert_array_equal(usage.allocatable, [[4000.0, np.nan]])
    assert np.isnan(usage.capacity).all()


def test_of_two_series_of_a_pod_the_highest_counts() -> None:
    two = [hourly((pod("a"), {1: 0.2})), hourly((pod("a"), {1: 0.9, 2: 0.1}))]
    usage = usage_of((pod("a"), {}), ranges={"cpu": two})
    np.testing.assert_array_equal(usage.highest[0, :, 0], [np.nan, 900.0, 100.0])


def test_the_node_is_that_of_the_label_the_instance_or_the_only_pod_of_that_name() -> None:
    bare = {"namespace": "shop", "pod": "a", "instance": "10.0.0.1:10250"}
    usage = usage_of(
        (pod("a"), {}),
        (pod("b", "n2"), {}),
        (pod("b"), {}),
        ranges={
            "cpu": [
                hourly(
                    (bare, {0: 1.0}),
                    # Two pods have this name: the kubelet that reported `a` decides.
                    ({"namespace": "shop", "pod": "b", "instance": "10.0.0.1:10250"}, {0: 2.0}),
                    ({"namespace": "shop", "pod": "b", "instance": "n2:10250"}, {0: 3.0}),
                    ({"namespace": "shop", "pod": "b", "instance": "10.0.0.9:10250"}, {0: 4.0}),
                )
            ],
            "node_cpu": [
                hourly(({"instance": "n2"}, {2: 3.5}), ({"instance": "10.0.0.9"}, {2: 9.0}))
            ],
        },
        cpu_mean=[(bare, 0.1)],
    )
    assert usage.nodes == ("n1", "n2")
    assert usage.pods == ("shop/a", "shop/b", "shop/b")
    assert usage.node_index.tolist() == [0, 0, 1]
    assert usage.highest[:, 0, 0].tolist() == [1000.0, 2000.0, 3000.0]
    assert usage.mean[0, 0] == 100.0
    assert np.isnan(usage.node_usage[0]).all()
    assert usage.node_usage[1, 2, 0] == 3500.0
    assert "left out: 1 series of pods without a known node" in usage.notes


def test_an_instance_that_scrapes_several_nodes_names_none_of_them() -> None:
    a, b, moved = (
        {"namespace": "shop", "pod": name, "instance": "agent:80"} for name in ("a", "b", "moved")
    )
    usage = usage_of(
        *((pod(name, node), {}) for name, node in (("a", "n1"), ("b", "n2"), ("moved", "n2"))),
        ranges={
            "cpu": [hourly((a, {0: 1.0}), (b, {0: 2.0}), (moved, {0: 3.0}))],
            "node_cpu": [hourly(({"instance": "agent:80"}, {0: 9.0}))],
        },
        pods=[(owned("moved", "StatefulSet", "db", "n1"), 1.0)],
        cpu_mean=[(a, 0.1), (b, 0.2)],
    )
    highest = dict(zip(usage.pods, usage.highest[:, 0, 0].tolist(), strict=True))
    assert (highest["shop/a"], highest["shop/b"]) == (1000.0, 2000.0)
    assert np.isnan(highest["shop/moved"])
    assert usage.mean[:, 0].tolist()[:2] == [100.0, 200.0]
    assert np.isnan(usage.node_usage).all()
    assert "left out: 1 series of pods without a known node" in usage.notes


def test_usage_of_a_node_that_is_gone_is_not_that_of_the_node_with_its_address() -> None:
    address = {"instance": "10.0.0.1:10250"}
    old, new = ({"namespace": "shop", "pod": name} | address for name in ("old", "a"))
    usage = usage_of(
        (pod("a"), {}),
        ranges={
            "cpu": [hourly((new, {2: 1.0}), (old, {0: 2.0}))],
            "node_cpu": [hourly((address, {2: 3.0}))],
        },
        pods=[(owned("old", "StatefulSet", "db", "gone"), 1.0)],
        cpu_mean=[(new, 0.1), (old, 0.2)],
    )
    assert usage.pods == ("shop/a",)
    assert usage.node_usage[0, 2, 0] == 3000.0
    assert "left out: 1 series of pods without a known node" in usage.notes


@pytest.mark.parametrize("cores", [(0.1, 0.5), (0.5, 0.1)])
def test_the_higher_mean_counts_of_a_pod_whose_kubelet_changed_its_address(
    cores: tuple[float, float],
) -> None:
    series = [
        (pod("a", instance=f"10.0.0.{number}:10250"), value) for number, value in enumerate(cores)
    ]
    usage = usage_of((pod("a"), {0: 0.5}), cpu_mean=series)
    assert usage.mean[0, 0] == 500.0


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1.0, 1e300])
def test_amounts_that_cannot_be_are_unknown(wrong: float) -> None:
    usage = usage_of(
        (pod("a"), {0: 0.5, 1: wrong, 2: 0.7}),
        ranges={"node_memory": [hourly(({"node": "n1"}, {0: wrong, 2: 2.0**30}))]},
        allocatable=[
            ({"node": "n1", "resource": "cpu"}, wrong),
            ({"node": "n1", "resource": "memory"}, 2.0**33),
        ],
        cpu_mean=[(pod("a"), wrong)],
        requests=[(pod("a", resource="cpu"), wrong), (pod("a", resource="memory"), 2.0**30)],
    )
    assert usage.highest[0, :, 0].tolist()[::2] == [500.0, 700.0]
    assert np.isnan([usage.highest[0, 1, 0], usage.mean[0, 0], usage.allocatable[0, 0]]).all()
    assert np.isnan(usage.node_usage[0, 0, 1])
    assert usage.node_usage[0, 2, 1] == 2.0**30
    assert usage.requests.tolist() == [[0.0, 2.0**30]]
    assert "left out: 5 values that are negative, not finite, or too large" in usage.notes


def test_without_any_requests_no_pod_counts_as_batch() -> None:
    usage = usage_of((pod("a"), {0: 1.0}))
    assert usage.classes.tolist() == [CLASS_CODES["prod"]]


def test_warnings_of_the_server_are_notes() -> None:
    body = (
        b'{"status":"success","warnings":["store b did not answer"],"data":{"resultType":"vector",'
        b'"result":[]}}'
    )
    warnings: set[str] = set()
    assert read_vector(body, warnings) == []
    answers: dict[str, Vector] = dict.fromkeys((*INSTANT, *SERIES), ())
    answers["running"] = [(pod("a"), 1.0)]
    ranges = dict.fromkeys((*NODE_RANGES, *POD_RANGES), ()) | {
        "cpu": [hourly((pod("a"), {0: 1.0}))]
    }
    means: dict[str, Sequence[PartMeans]] = dict.fromkeys(MEANS, ())
    usage = cluster_usage(History(END, HOURS, 300, answers, ranges, means, [*warnings]))
    assert usage.notes[0] == "Prometheus warns: store b did not answer"


def test_a_pod_that_ended_does_not_run() -> None:
    usage = usage_of((pod("a"), {2: 1.0}), ranges={"cpu": [hourly((pod("old"), {0: 1.0}))]})
    assert usage.pods == ("shop/a", "shop/old")
    assert usage.runs.tolist() == [True, False]


def test_workloads_are_owners_of_replicasets_and_jobs() -> None:
    names = ("web", "bare", "static", "nightly", "once", "made", "alone", "db")
    usage = usage_of(
        *((pod(name), {0: 1.0}) for name in names),
        pods=[
            (owned("web", "ReplicaSet", "web-7f"), 1.0),
            (owned("bare", "<none>", "<none>"), 1.0),
            (owned("static", "Node", "n1"), 1.0),
            (owned("nightly", "Job", "nightly-28345678"), 1.0),
            (owned("once", "Job", "once"), 1.0),
            (owned("made", "Job", "made-1"), 1.0),
            (owned("alone", "ReplicaSet", "alone"), 1.0),
            (owned("db", "StatefulSet", "db"), 1.0),
        ],
        replicasets=[
            (
                {"namespace": "shop", "replicaset": "web-7f"}
                | {"owner_kind": "Deployment", "owner_name": "web"},
                1.0,
            )
        ],
        jobs=[
            (
                {"namespace": "shop", "job_name": "made-1"}
                | {"owner_kind": "CronJob", "owner_name": "made"},
                1.0,
            )
        ],
    )
    assert dict(zip(usage.pods, usage.workloads, strict=True)) == {
        "shop/web": "Deployment/shop/web",
        "shop/bare": "",
        "shop/static": "",
        "shop/nightly": "CronJob/shop/nightly",
        "shop/once": "Job/shop/once",
        "shop/made": "CronJob/shop/made",
        "shop/alone": "ReplicaSet/shop/alone",
        "shop/db": "StatefulSet/shop/db",
    }


def test_pods_that_ask_for_resources_of_a_tier_are_of_that_tier() -> None:
    usage = usage_of(
        *((pod(name), {0: 1.0}) for name in ("batch", "mid", "none", "prod")),
        requests=[
            (pod("batch", resource="kubernetes_io_batch_cpu"), 1000.0),
            (pod("mid", resource="kubernetes_io_mid_memory"), 2.0**30),
            (pod("prod", resource="cpu"), 1.0),
        ],
    )
    expected = [CLASS_CODES[name] for name in ("batch", "mid", "batch", "prod")]
    assert usage.classes.tolist() == expected
    assert "2 pods ask for resources of Mid or Batch" in usage.notes


def test_the_first_label_of_a_pool_that_a_node_has_decides() -> None:
    labels = {"node": "n1", "label_team": "blue", "label_karpenter_sh_nodepool": "spot"}
    samples: Any = (pod("a"), {0: 1.0})
    assert usage_of(samples, node_labels=[(labels, 1.0)]).pools == ("spot",)
    assert usage_of(samples, node_labels=[({"node": "other"}, 1.0)]).pools == ("",)


def test_notes_state_what_prometheus_lacks() -> None:
    notes = usage_of((pod("a"), {0: 1.0}), rate=1200).notes
    assert notes == (
        "cpu is averaged over 20 minutes, since scrapes are rare: shorter peaks are not seen",
        "Prometheus has no capacity of nodes: allocatable stands for it",
        "Prometheus has no labels of nodes: pools are unknown",
        "Prometheus has no owners of pods: workloads are unknown",
        "Prometheus has no requests: all pods count as Prod",
    )


def test_a_prometheus_without_usage_of_pods_is_an_error() -> None:
    with pytest.raises(InvalidRecordError, match="no pod has known cpu usage"):
        usage_of((pod("a"), {}))


@pytest.mark.parametrize(
    "query",
    [
        *INSTANT.values(), *NODE_RANGES.values(), *POD_RANGES.values(), *MEANS.values(),
        ENDED_REQUESTS, *(own.selector for own in SERIES.values()),
    ],
)  # fmt: skip
def test_matchers_are_in_every_selector_of_a_query(query: str) -> None:
    text = filled(query, Span(END, 24, 600, ('cluster="a"', 'region=~"eu.*"')))
    selectors = text.count("{")
    assert selectors
    assert text.count(', cluster="a", region=~"eu.*"}') == selectors
    assert "$" not in text


@pytest.mark.parametrize(
    "matcher", ["", "cluster", 'cluster="a', 'cluster="a"} or up{b="c"', "a=b"]
)
def test_text_that_is_no_matcher_is_refused(matcher: str) -> None:
    with pytest.raises(UsageError, match="is not a matcher of labels"):
        filled(SCRAPES, Span(END, 1, matchers=(matcher,)))


def test_parts_of_a_mean_weigh_the_hours_with_known_usage() -> None:
    usage = usage_of(
        (pod("a"), {0: 1.0, 2: 2.0}),
        (pod("late"), {2: 4.0}),
        (pod("rare"), {}),
        means={
            "cpu": [
                PartMeans(0, 2, [(pod("a"), 0.6), (pod("rare"), 0.1)]),
                PartMeans(2, 3, [(pod("a"), 1.2), (pod("late"), 0.8), (pod("rare"), 0.3)]),
            ],
            "memory": [PartMeans(0, 3, [(pod("a"), float("nan"))])],
        },
    )
    assert usage.pods == ("shop/a", "shop/late", "shop/rare")
    # One hour of the first part counts, since `a` has no usage in the other.
    np.testing.assert_allclose(usage.mean[:, 0], [900.0, 800.0, 200.0])
    assert np.isnan(usage.mean[:, 1]).all()


def test_names_of_pods_become_matchers_of_bounded_length() -> None:
    names = [f"web-{number}.example" for number in range(50)]
    matchers = [*pod_matchers([*names, 'odd"name', "odd|name"], 200)]
    assert len(matchers) > 1
    alternatives = [part for each in matchers for part in each[6:-1].split("|")]
    assert alternatives == [name.replace(".", r"\\.") for name in names]
    assert all(len(quote(each[6:-1], safe="")) <= 200 for each in matchers)
    assert [*pod_matchers(["a-name-longer-than-the-bound"], 5)] == [
        'pod=~"a-name-longer-than-the-bound"'
    ]
    assert "up" in filled('up{a="b"$match}', Span(END, 1, matchers=tuple(matchers)))
    assert not [*pod_matchers([], 10)]


@pytest.mark.parametrize(
    ("scrapes_per_hour", "minutes"),
    [(240, 5), (60, 5), (48, 5), (30, 10), (12, 20), (4, 60), (0, 60)],
)
def test_cpu_is_averaged_over_four_scrapes(scrapes_per_hour: float, minutes: int) -> None:
    assert rate_seconds(scrapes_per_hour) == 60 * minutes


def test_pods_whose_containers_all_run_on_have_a_mean_by_counters() -> None:
    def container(pod: str, name: str, id: str, seconds: float) -> tuple[Labels, float]:
        labels = {"namespace": "shop", "pod": pod, "instance": "n", "container": name, "id": id}
        return labels, seconds

    begin = [
        container("two", "main", "/a", 100.0), container("two", "mesh", "/b", 50.0),
        container("idle", "main", "/a", 10.0), container("restarted", "main", "/a", 10.0),
        container("ended", "main", "/a", 10.0), container("reset", "main", "/a", 10.0),
        container("unnamed", "main", "", 10.0),
        container("unknown", "main", "/a", float("nan")),
    ]  # fmt: skip
    end = [
        container("two", "mesh", "/b", 1850.0), container("two", "main", "/a", 7300.0),
        container("idle", "main", "/a", 10.0), container("restarted", "main", "/b", 10.0),
        container("new", "main", "/a", 10.0), container("reset", "main", "/a", 9.0),
        container("unnamed", "main", "", 11.0), container("unknown", "main", "/a", 1.0),
        # One of its containers runs on, and the pod has another besides.
        container("idle-but-changed", "main", "/a", 10.0),
    ]  # fmt: skip
    begin.append(container("idle-but-changed", "main", "/a", 9.0))
    begin.append(container("idle-but-changed", "debug", "/d", 9.0))
    means, changed = steady_means(begin, end, hours=2)
    assert {labels["pod"]: cores for labels, cores in means} == {"two": 1.25, "idle": 0.0}
    assert all(labels.keys() == {"namespace", "pod", "instance"} for labels, _ in means)
    names = ("restarted", "ended", "reset", "unnamed", "unknown", "new", "idle-but-changed")
    assert changed == {("shop", name) for name in names}
