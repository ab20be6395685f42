"""Lists of metrics.k8s.io, valid and invalid."""

import json
import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import SampleSourceError
from pipeline.processors.imported_usage.fetched_usage import FetchedUsage, PodName, TimeWindow
from pipeline.processors.imported_usage.metrics_api import Reading, Readings, gather, read_list
from pipeline.times import format_time

WINDOW = TimeWindow(600_000, 660_000)


def node(name: str = "n1", at: float = 630, window: str = "15s", **usage: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "creationTimestamp": format_time(at)},
        "timestamp": format_time(at),
        "window": window,
        "usage": usage or {"cpu": "1500m", "memory": "2Gi"},
    }


def pod(name: str = "p", at: float = 630, *usages: dict[str, str]) -> dict[str, Any]:
    containers = [{"name": f"c{i}", "usage": usage} for i, usage in enumerate(usages)]
    return {
        "metadata": {"name": name, "namespace": "s"},
        "timestamp": format_time(at),
        "window": "20.05s",
        "containers": containers,
    }


def listed(kind: str, *items: Any) -> bytes:
    document = {
        "kind": kind,
        "apiVersion": "metrics.k8s.io/v1beta1",
        "metadata": {},
        "items": items,
    }
    return json.dumps(document).encode()


def nodes(*items: Any) -> bytes:
    return listed("NodeMetricsList", *items)


def pods(*items: Any) -> bytes:
    return listed("PodMetricsList", *items)


def after(*bodies: bytes, window: TimeWindow = WINDOW) -> FetchedUsage:
    """Usage of a window after these lists were told, one after the other."""
    of_nodes, of_pods = Readings[str](), Readings[PodName]()
    for body in bodies:
        result = read_list(body)
        of_nodes.put(result.nodes)
        of_pods.put(result.pods)
    return gather(of_nodes, of_pods, window)


def test_quantities_are_those_of_metrics_server() -> None:
    result = read_list(nodes(node(cpu="123456789n", memory="12Ki")))
    assert result.nodes == {"n1": Reading(630_000, 15.0, 0.123456789, 12288.0)}
    usages = (
        {"cpu": "3u", "memory": "1Mi"},
        {"cpu": "0", "memory": "0"},
        {"cpu": "1", "memory": "1"},
    )
    result = read_list(pods(pod("p", 630, *usages)))
    assert result.pods == {PodName("s", "p"): Reading(630_000, 20.05, 1.000003, 1048577.0)}


def test_the_readings_of_a_window_are_its_samples() -> None:
    readings = [nodes(node(at=600 + 15 * i, cpu=f"{i}", memory="1Gi")) for i in range(1, 6)]
    columns = after(*readings).nodes["n1"]
    assert columns == columns | {
        "cpu_cores_avg": 2.5, "cpu_cores_p90": 3, "cpu_cores_max": 4, "cpu_cores_last": 4,
        "memory_bytes_max": 2**30, "memory_with_hot_page_cache_bytes_max": 2**30, "coverage": 1,
        "points_offset_seconds": [15, 30, 45, 60],
    }  # fmt: skip
    assert "memory_with_page_cache_bytes_avg" not in columns


def test_one_reading_gives_only_an_average() -> None:
    columns = after(pods(pod("p", 630, {"cpu": "1", "memory": "1"}))).pods[PodName("s", "p")]
    assert columns == {
        "cpu_cores_avg": 1, "cpu_cores_last": 1, "coverage": 20.05 / 60,
        "memory_bytes_avg": 1, "memory_bytes_last": 1,
        "memory_with_hot_page_cache_bytes_avg": 1, "memory_with_hot_page_cache_bytes_last": 1,
    }  # fmt: skip


def test_longer_readings_weigh_more() -> None:
    result = after(nodes(node(at=610, window="10s", cpu="4", memory="1")),
                  nodes(node(at=640, window="30s", cpu="0", memory="1")))  # fmt: skip
    assert result.nodes["n1"]["cpu_cores_avg"] == 1
    assert result.nodes["n1"]["coverage"] == 40 / 60


def test_a_reading_that_began_before_the_window_covers_its_part() -> None:
    result = after(nodes(node(at=605, window="1m0s", cpu="1", memory="1")))
    assert result.nodes["n1"]["coverage"] == 5 / 60


def test_a_repeated_reading_counts_once() -> None:
    once, twice = nodes(node(at=630)), nodes(node(at=630, cpu="9", memory="1"))
    assert after(once, twice).nodes == after(once).nodes
    # Of two servers one may be behind.
    assert after(nodes(node(at=645)), once).nodes == after(nodes(node(at=645))).nodes


