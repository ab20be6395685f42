"""Vector groups of load-watcher's interface.

What each passes through:

- `load_watcher_json`: `processors.load_watcher`, both ways, with what Trimaran's plugins read.
- `load_watcher_window_fallback`: `served_window`, by which the table chooses.
- `load_watcher_http`: the extender itself, over a table of these nodes, asked by HTTP.
- `load_watcher_prometheus`: what our provider asks where the same metrics are named to it
  (`promql.queries`), what it makes of an answer, and the metric that is served of that.
"""

import asyncio
import json
from typing import Any

import msgspec
import numpy as np
from aiohttp.test_utils import TestClient, TestServer

from pipeline.clock import ManualClock
from pipeline.extender.scheduler_api import Extender
from pipeline.processors.exchange.load_watcher_document import (
    Metric,
    NodeMetrics,
    average_of,
    decode,
    document,
    encode,
    latest_of,
    metric,
    served_window,
)
from pipeline.processors.loadaware.usage_thresholds import usage_percent
from pipeline.processors.provided.fetched_usage import Window
from pipeline.processors.provided.prometheus_answers import gather, read_matrix
from pipeline.processors.provided.promql import Grid, queries
from pipeline.settings import ExtenderSettings
from pipeline.table import FeedState
from pipeline.topics.resource_amounts import Usage
from tests.table.records import GIB, NOW, node_state, table_of

Case = dict[str, Any]


def load_watcher_json(case: Case) -> object:
    return _encoded(case["snapshot"]) if case["op"] == "encode" else _decoded(case["document"])


def _encoded(snapshot: Case) -> object:
    nodes = {
        name: NodeMetrics(metrics=tuple(map(_sent, metrics)))
        for name, metrics in snapshot["nodes"].items()
        if name == snapshot.get("host", name)
    }
    found = document(
        nodes, snapshot["duration"], snapshot["end"], snapshot["timestamp"], snapshot["source"]
    )
    return {"document": json.loads(encode(found))}


def _sent(said: Case) -> Metric:
    found = metric(
        said["type"], said["operator"], said.get("rollup", ""), said["value"], said.get("name", "")
    )
    assert found is not None
    return found


def _decoded(tree: Case) -> object:
    found = decode(json.dumps(tree).encode())
    return {
        "window_end_s": found.window.end,
        "nodes": {
            name: {
                "usable": bool(node.metrics),
                "target_load_packing_cpu": latest_of("CPU", node.metrics),
                "cpu": _spread("CPU", node),
                "memory": _spread("Memory", node),
            }
            for name, node in found.data.nodes.items()
        },
    }


def _spread(type: str, node: NodeMetrics) -> object:
    found = average_of(type, node.metrics)
    if found is None:
        return {"avg": 0.0, "std": 0.0, "valid": False}
    return {"avg": found.average, "std": found.deviation, "valid": True}


def load_watcher_window_fallback(case: Case) -> object:
    served = served_window(case["requested"], case["windows_with_data"])
    return {"served": served, "error": served is None}


def load_watcher_http(case: Case) -> object:
    return asyncio.run(_asked(case))


async def _asked(case: Case) -> object:
    whole = Usage(cpu_cores=4.0, memory_bytes=16 * GIB)
    table = table_of(*(node_state(name, capacity=whole) for name in case["nodes"]))
    state = FeedState(caught_up=case["cache_ready"], connected=case["provider_healthy"])
    extender = Extender(table, state, ExtenderSettings(), ManualClock(NOW))
    async with TestClient(TestServer(extender.app())) as client:
        response = await client.get(case["path"], params=case["query"])
        body = await response.read()
    names = None
    if response.status == 200 and body:
        names = sorted(json.loads(body)["data"]["NodeMetricsMap"])
    return {"status": response.status, "nodes": names}


ONE_STEP = "the next shorter window that has data answers, however many steps down it is"


def _further_down(case: Case, expected: Case) -> tuple[str, Case] | None:
    served = served_window(case["requested"], case["windows_with_data"])
    if not expected["error"] or served is None:
        return None
    return ONE_STEP, {"served": served, "error": False}


_QUARTER = Grid(900, 60, 60, "instance", "node")
_KEYS = {
    "instance:node_cpu:ratio": "node.cpu_cores",
    "instance:node_network_transmit_bytes:rate:sum": "node.network_transmit_bytes_per_second",
}
"""Where a user of load-watcher's metrics names them to our provider; of others nothing is made."""


def load_watcher_prometheus(case: Case) -> object:
    """Of a node with one core, so that a share of it is so many cores."""
    key = _KEYS.get(case["metric"])
    if key is None:
        return {"promql": None, "metric": None}
    asked = {query.key: query for query in queries({key: case["metric"]}, _QUARTER)}
    values = [[at, str(case["sample"])] for at in range(60, 901, 60)]
    series = {"metric": {"instance": "n"}, "values": values}
    answer = {"status": "success", "data": {"resultType": "matrix", "result": [series]}}
    matrix = read_matrix(json.dumps(answer).encode())
    used = gather({asked[key]: matrix}, Window(0, 900_000), _QUARTER).nodes["n"]
    served = None
    if "cpu_cores_avg" in used:
        (percent,) = usage_percent(np.array([used["cpu_cores_avg"]]), np.array([1.0])).tolist()
        window, name = case["window"], case["metric"]
        served = metric("CPU", case["operator"], window, percent, name=name)
    return {
        "promql": asked[key].text,
        "metric": None if served is None else msgspec.to_builtins(served),
    }


POINTS = "one subquery gives the points, from which average, deviation and percentiles are exact"
NO_SHARE = f"{POINTS}; bytes are no share of a node: a rate of node states, not a percentage"
NOT_ASKED = "energy is nothing that Springtide goes by: nobody asks for it"


def _asked_by_points(case: Case, expected: Case) -> tuple[str, Case]:
    if case["metric"] not in _KEYS:
        return NOT_ASKED, {"promql": None, "metric": None}
    text = f"({case['metric']}\n)[900s:60s]"
    if expected["metric"]["type"] != "CPU":
        return NO_SHARE, {"promql": text, "metric": None}
    return POINTS, {"promql": text, "metric": expected["metric"]}


DIFFERENCES = {
    "load_watcher_window_fallback": _further_down,
    "load_watcher_prometheus": _asked_by_points,
}

ADAPTERS = {
    function.__name__: function
    for function in (
        load_watcher_json,
        load_watcher_window_fallback,
        load_watcher_http,
        load_watcher_prometheus,
    )
}
