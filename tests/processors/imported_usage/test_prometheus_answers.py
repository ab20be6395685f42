"""Queries to Prometheus, and the usage in its answers, also in invalid ones."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import SampleSourceError, SettingsError
from pipeline.processors.imported_usage.fetched_usage import FetchedUsage, PodName, TimeWindow
from pipeline.processors.imported_usage.prometheus_answers import (
    Matrix,
    error_text,
    gather,
    read_matrix,
)
from pipeline.processors.imported_usage.promql import DEFAULT_QUERIES, Query, QueryGrid, queries
from pipeline.topics.samples import LIST_COLUMNS

GRID = QueryGrid(60, 15, 60, "instance", "node")
WINDOW = TimeWindow(600_000, 660_000)
CPU = Query("node", "cpu_cores", "")
MEMORY = Query("node", "memory_bytes", "")
NO_POINTS: dict[str, Any] = {name: [] for name in LIST_COLUMNS}
POD_CPU = Query("pod", "cpu_cores", "")
UID = "0f8fad5b-d9cb-469f-a165-70867728950e"


def body(*series: tuple[dict[str, str], list[Any]], **more: Any) -> bytes:
    result = [{"metric": metric, "values": values} for metric, values in series]
    data = {"resultType": "matrix", "result": result}
    return json.dumps({"status": "success", "data": data, **more}).encode()


def steps(*texts: str) -> list[list[Any]]:
    """Points of the window, one each 15 s."""
    return [[615 + 15 * at, text] for at, text in enumerate(texts)]


def fetched(*answers: tuple[Query, bytes]) -> FetchedUsage:
    return gather({query: read_matrix(answer) for query, answer in answers}, WINDOW, GRID)


# -- what is asked


def test_every_default_query_is_a_subquery_of_the_window() -> None:
    actual = {query.key: query.text for query in queries({}, GRID)}
    assert actual.keys() == DEFAULT_QUERIES.keys()
    for text in actual.values():
        assert text.startswith("(")
        assert text.endswith("\n)[60s:15s]")
        assert "$1" in text or "$" not in text
    assert "by (instance)" in actual["node.cpu_cores"]
    assert "by (node, namespace, pod, uid)" in actual["pod.cpu_cores"]
    assert "[60s])" in actual["node.cpu_cores"]


def test_own_queries_replace_defaults_and_null_removes_them() -> None:
    own = {
        "node.cpu_cores": "x[$window] # why",
        "pod.cpu_cores": None,
        "node.pressure_cpu_some": "y",
    }
    actual = {query.key: query.text for query in queries(own, GRID)}
    assert [actual.get(key) for key in own] == [
        "(x[60s] # why\n)[60s:15s]", None, "(y\n)[60s:15s]",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "key", ["cpu_cores", "node.cpu", "tier.cpu_cores", "node.cpu_cores_avg", "node.coverage", ""]
)
def test_a_query_of_an_unknown_column_is_a_settings_error(key: str) -> None:
    with pytest.raises(SettingsError, match=r"provider\.queries") as caught:
        queries({key: "up"}, GRID)
    assert "capacity_cpu_cores" in (caught.value.hint or "")


# -- what is answered


def test_nodes_and_pods_get_their_columns() -> None:
    pod = {"node": "n1", "namespace": "web", "pod": "a-0", "uid": UID.replace("-", "_")}
    actual = fetched(
        (CPU, body(({"instance": "n1:9100"}, steps("1", "2", "3", "4")))),
        (MEMORY, body(({"instance": "n1"}, steps("10", "20")))),
        (Query("node", "capacity_cpu_cores", ""), body(({"instance": "n1"}, steps("8", "8")))),
        (POD_CPU, body((pod, steps("0.5")))),
    )
    node = actual.nodes["n1"]
    assert node == node | {
        "cpu_cores_avg": 2.5, "cpu_cores_max": 4, "cpu_cores_last": 4, "cpu_cores_p90": 3,
        "cpu_cores_p95": 3, "memory_bytes_avg": 15, "capacity_cpu_cores": 8, "coverage": 1,
        "points_offset_seconds": [15, 30, 45, 60], "points_memory_bytes": [10, 20, None, None],
    }  # fmt: skip
    assert actual.pods == {
        PodName("web", "a-0", UID, "n1"): {
            "cpu_cores_avg": 0.5, "cpu_cores_last": 0.5, "coverage": 0.25,
        }
    }  # fmt: skip
    assert (actual.bad_values, actual.left_out) == ({}, {})


@pytest.mark.parametrize("text", ["NaN", "+Inf", "-Inf", "-1", "1e300", "", "x", "2e6"])
def test_a_bad_value_is_null_and_counted(text: str) -> None:
    actual = fetched((CPU, body(({"instance": "n1"}, steps("1", text, "3")))))
    assert actual.nodes["n1"]["cpu_cores_avg"] == 2
    assert actual.nodes["n1"]["coverage"] == 0.5
    assert actual.bad_values == {"node.cpu_cores": 1}


def test_only_bad_values_leave_usage_unknown() -> None:
    actual = fetched((CPU, body(({"instance": "n1"}, steps("NaN", "NaN")))))
    assert actual.nodes["n1"].keys().isdisjoint({"cpu_cores_avg", "coverage"})


@pytest.mark.parametrize(
    "others",
    [
        # Prometheus 2 gives the start of a range, too; a server whose clock is off gives anything.
        [[600, "9"], [660.001, "9"], [4e9, "9"], [-5, "9"]],
        *([[time, "9"]] for time in (1e308, -1e308, 1e306, 2**63, -1.0)),
    ],
)
def test_points_of_the_window_count_in_the_order_of_time(others: list[list[Any]]) -> None:
    answer = body(({"instance": "n1"}, [*others, [660, "3"], [615, "1"]]))
    node = fetched((CPU, answer)).nodes["n1"]
    assert (node["cpu_cores_avg"], node["coverage"], node["cpu_cores_last"]) == (2, 0.5, 3)


def test_two_series_of_a_node_are_both_dropped() -> None:
    actual = fetched(
        (CPU, body(({"instance": "n1:1"}, steps("1")), ({"instance": "n1:2"}, steps("2")),
                   ({"instance": "n2"}, steps("3")))),
    )  # fmt: skip
    assert actual.nodes.keys() == {"n2"}
    assert actual.left_out == {"two series": 1}


@pytest.mark.parametrize("label", ["", "[::1]:9100", "UPPER", "a b", "x" * 300])
def test_a_label_that_names_no_node_is_counted(label: str) -> None:
    actual = fetched((CPU, body(({"instance": label}, steps("1")), ({}, steps("1")))))
    assert actual.nodes == {}
    assert actual.left_out == {"names nobody": 2}


@pytest.mark.parametrize(
    ("metric", "name"),
    [
        ({"node": "n1", "namespace": "s", "pod": "p"}, PodName("s", "p", "", "n1")),
        ({"namespace": "s", "pod": "p"}, PodName("s", "p", "", "")),
        ({"node": "n1", "uid": UID}, PodName("", "", UID, "n1")),
        ({"node": "n1", "pod": "p"}, None),
        ({"node": "n1"}, None),
        ({"node": "n1", "uid": 'a"b'}, None),
        ({"node": "n1", "namespace": "s", "pod": "p", "uid": 'a"b'}, PodName("s", "p", "", "n1")),
        ({"node": "[::1]", "namespace": "s", "pod": "p"}, PodName("s", "p", "", "")),
    ],
)
def test_labels_identify_a_pod(metric: dict[str, str], name: PodName | None) -> None:
    actual = fetched((POD_CPU, body((metric, steps("1")))))
    assert list(actual.pods) == ([] if name is None else [name])


def test_pods_are_unknown_if_no_pod_query_was_answered() -> None:
    assert not fetched((CPU, body())).knows_pods
    assert fetched((CPU, body()), (POD_CPU, body())).knows_pods


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"null",
        b"[]",
        b"<html>busy</html>",
        b"\xff\xfe",
        body(({"instance": "n1"}, steps("1")))[:-9],
        b'{"status":"success"}',
        b'{"status":"success","data":{"resultType":"vector","result":[]}}',
        b'{"status":"success","data":{"resultType":"matrix","result":{}}}',
        body(({"instance": "n1"}, [[615, 1]])),  # a number where a text is due
        body(({"instance": "n1"}, [["615", "1"]])),
        body(({"instance": "n1"}, [[615]])),
        b'{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"a":1}}]}}',
        b'{"status":"success","data":{"resultType":"matrix","result":' + b"[" * 100_000,
    ],
    ids=range(14),
)
def test_an_invalid_answer_is_an_error(answer: bytes) -> None:
    with pytest.raises(SampleSourceError):
        read_matrix(answer)


def test_the_text_of_an_error_is_reported() -> None:
    stated = b'{"status":"error","errorType":"bad_data","error":"1:3: parse error"}'
    with pytest.raises(SampleSourceError, match="bad_data: 1:3: parse error"):
        read_matrix(stated)
    assert error_text(stated) == "bad_data: 1:3: parse error"
    assert error_text(b"upstream is gone\n") == "upstream is gone"


def test_warnings_are_returned_and_histograms_are_ignored() -> None:
    answer = json.loads(body(warnings=["partial"]))
    answer["data"]["result"] = [{"metric": {"instance": "n1"}, "histograms": [[615, {}]]}]
    assert read_matrix(json.dumps(answer).encode()).warnings == ("partial",)
    assert gather({CPU: read_matrix(json.dumps(answer).encode())}, WINDOW, GRID).nodes["n1"] == {
        "points_offset_seconds": [], "points_cpu_cores": [], "points_memory_bytes": [],
    }  # fmt: skip


_texts = st.one_of(st.floats().map(str), st.text(max_size=5))
_labels = st.dictionaries(
    st.sampled_from(["instance", "node", "namespace", "pod", "uid"]), st.text(max_size=6)
)
_values = st.lists(st.tuples(st.floats(590, 670), _texts), max_size=6)


@given(st.lists(st.tuples(_labels, _values), max_size=5))
def test_any_answer_gives_finite_usage_of_named_entities(
    series: list[tuple[dict[str, str], list[tuple[float, str]]]],
) -> None:
    answer = body(*((labels, [list(value) for value in values]) for labels, values in series))
    actual = fetched((CPU, answer), (POD_CPU, answer))
    for columns in (*actual.nodes.values(), *actual.pods.values()):
        for value in columns.values():
            flat = value if isinstance(value, list) else [value]
            assert all(one is None or (math.isfinite(one) and one >= 0) for one in flat)
    assert all(actual.nodes)
    assert len(actual.pods) + actual.left_out.total() <= 2 * len(series)


@given(st.binary(max_size=60))
def test_any_bytes_are_an_answer_or_an_error(data: bytes) -> None:
    try:
        assert isinstance(read_matrix(data), Matrix)
    except SampleSourceError as error:
        assert error.message


# -- gauges

CONNTRACK = "example.com/conntrack"


def test_a_query_under_the_name_of_a_resource_brings_a_gauge() -> None:
    *_, query = queries({f"node.{CONNTRACK}": "max by ($node) (conntrack)"}, GRID)
    assert (query.entity, query.column) == ("node", CONNTRACK)
    answer = body(({"instance": "n1:9100"}, steps("100", "NaN", "-1", "300")))
    usage = fetched((query, answer))
    assert usage.nodes == {"n1": {CONNTRACK: 200.0} | NO_POINTS}
    assert usage.bad_values == {f"node.{CONNTRACK}": 2}


@pytest.mark.parametrize("text", ["1e308", "+Inf", "NaN", "-3", "no number"])
def test_an_impossible_gauge_is_unknown(text: str) -> None:
    usage = fetched((Query("node", CONNTRACK, ""), body(({"instance": "n1"}, steps(text)))))
    assert usage.nodes == {"n1": NO_POINTS}


@pytest.mark.parametrize(
    "keys",
    [
        [f"pod.{CONNTRACK}"],
        ["node.springtide.io/network-receive"],
        ["node.example.com/" + "x" * 10_000],
        [f"node.example.com/{number}" for number in range(9)],
    ],
    ids=["of a pod", "a rate", "10 kB", "nine"],
)
def test_gauges_that_workers_would_ignore_are_refused(keys: list[str]) -> None:
    with pytest.raises(SettingsError) as error:
        queries(dict.fromkeys(keys, "up"), GRID)
    assert error.value.key == "provider.queries"
    assert len(error.value.message) < 300
