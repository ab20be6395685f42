"""Usage of a node over a recent range."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.clock import ManualClock
from pipeline.extender.series_api import NodeSeriesHandler
from pipeline.processors.explain.usage_series import statistics_of
from pipeline.table import FeedState
from pipeline.table.pod_history import PodHistory
from pipeline.table.usage_history import History
from pipeline.times import format_time
from pipeline.topics.resource_amounts import Usage
from tests.extender.conftest import Client, Start
from tests.processors.joined import (
    END_MS,
    NODE_ROW,
    header,
    joined,
    known_pod,
    logged,
    pod_row,
    view_of,
)
from tests.table.records import NOW

ENDS = [NOW - 30.0 * back for back in range(10, -1, -1)]


@pytest.fixture
async def client(start: Start) -> Client:
    """Eleven windows of node a: cores 0 to 10, the memory of the third not known."""
    history, clock = History(), ManualClock(NOW)
    for i, end in enumerate(ENDS):
        history.put("a", end, Usage(cpu_cores=float(i), memory_bytes=None if i == 2 else 100.0 * i))
    return await start(series=NodeSeriesHandler(history, FeedState(caught_up=True), clock))


async def get(client: Client, status: int = 200, node: str = "a", **query: Any) -> Any:
    response = await client.get(f"/v1/nodes/{node}/series", params=query)
    assert response.status == status, await response.text()
    return await response.json()


async def test_without_a_range_all_windows_are_answered(client: Client) -> None:
    result = await get(client)
    assert (result["kind"], result["node"], result["now"]) == ("NodeSeries", "a", format_time(NOW))
    assert result["as_of"] == [format_time(end) for end in ENDS]
    assert result["held_from"] == result["as_of"][0]
    memory = [None if i == 2 else 100.0 * i for i in range(11)]
    assert result["usage"] == {"cpu_cores": list(range(11)), "memory_bytes": memory}
    assert result["statistics"]["cpu_cores"] == {
        "points": 11, "avg": 5.0, "p50": 4.0, "p90": 8.0, "p95": 9.0, "p99": 9.0, "max": 10.0,
    }  # fmt: skip
    assert result["statistics"]["memory_bytes"]["points"] == 10


async def test_a_range_may_be_times_or_the_last_seconds(client: Client) -> None:
    times: dict[str, Any] = {"from": format_time(NOW - 90), "to": format_time(NOW - 30)}
    result = await get(client, **times)
    assert result["usage"]["cpu_cores"] == [7.0, 8.0, 9.0]
    assert result["held_from"] == format_time(ENDS[0])
    # A zone is read as such.
    times = {"from": "2023-11-15T00:11:50+02:00", "to": "2023-11-14T22:12:50Z"}
    assert (await get(client, **times))["usage"] == result["usage"]
    result = await get(client, last=60, resource="cpu")
    assert result["usage"] == {"cpu_cores": [8.0, 9.0, 10.0]}
    assert result["statistics"]["cpu_cores"]["avg"] == 9.0
    empty = await get(client, to="2001-01-01T00:00:00Z")
    assert (empty["as_of"], empty["usage"]["cpu_cores"]) == ([], [])
    assert empty["statistics"]["cpu_cores"] == {
        "points": 0, "avg": None, "p50": None, "p90": None, "p95": None, "p99": None, "max": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ({"from": "yesterday"}, "not an RFC 3339 time"),
        ({"to": "2023-11-14T22:12:50"}, "not an RFC 3339 time"),
        ({"from": "2023-11-14T22:12:50Z", "to": "2023-11-14T22:12:49Z"}, "ends before it begins"),
        ({"last": "-1"}, "last is '-1'"),
        ({"last": "nan"}, "last is 'nan'"),
        ({"last": "x"}, "could not convert"),
        ({"last": "5", "to": "2023-11-14T22:12:50Z"}, "neither from nor to"),
        ({"from": "2023-13-14T22:12:50Z"}, "invalid range"),
        ({"resource": "disk"}, "no resource 'disk'"),
        ({"since": "5"}, "no parameter 'since'"),
    ],
)
async def test_an_invalid_range_is_a_bad_request(
    client: Client, query: dict[str, str], says: str
) -> None:
    reply = await get(client, 400, **query)
    assert says in reply["Error"]
    assert "2023-11-14T22:13:30Z" in reply["Hint"]


async def test_a_node_without_windows_is_not_found(client: Client) -> None:
    assert (await get(client, 404, node="b"))["Error"] == "node 'b' has no window in memory"


async def test_until_the_history_is_caught_up_the_answer_is_503(start: Start) -> None:
    assert (await (await start()).get("/v1/nodes/a/series")).status == 503


@given(st.lists(st.floats(0, 1e12) | st.just(float("nan")), max_size=200))
def test_statistics_are_those_of_a_sorted_list(values: list[float]) -> None:
    result = statistics_of(np.array(values))
    known = sorted(value for value in values if value == value)
    assert result.points == len(known)
    if known:
        ranks = [max(len(known) * percent // 100 - 1, 0) for percent in (50, 90, 95, 99)]
        assert [result.p50, result.p90, result.p95, result.p99] == [known[rank] for rank in ranks]
        assert result.max == known[-1]
        assert result.avg == pytest.approx(sum(known) / len(known))


@pytest.fixture
async def pod_client(start: Start) -> Client:
    """Three windows of pod shop/web-0 on node-1: 1, 2 and 3 cores."""
    pods = PodHistory(10)
    for end in range(3):
        row = pod_row("u1", cpu_cores_avg=end + 1.0, memory_bytes_avg=64.0)
        view = view_of(known_pod("u1", name="web-0"))
        pods.put(logged(joined(NODE_ROW, row, view=view, of=header(end=end))))
    state, clock = FeedState(caught_up=True), ManualClock(END_MS / 1000 + 60)
    return await start(series=NodeSeriesHandler(History(), state, clock, pods, state))


async def get_pod(client: Client, pod: str, status: int = 200, **query: Any) -> Any:
    response = await client.get(f"/v1/nodes/node-1/pods/{pod}/series", params=query)
    assert response.status == status, await response.text()
    return await response.json()


async def test_the_series_of_a_pod_is_answered_over_a_range(pod_client: Client) -> None:
    result = await get_pod(pod_client, "shop/web-0")
    assert (result["node"], result["pod"]) == ("node-1", "shop/web-0")
    assert result["usage"] == {"cpu_cores": [1.0, 2.0, 3.0], "memory_bytes": [64.0] * 3}
    assert result["statistics"]["cpu_cores"]["avg"] == 2.0
    result = await get_pod(pod_client, "shop/web-0", last=31, resource="cpu")
    assert result["usage"] == {"cpu_cores": [2.0, 3.0]}
    assert result["held_from"] == format_time(END_MS / 1000)
    assert "in memory" in (await get_pod(pod_client, "shop/other", 404))["Error"]
    assert "no parameter" in (await get_pod(pod_client, "shop/web-0", 400, since=1))["Error"]


async def test_without_a_history_of_pods_the_answer_names_the_setting(client: Client) -> None:
    answer = await get_pod(client, "shop/web-0", 404)
    assert "extender.pod_history_windows" in answer["Hint"]
