"""Vector groups of load-watcher's interface.

What each passes through:

- `load_watcher_json`: `processors.load_watcher`, both ways, with what Trimaran's plugins read.
- `load_watcher_window_fallback`: `served_window`, by which the table chooses.
- `load_watcher_http`: the extender itself, over a table of these nodes, asked by HTTP.
"""

import asyncio
import json
from typing import Any

from aiohttp.test_utils import TestClient, TestServer

from pipeline.clock import ManualClock
from pipeline.extender.server import Extender
from pipeline.processors.load_watcher import (
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
from pipeline.settings import ExtenderSettings
from pipeline.table import FeedState
from pipeline.topics.resources import Usage
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


DIFFERENCES = {"load_watcher_window_fallback": _further_down}

ADAPTERS = {
    function.__name__: function
    for function in (load_watcher_json, load_watcher_window_fallback, load_watcher_http)
}
