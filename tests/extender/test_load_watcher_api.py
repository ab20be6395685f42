"""load-watcher's interface as Trimaran's Go client uses it, over the table."""

import asyncio
import json
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta

from pipeline.table import Table
from pipeline.table.node_columns import TableNode
from pipeline.topics.node_state import AggregatedUsage, UsageDeviation
from pipeline.topics.resource_amounts import Usage
from tests.extender.conftest import Client, Start
from tests.table.records import GIB, NOW, node_state, table_of

MACHINE = Usage(cpu_cores=8.0, memory_bytes=32 * GIB)


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    """The documented structures: every key there, no other."""


class StrictMetric(Strict):
    name: str
    type: str
    operator: str
    rollup: str
    value: Annotated[float, Meta(ge=0, le=1e15)]


class StrictMetadata(Strict):
    dataCenter: str  # noqa: N815


class StrictNode(Strict):
    metrics: list[StrictMetric]
    tags: dict[str, str]
    metadata: StrictMetadata


class StrictData(Strict):
    NodeMetricsMap: dict[str, StrictNode]


class StrictWindow(Strict):
    duration: str
    start: int
    end: int


class StrictDocument(Strict):
    timestamp: int
    window: StrictWindow
    source: str
    data: StrictData


def usage(cores: float, gib: float) -> Usage:
    return Usage(cpu_cores=cores, memory_bytes=gib * GIB)


def fleet() -> Table:
    spans = {
        span: UsageDeviation(mean=usage(2.0, 8), stdev=usage(0.25, 1)) for span in ("5m", "15m")
    }
    table = table_of(
        node_state("measured", capacity=MACHINE, deviation=spans, aggregated={
            "5m": AggregatedUsage(p95=usage(4.0, 16)), "30m": AggregatedUsage(p95=usage(8.0, 32)),
        }),
        node_state("fresh", cpu=1.0, memory=8 * GIB, capacity=MACHINE, age=20.0),
        node_state("third", cpu=8 / 3, memory=None, capacity=MACHINE),
        node_state("dead", capacity=MACHINE, age=180.0),
        node_state("sizeless"),
    )  # fmt: skip
    labels = {"topology.kubernetes.io/zone": "eu-1a", "pool": "critical-apps"}
    table.put_node(TableNode(node="measured", labels=labels))
    return table


async def got(client: Client, path: str) -> Any:
    response = await client.get(path)
    assert response.status == 200, await response.text()
    assert response.content_type == "application/json"
    return msgspec.json.decode(await response.read(), type=StrictDocument)


async def test_the_document_equals_load_watchers_byte_for_byte(start: Start) -> None:
    """In the order of the fields of upstream's structures, numbers as Go writes them."""
    response = await (await start(table=fleet())).get("/watcher?host=fresh")
    assert await response.text() == (
        '{"timestamp":1700000000,"window":{"duration":"15m","start":1699999080,"end":1699999980},'
        '"source":"springtide","data":{"NodeMetricsMap":{"fresh":{"metrics":['
        '{"name":"cpu","type":"CPU","operator":"Latest","rollup":"","value":12.5},'
        '{"name":"memory","type":"Memory","operator":"Latest","rollup":"","value":25}],'
        '"tags":{},"metadata":{"dataCenter":""}}}}}'
    )


async def test_the_document_has_every_fresh_node_as_in_the_table(start: Start) -> None:
    document = await got(await start(table=fleet()), "/watcher")
    nodes = document.data.NodeMetricsMap
    assert list(nodes) == ["fresh", "measured", "sizeless", "third"]
    assert (document.window.duration, document.window.end) == ("15m", int(NOW) - 10)
    values = {(m.type, m.operator, m.rollup): m.value for m in nodes["measured"].metrics}
    assert values == {
        ("CPU", "AVG", "15m"): 25.0, ("CPU", "STD", "15m"): 3.125, ("CPU", "P95", "5m"): 50.0,
        ("Memory", "AVG", "15m"): 25.0, ("Memory", "STD", "15m"): 3.125,
        ("Memory", "P95", "5m"): 50.0,
    }  # fmt: skip
    assert nodes["measured"].tags["pool"] == "critical-apps"
    assert nodes["measured"].metadata.dataCenter == "eu-1a"
    # Of what is unknown there is no metric, and no digit that their parser would drop.
    assert [m.value for m in nodes["third"].metrics] == [33.333333]
    assert nodes["sizeless"].metrics == []


@pytest.mark.parametrize(
    ("window", "spans"), [("5m", {"5m"}), ("10m", {"5m", "10m"}), ("15m", {"5m", "10m", "15m"})]
)
async def test_network_and_disk_are_reported_over_the_window_and_shorter_ones(
    window: str, spans: set[str], start: Start
) -> None:
    spread = {span: UsageDeviation(mean=usage(2.0, 8)) for span in ("5m", "10m", "15m")}
    table = table_of()
    for offset, rate in enumerate([100.0] * 20 + [200.0] * 10):
        rates = {"springtide.io/network-transmit": rate, "springtide.io/disk-read": 7.0}
        age = 30.0 * (30 - offset)
        table.put_state(
            node_state("a", capacity=MACHINE, age=age, offset=offset, rates=rates, deviation=spread)
        )
    document = await got(await start(table=table), f"/watcher?window={window}")
    metrics = [m for m in document.data.NodeMetricsMap["a"].metrics if m.type == "Bandwidth"]
    assert {m.name for m in metrics} == {"network-transmit"}
    assert {m.rollup for m in metrics if m.operator == "AVG"} == spans
    values = {(m.operator, m.rollup): m.value for m in metrics}
    assert (values["Latest", ""], values["AVG", "5m"], values["STD", "5m"]) == (200, 200, 0)
    if window == "15m":
        assert values["AVG", "10m"] == 150
        assert values["AVG", "15m"] == 133.333333
    disk = [m for m in document.data.NodeMetricsMap["a"].metrics if m.type == "Storage"]
    assert {(m.name, m.value) for m in disk if m.operator != "STD"} == {("disk-read", 7)}


