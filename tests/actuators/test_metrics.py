"""What is reported of a node is of its newest window, whatever else arrives."""

import asyncio
from typing import Any, cast

import pytest

from actuators.cluster.node_metrics import NodeMetrics
from actuators.cluster.write_queue import Budget, Writer
from pipeline.clock import ManualClock
from pipeline.errors import ApiRefusedError
from pipeline.kube.api_client import Api
from pipeline.times import format_time
from pipeline.topics.node_state import AggregatedUsage, NodeStateRecord
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.overcommit_terms import Overcommit
from pipeline.topics.resource_amounts import Usage
from pipeline.topics.windows import Window
from tests.actuators.fake_api import FakeApi
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

PODS = [known_pod(f"p{number}") for number in range(3)]


def window(end: int, pods: int, machine: str = "m1") -> Window:
    rows = [
        pod_row(f"p{number}", cpu_cores_avg=float(end), memory_bytes_avg=1e9)
        for number in range(pods)
    ]
    of = header(end=end, machine_id=machine)
    return logged(joined(NODE_ROW, *rows, view=view_of(*PODS), of=of))


def report(*windows: Window) -> Any:
    """The status that is written after these windows."""
    clock = ManualClock()
    api = FakeApi(clock)
    writer = Writer(Budget(20.0, clock), clock, lambda: True)
    metrics = NodeMetrics(cast(Api, api), writer, lambda _: "uid", "usageWithoutPageCache")
    of = NodeRecord(node="node-1", uid="uid", overcommit=Overcommit(), colocation={})
    metrics.learn_node("node-1", of)
    for one in windows:
        metrics.learn_window(one)

    async def run() -> None:
        task = asyncio.create_task(writer.run())
        for _ in range(10):
            metrics.decide(everything=True)
            # The peaks of a window come after it.
            metrics._known_ms["node-1"] = 2**60
            await clock.advance(0.2)
        assert not task.done()
        task.cancel()

    asyncio.run(run())
    (patch,) = (one.body for one in api.asked if one.path.endswith("/status"))
    return patch[0]["value"]


def test_a_window_that_comes_late_or_from_a_namesake_is_not_reported() -> None:
    usual = report(window(5, 3))
    assert len(usual["podsMetric"]) == 3
    assert report(window(5, 3), window(3, 2)) == usual
    assert report(window(5, 3), window(6, 2, machine="m2")) == usual


def test_between_sweeps_only_nodes_are_looked_at_of_which_something_has_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of ten thousand five times a second took a quarter of a core, for nothing."""
    clock = ManualClock()
    writer = Writer(Budget(20.0, clock), clock, lambda: True)
    metrics = NodeMetrics(
        cast(Api, FakeApi(clock)), writer, lambda _: "uid", "usageWithoutPageCache"
    )
    looked: list[str] = []

    def looks(name: str, _: Window) -> bool:
        looked.append(name)
        return False

    monkeypatch.setattr(metrics, "_is_due", looks)

    def decided(*, everything: bool = False) -> list[str]:
        looked.clear()
        metrics.decide(everything=everything)
        return sorted(looked)

    names = [f"node-{number}" for number in range(100)]
    for name in names:
        metrics.learn_window(logged(joined(NODE_ROW, of=header(node=name))))
    assert decided() == sorted(names)
    assert decided() == []
    metrics.learn_window(logged(joined(NODE_ROW, of=header(node="node-7", end=1))))
    metrics.learn_window(logged(joined(NODE_ROW, of=header(node="node-8", end=-1))))
    as_of = {"as_of": format_time(END_MS / 1000), "generation": 1, "offset": 1, "epoch": 1}
    metrics.learn_state(
        "node-3", NodeStateRecord(node="node-3", window_seconds=30, coverage=1.0, **as_of)
    )
    assert decided() == ["node-3", "node-7"]
    assert decided(everything=True) == sorted(names)
    assert decided() == []


async def test_a_report_that_failed_is_due_again() -> None:
    clock = ManualClock()
    api = FakeApi(clock)
    writer = Writer(Budget(20.0, clock), clock, lambda: True)
    metrics = NodeMetrics(cast(Api, api), writer, lambda _: "uid", "usageWithoutPageCache")
    metrics.learn_node(
        "node-1", NodeRecord(node="node-1", uid="uid", overcommit=Overcommit(), colocation={})
    )
    metrics.objects.see(api.put("node-1", spec={}))
    metrics.learn_window(window(1, 1))
    as_of = {"as_of": format_time(END_MS / 1000 + 30), "generation": 1, "offset": 1, "epoch": 1}
    metrics.learn_state(
        "node-1", NodeStateRecord(node="node-1", window_seconds=30, coverage=1.0, **as_of)
    )
    api.failures["PATCH"] = ApiRefusedError("busy")
    task = asyncio.create_task(writer.run())
    for tick in range(40):
        if tick == 5:
            del api.failures["PATCH"]
        metrics.decide()
        await clock.advance(0.2)
    assert not task.done()
    task.cancel()
    statuses = [one for one in api.asked if one.path.endswith("/status")]
    assert len(statuses) == 2


async def test_a_span_that_is_not_measured_is_there_without_usage() -> None:
    """As koordlet has a duration of which it has no data."""
    clock = ManualClock()
    api = FakeApi(clock)
    writer = Writer(Budget(20.0, clock), clock, lambda: True)
    metrics = NodeMetrics(cast(Api, api), writer, lambda _: "uid", "usageWithoutPageCache")
    spans = {"metricAggregatePolicy": {"durations": ["7m", "1.5s", "5m0s", "10m"]}}
    metrics.learn_node(
        "node-1", NodeRecord(node="node-1", uid="uid", overcommit=Overcommit(), colocation=spans)
    )
    metrics.objects.see(api.put("node-1", spec={}))
    metrics.learn_window(window(1, 1))
    as_of = {"as_of": format_time(END_MS / 1000 + 30), "generation": 1, "offset": 1, "epoch": 1}
    known = {"5m": AggregatedUsage(avg=Usage(cpu_cores=1.0, memory_bytes=1024.0))}
    metrics.learn_state(
        "node-1",
        NodeStateRecord(node="node-1", window_seconds=30, coverage=1.0, aggregated=known, **as_of),
    )
    task = asyncio.create_task(writer.run())
    metrics.decide()
    await clock.advance(1.0)
    assert not task.done()
    task.cancel()
    (body,) = (one.body for one in api.asked if one.path.endswith("/status"))
    assert list(body[0]["value"]["nodeMetric"]["aggregatedNodeUsages"]) == [
        {"duration": "1.5s"},
        {"duration": "5m0s", "usage": {"avg": {"resources": {"cpu": "1", "memory": "1Ki"}}}},
        {"duration": "7m0s"},
        {"duration": "10m0s"},
    ]
