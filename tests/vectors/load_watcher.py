"""Groups of load-watcher's interface: the extender, asked by HTTP, and our provider."""

import asyncio
import json
from typing import Any

from aiohttp.test_utils import TestClient, TestServer

from pipeline.clock import ManualClock
from pipeline.extender.scheduler_api import Extender
from pipeline.processors.imported_usage.fetched_usage import TimeWindow
from pipeline.processors.imported_usage.prometheus_answers import gather, read_matrix
from pipeline.processors.imported_usage.promql import QueryGrid, queries
from pipeline.settings import ExtenderSettings
from pipeline.table import FeedState, Table
from pipeline.times import format_time
from pipeline.topics.node_state import NodeStateRecord, UsageDeviation
from pipeline.topics.resource_amounts import RATES, Usage
from tests.vectors.cases import Case, plain
from tests.vectors.runner import Difference, NotBuiltError, group

NOW = 1_700_000_000.0
_WINDOWS = ("15m", "10m", "5m")
_CPU, _MEMORY = 1.0, 2.0**30
_FIELDS = {"AVG": "mean", "STD": "stdev"}


_HTTP = "GET /watcher of the extender"


def _state(name: str, at: float, **more: Any) -> NodeStateRecord:
    """A node of 1 core and 1 GiB."""
    return NodeStateRecord(
        node=name, as_of=format_time(at), generation=1, offset=0, epoch=1, window_seconds=30.0,
        coverage=1.0, capacity=Usage(cpu_cores=_CPU, memory_bytes=_MEMORY), **more,
    )  # fmt: skip


def _percent(cpu: float | None = None, memory: float | None = None) -> Usage:
    return Usage(
        cpu_cores=None if cpu is None else cpu / 100 * _CPU,
        memory_bytes=None if memory is None else memory / 100 * _MEMORY,
    )


def _ask(
    states: list[NodeStateRecord],
    path: str,
    query: dict[str, str],
    now: float = NOW,
    *,
    caught_up: bool = True,
    connected: bool = True,
) -> tuple[int, bytes]:
    async def ask() -> tuple[int, bytes]:
        table = Table()
        for state in states:
            table.put_state(state)
        feed = FeedState(caught_up=caught_up, connected=connected)
        extender = Extender(table, feed, ExtenderSettings(), ManualClock(now))
        async with TestClient(TestServer(extender.app())) as client:
            response = await client.get(path, params=query)
            return response.status, await response.read()

    return asyncio.run(ask())


def _own_names(given: Case, expected: Case) -> Difference | None:
    if given["op"] != "encode":
        return None
    document = json.loads(json.dumps(expected["document"]))
    document["source"] = "springtide"
    nodes = document["data"]["NodeMetricsMap"]
    order = ("AVG", "Latest", "STD")
    for node in nodes.values():
        for metric in node["metrics"]:
            metric["name"] = metric["type"].lower()
        node["metrics"].sort(key=lambda m: (m["type"], order.index(m["operator"])))
    return Difference(
        "metrics are named by their type, and the source is springtide",
        "none: Trimaran's plugins read neither name nor source",
        {"document": document},
    )


@group(_HTTP, differs=_own_names)
def load_watcher_json(case: Case) -> object:
    """The document of nodes whose usage is as the metrics say."""
    if case["op"] != "encode":
        raise NotBuiltError("the product serves these documents, Trimaran's plugins read them")
    snapshot = case["snapshot"]
    duration, end = snapshot["duration"], float(snapshot["end"])
    states = [
        _state(name, end, **_usages(plain(metrics), duration))
        for name, metrics in snapshot["nodes"].items()
    ]
    plain(snapshot["source"])
    query = {"window": duration, "host": snapshot.get("host") or ""}
    _, body = _ask(states, "/watcher", query, float(snapshot["timestamp"]))
    return {"document": json.loads(body)}


def _usages(metrics: list[Case], duration: str) -> Case:
    by_operator: dict[str, dict[str, float]] = {}
    for metric in metrics:
        name = {"CPU": "cpu", "Memory": "memory"}[metric["type"]]
        by_operator.setdefault(metric["operator"], {})[name] = metric["value"]
    spread: dict[str, Any] = {
        field: _percent(**by_operator[operator])
        for operator, field in _FIELDS.items()
        if operator in by_operator
    }
    latest = _percent(**by_operator.get("Latest", {}))
    return {"usage": latest, "deviation": {duration: UsageDeviation(**spread)} if spread else {}}