@pytest.mark.parametrize(
    ("query", "window", "operator"),
    [("", "15m", "AVG"), ("?window=10m", "5m", "AVG"), ("?window=5m", "5m", "AVG")],
)
async def test_windows_can_be_chosen_and_fall_back(
    query: str, window: str, operator: str, start: Start
) -> None:
    document = await got(await start(table=fleet()), f"/watcher{query}")
    first = document.data.NodeMetricsMap["measured"].metrics[0]
    assert (document.window.duration, first.rollup, first.operator) == (window, window, operator)
    assert document.window.end - document.window.start == {"15m": 900, "5m": 300}[window]


@pytest.mark.parametrize("path", ["/watcher", "/watcher?host=", "/watcher?window=", "/watcher?x=y"])
async def test_these_paths_answer_with_all_nodes(path: str, start: Start) -> None:
    assert len((await got(await start(table=fleet()), path)).data.NodeMetricsMap) == 4


async def test_an_address_may_end_in_a_slash(start: Start) -> None:
    client = await start(table=fleet())
    reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
    writer.write(b"GET //watcher HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200 ")
    body = msgspec.json.decode(answer.partition(b"\r\n\r\n")[2], type=StrictDocument)
    assert len(body.data.NodeMetricsMap) == 4


@pytest.mark.parametrize("path", ["/watcher/fresh", "/watcher?host=fresh"])
async def test_these_paths_answer_with_one_node(path: str, start: Start) -> None:
    assert list((await got(await start(table=fleet()), path)).data.NodeMetricsMap) == ["fresh"]


@pytest.mark.parametrize("host", ["dead", "stranger", "a%20b"])
async def test_an_unknown_node_is_not_found(host: str, start: Start) -> None:
    response = await (await start(table=fleet())).get(f"/watcher?host={host}")
    assert response.status == 404
    assert (await response.text()).startswith("No metrics found for host ")


async def test_an_unknown_window_is_a_bad_request(start: Start) -> None:
    response = await (await start(table=fleet())).get("/watcher?window=30m")
    assert (response.status, "15m, 10m, 5m" in (await response.json())["Hint"]) == (400, True)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_the_method_does_not_matter(method: str, start: Start) -> None:
    assert (await (await start(table=fleet())).request(method, "/watcher")).status == 200


@pytest.mark.parametrize("query", ["", "?window=5m"])
async def test_without_fresh_usage_the_document_has_no_nodes(query: str, start: Start) -> None:
    """After an error the client would keep its last document for ever."""
    for table in (Table(), table_of(node_state("dead", capacity=MACHINE, age=180.0))):
        document = await got(await start(table=table), f"/watcher{query}")
        assert document.data.NodeMetricsMap == {}
        assert document.window.end == document.timestamp == int(NOW)


async def test_before_the_table_is_caught_up_the_answer_is_an_error(start: Start) -> None:
    assert (await (await start(table=fleet(), caught_up=False)).get("/watcher")).status == 500


@pytest.mark.parametrize(
    ("caught_up", "connected", "status"),
    [(True, True, 200), (True, False, 503), (False, True, 503)],
)
async def test_health(caught_up: bool, connected: bool, status: int, start: Start) -> None:
    client = await start(caught_up=caught_up, connected=connected)
    assert (await client.get("/watcher/health")).status == status


async def test_a_whole_fleet_is_read_by_the_documented_structures(start: Start) -> None:
    table = table_of(
        *(
            node_state(f"n{i}", cpu=i / 7, memory=i * 1e9, capacity=MACHINE, deviation={
                "15m": UsageDeviation(mean=usage(i / 11, i / 13), stdev=usage(i / 17, i / 19)),
            })
            for i in range(200)
        )
    )  # fmt: skip
    text = await (await (await start(table=table)).get("/watcher")).text()
    assert "NaN" not in text
    document = msgspec.json.decode(text, type=StrictDocument)
    for name, node in document.data.NodeMetricsMap.items():
        cpu = next(m.value for m in node.metrics if (m.type, m.operator) == ("CPU", "AVG"))
        rows = table.lookup([name])
        mean = table["usage_mean_15m_cpu_cores"][rows] / table["capacity_cpu_cores"][rows] * 100
        assert cpu == pytest.approx(mean.item(), abs=5e-7)
    nodes = json.loads(text)["data"]["NodeMetricsMap"].values()
    values = [metric["value"] for node in nodes for metric in node["metrics"]]
    assert all(len(str(value).partition(".")[2]) <= 6 for value in values)