def test_stale_readings_and_those_of_a_clock_that_is_ahead_are_left_out() -> None:
    items = node("old", 600), node("older", 1), node("ahead", 661), node("now", 660)
    result = after(nodes(*items))
    assert result.nodes.keys() == {"now"}
    assert result.left_out == {"stale": 2, "ahead": 1}
    # What was ahead has its own window.
    later = after(nodes(*items), window=TimeWindow(660_000, 720_000))
    assert later.nodes.keys() == {"ahead"}


def test_readings_are_forgotten() -> None:
    readings = Readings[str]()
    readings.put({"a": Reading(1, 1, 1, 1), "b": Reading(5, 1, 1, 1)})
    readings.forget(1)
    counted: Counter[str] = Counter()
    assert [name for name, _ in readings.within(TimeWindow(0, 10), counted)] == ["b"]
    assert not counted


@pytest.mark.parametrize(
    "item",
    [
        {}, None, 7, {**node(), "timestamp": "yesterday"}, {**node(), "timestamp": None},
        {**node(), "window": "0s"}, {**node(), "window": "soon"}, {**node(), "window": 15},
        {**node(), "metadata": {}}, node("UPPER"), node(""), node(cpu="1 core", memory="1"),
        node(cpu="1", memory="9e9999"), {**node(), "usage": []},
    ],
    ids=range(14),
)  # fmt: skip
def test_an_unreadable_item_is_skipped_and_counted(item: Any) -> None:
    result = read_list(nodes(node("good"), item))
    assert result.nodes.keys() == {"good"}
    assert result.left_out == {"unreadable": 1}


def test_an_impossible_amount_is_unknown_and_counted() -> None:
    result = read_list(nodes(node("a", cpu="1", memory="9e99")))
    assert result.nodes["a"][2:] == (1.0, None)
    assert +result.bad_values == {"node.memory_bytes": 1}


def test_a_pod_needs_its_name_and_all_of_its_containers() -> None:
    whole = {"cpu": "1", "memory": "1"}
    nameless = {**pod(), "metadata": {"name": "p"}}
    result = read_list(pods(pod("part", 630, whole, {"cpu": "1"}), pod("none", 630), nameless))
    assert result.pods == {
        PodName("s", "part"): Reading(630_000, 20.05, 2, None),
        PodName("s", "none"): Reading(630_000, 20.05, None, None),
    }
    assert (result.left_out, +result.bad_values) == ({"unreadable": 1}, {})


def test_a_negative_or_absurd_amount_is_null_and_counted() -> None:
    result = read_list(nodes(node("a", cpu="-1", memory="1"), node("b", cpu="2M", memory="1")))
    assert result.nodes["a"].cpu_cores is result.nodes["b"].cpu_cores is None
    assert result.nodes["a"].memory_bytes == 1
    assert +result.bad_values == {"node.cpu_cores": 2}
    negative = {"cpu": "-1", "memory": "1"}
    result = read_list(pods(pod("p", 630, {"cpu": "5", "memory": "1"}, negative)))
    assert result.pods[PodName("s", "p")].cpu_cores is None


@pytest.mark.parametrize(
    "body",
    [
        b"", b"null", b"[]", b"\xff", nodes(node())[:-5], b'{"kind":"Status","message":"no"}',
        b'{"items":[]}', b'{"kind":"NodeMetricsList","items":7}', b'{"kind":"NodeList","items":[]}',
    ],
    ids=range(9),
)  # fmt: skip
def test_an_answer_that_is_not_a_list_is_an_error(body: bytes) -> None:
    with pytest.raises(SampleSourceError):
        read_list(body)


def test_an_empty_list_has_no_readings() -> None:
    assert read_list(nodes()).nodes == {}
    assert read_list(b'{"kind":"PodMetricsList","items":null}').pods == {}


_spans = st.lists(
    st.tuples(st.integers(590, 670), st.integers(1, 90), st.floats(0, 1e4)), max_size=8
)


@given(_spans)
def test_any_readings_give_shares_and_averages_in_range(
    spans: list[tuple[int, int, float]],
) -> None:
    bodies = [
        nodes(node(at=time, window=f"{seconds}s", cpu=f"{cores:.6f}", memory="1"))
        for time, seconds, cores in spans
    ]
    result = after(*bodies)
    for columns in result.nodes.values():
        assert 0 < columns["coverage"] <= 1
        cores = [c for c in columns["points_cpu_cores"] if c is not None]
        assert min(cores) - 1e-9 <= columns["cpu_cores_avg"] <= max(cores) + 1e-9
        assert math.isclose(columns["cpu_cores_last"], cores[-1])
        assert columns["points_offset_seconds"] == sorted(set(columns["points_offset_seconds"]))
