"""Predicted peaks of a node over a recent range."""

from typing import Any

import pytest

from pipeline.clock import ManualClock
from pipeline.extender.series_api import NodeSeriesHandler
from pipeline.processors.console.peak_history import STEP_SECONDS
from pipeline.table import FeedState
from pipeline.table.usage_history import History
from pipeline.times import format_time
from pipeline.topics.resource_amounts import Usage
from tests.extender.conftest import Client, Start
from tests.table.records import NOW

BEGIN = NOW // STEP_SECONDS * STEP_SECONDS
URL = "/v1/nodes/a/peaks"


@pytest.fixture
def history() -> History:
    """Three steps of node a, of which the middle one is unknown."""
    history = History()
    for back, peak in ((2, 1.25), (0, 3.0)):
        usage = Usage(cpu_cores=0.7, memory_bytes=2.0**30)
        peaks = {"percentile": Usage(cpu_cores=peak), "vpa": Usage(memory_bytes=2.0**31)}
        history.put("a", BEGIN - back * STEP_SECONDS, usage, peaks=peaks)
    return history


@pytest.fixture
async def client(start: Start, history: History) -> Client:
    state, clock = FeedState(caught_up=True), ManualClock(NOW)
    return await start(series=NodeSeriesHandler(history, state, clock))


async def get(client: Client, status: int = 200, url: str = URL, **query: Any) -> Any:
    response = await client.get(url, params=query)
    assert response.status == status, await response.text()
    return await response.json()


async def test_steps_are_answered_with_gaps(client: Client) -> None:
    result = await get(client)
    begins = [format_time(BEGIN - back * STEP_SECONDS) for back in (2, 1, 0)]
    assert (result["kind"], result["node"], result["step_seconds"]) == ("NodePeaks", "a", 300)
    assert (result["begin"], result["held_from"]) == (begins, begins[0])
    assert result["usage"] == {
        "cpu_cores": [0.7, None, 0.7], "memory_bytes": [2**30, None, 2**30],
    }  # fmt: skip
    assert result["peaks"]["percentile"]["cpu_cores"] == [1.25, None, 3.0]
    assert result["peaks"]["percentile"]["memory_bytes"] == [None, None, None]
    assert result["peaks"]["vpa"]["memory_bytes"] == [2**31, None, 2**31]
    last = await get(client, last=30, resource="cpu")
    assert (last["begin"], last["held_from"]) == (begins[-1:], begins[0])
    assert last["peaks"] == {"percentile": {"cpu_cores": [3.0]}, "vpa": {"cpu_cores": [None]}}


async def test_an_unchanged_document_is_not_sent_again(client: Client, history: History) -> None:
    first = await client.get(URL)
    tag = {"If-None-Match": first.headers["ETag"]}
    assert (await client.get(URL, headers=tag)).status == 304
    assert (await client.get(URL, headers={"If-None-Match": "*"})).status == 304
    history.put("a", BEGIN + 30.0, Usage(cpu_cores=0.9))
    assert (await client.get(URL, headers=tag)).status == 200
    plain = await client.get(URL, headers={"Accept-Encoding": "identity"})
    assert await plain.read() == await (await client.get(URL)).read()


@pytest.mark.parametrize(
    ("query", "says"),
    [({"last": "0"}, "last is '0'"), ({"step": "5"}, "no parameter 'step'"),
     ({"resource": "disk"}, "no resource 'disk'")],
)  # fmt: skip
async def test_an_invalid_range_is_a_bad_request(
    client: Client, query: dict[str, str], says: str
) -> None:
    assert says in (await get(client, 400, **query))["Error"]


async def test_unknown_nodes_and_a_history_that_is_read(client: Client, start: Start) -> None:
    reply = await get(client, 404, "/v1/nodes/b/peaks")
    assert reply["Error"] == "node 'b' has no prediction in memory"
    assert (await (await start()).get(URL)).status == 503