def _any_step_down(given: Case, expected: Case) -> Difference | None:
    requested, filled = given["requested"], given["windows_with_data"]
    if not expected["error"] or requested not in _WINDOWS:
        return None
    shorter = _WINDOWS[_WINDOWS.index(requested) :]
    # Without any average the latest values are served under the window that was asked for.
    served = next((name for name in shorter if name in filled), requested)
    return Difference(
        "the next shorter window with data answers, however many steps down, or the latest values",
        "a node gets its metrics minutes earlier after a restart",
        {"served": served, "error": False},
    )


@group(_HTTP, differs=_any_step_down)
def load_watcher_window_fallback(case: Case) -> object:
    """The window that the document of a node with data of these windows has."""
    mean = UsageDeviation(mean=_percent(10.0, 10.0), stdev=_percent(1.0, 1.0))
    deviation = dict.fromkeys(case["windows_with_data"], mean)
    states = [_state("n", NOW, usage=_percent(10.0, 10.0), deviation=deviation)]
    status, body = _ask(states, "/watcher", {"window": case["requested"]})
    if status != 200:
        return {"served": None, "error": True}
    return {"served": json.loads(body)["window"]["duration"], "error": False}


@group(_HTTP)
def load_watcher_http(case: Case) -> object:
    usage = _percent(25.0, 25.0)
    states = [_state(name, NOW, usage=usage) for name in case["nodes"]]
    feed = {"caught_up": case["cache_ready"], "connected": case["provider_healthy"]}
    status, body = _ask(states, case["path"], plain(case["query"]), **feed)
    nodes = sorted(json.loads(body)["data"]["NodeMetricsMap"]) if status == 200 and body else None
    return {"status": status, "nodes": nodes}


_GRID = QueryGrid(900, 60, 60, "instance", "node")
_KEYS = {
    "instance:node_cpu:ratio": "node.cpu_cores",
    "instance:node_network_transmit_bytes:rate:sum": "node.network_transmit_bytes_per_second",
}
"""The provider's keys for load-watcher's metrics."""
_RATES = {name: f"{column}_avg" for name, column in RATES.items()}


def _by_points(given: Case, expected: Case) -> Difference | None:
    if given["metric"] not in _KEYS:
        return None
    metric = expected["metric"]
    answer = {"promql": f"({given['metric']}\n)[900s:60s]", "metric": metric | {"name": "cpu"}}
    why = "one subquery fetches the points, from which all statistics are exact"
    effect = "Prometheus answers one query for each metric instead of one for each statistic"
    if metric["type"] != "CPU":
        answer["metric"] = None
        why += "; a rate is not a share of a node, so it is a rate of node states and not served"
        effect += "; Trimaran gets no bandwidth in percent, which upstream computes from bytes"
    return Difference(why, effect, answer)


@group(f"promql.queries, gather, {_HTTP}", differs=_by_points)
def load_watcher_prometheus(case: Case) -> object:
    """What the provider asks Prometheus, and what is served of the answer for a node of 1 core."""
    key = _KEYS.get(case["metric"])
    if key is None:
        raise NotBuiltError("providers read cpu, memory, network and disk, not energy")
    asked = {query.key: query for query in queries({key: case["metric"]}, _GRID)}
    values = [[at, str(case["sample"])] for at in range(60, 901, 60)]
    series = {"metric": {"instance": "n"}, "values": values}
    answer = {"status": "success", "data": {"resultType": "matrix", "result": [series]}}
    matrix = read_matrix(json.dumps(answer).encode())
    used = gather({asked[key]: matrix}, TimeWindow(0, 900_000), _GRID).nodes["n"]
    mean = Usage(cpu_cores=used.get("cpu_cores_avg"))
    spread = UsageDeviation(mean=mean, stdev=Usage(cpu_cores=0.0))
    rates = {name: used[column] for name, column in _RATES.items() if column in used}
    states = [_state("n", NOW, usage=mean, rates=rates, deviation={case["window"]: spread})]
    query = {"window": case["window"], "host": case["host"] or ""}
    operator = case["operator"]
    _, body = _ask(states, "/watcher", query)
    metrics = json.loads(body)["data"]["NodeMetricsMap"]["n"]["metrics"]
    served = [metric for metric in metrics if metric["operator"] == operator]
    return {"promql": asked[key].text, "metric": served[0] if served else None}
