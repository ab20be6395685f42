"""NodeMetric statuses report the newest window of each node."""

import asyncio
import sys
from itertools import pairwise
from typing import Any

import pytest

from actuators.cluster.node_metric_objects import NodeMetricObjects
from pipeline.errors import ApiRefusedError
from pipeline.times import format_time
from pipeline.topics.node_state import AggregatedUsage, NodeStateRecord
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.overcommit_policy import Overcommit
from pipeline.topics.registry import NODE_STATE, NODES, WINDOWS
from pipeline.topics.resource_amounts import Usage
from pipeline.topics.windows import Window, departure, retraction
from tests.actuators.contexts import FeatureWorld
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


def window(end: int, pods: int, machine: str = "m1", **node: float) -> Window:
    rows = [
        pod_row(f"p{number}", cpu_cores_avg=float(end), memory_bytes_avg=1e9)
        for number in range(pods)
    ]
    of = header(end=end, machine_id=machine)
    return logged(joined(NODE_ROW | node, *rows, view=view_of(*PODS), of=of))


class World(FeatureWorld):
    """The feature alone, with a fake API server on which `node-1` has a NodeMetric."""

    def __init__(self, **colocation: Any) -> None:
        super().__init__(node_metrics=True)
        self.context.node_uids["node-1"] = "uid"
        self.decider = self.metrics = NodeMetricObjects(self.context)
        self.learn_policy(**colocation)
        (follower,) = self.metrics.watches.values()
        follower.observed(self.api.put("node-1", spec={}))

    def learn_policy(self, host_apps: dict[str, str] | None = None, **colocation: Any) -> None:
        record = NodeRecord(
            node="node-1", uid="uid", overcommit=Overcommit(), colocation=colocation,
            host_apps=host_apps or {},
        )  # fmt: skip
        self.metrics.learn(NODES, "node-1", record)

    def learn_window(self, window: Window) -> None:
        self.metrics.learn(WINDOWS, window.header.node, window)

    def learn_state(self, end: int, node: str = "node-1", **fields: Any) -> None:
        """The node state as of the end of window `end`."""
        record = NodeStateRecord(
            node=node, as_of=format_time(END_MS / 1000 + 30 * end), generation=1, offset=end,
            epoch=1, window_seconds=30, coverage=1.0, **fields,
        )  # fmt: skip
        self.metrics.learn(NODE_STATE, node, record)

    async def patches(self, seconds: float = 2.0, *, sweep: bool = False) -> list[Any]:
        """Decide and write for a while; returns the bodies of the status patches."""
        requests = await self.settle(seconds, sweep=sweep)
        return [request.body for request in requests if request.path.endswith("/status")]


async def report(*windows: Window) -> Any:
    """The status that is written after these windows."""
    world = World()
    for window in windows:
        world.learn_window(window)
    world.learn_state(100)
    (patch,) = await world.patches(sweep=True)
    return patch[0]["value"]


async def test_a_late_window_or_one_of_another_machine_is_not_reported() -> None:
    usual = await report(window(5, 3))
    assert len(usual["podsMetric"]) == 3
    for other in (window(3, 2), window(6, 2, machine="m2")):
        assert await report(window(5, 3), other) == usual


async def test_an_end_of_the_node_before_its_last_window_is_ignored() -> None:
    usual = await report(window(4, 3), window(5, 3))
    old = retraction("node-1", window(5, 3).appended_ms - 3_600_000)
    assert await report(window(4, 3), window(5, 3), old) == usual
    world = World()
    for record in (window(5, 3), departure("node-1", END_MS)):
        world.learn_window(record)
    world.learn_state(100)
    assert await world.patches(sweep=True) == []


def test_nothing_remains_of_the_policy_of_a_deleted_node() -> None:
    world, host_apps = World(), {"nginx": "prod"}
    before = sys.getrefcount(host_apps)
    world.learn_policy(host_apps=host_apps)
    world.metrics.learn(NODES, "node-1", None)
    assert sys.getrefcount(host_apps) == before


def test_between_sweeps_only_changed_nodes_are_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Examining all of ten thousand nodes five times a second took a quarter of a core."""
    world = World()
    world.metrics.decide(everything=False)
    examined: list[str] = []

    def is_due(name: str, _: Window) -> bool:
        examined.append(name)
        return False

    monkeypatch.setattr(world.metrics, "is_due", is_due)

    def examined_by_decide(*, everything: bool = False) -> list[str]:
        examined.clear()
        world.metrics.decide(everything=everything)
        return sorted(examined)

    names = [f"node-{number}" for number in range(100)]
    for name in names:
        world.learn_window(logged(joined(NODE_ROW, of=header(node=name))))
    assert examined_by_decide() == sorted(names)
    assert examined_by_decide() == []
    world.learn_window(logged(joined(NODE_ROW, of=header(node="node-7", end=1))))
    world.learn_window(logged(joined(NODE_ROW, of=header(node="node-8", end=-1))))
    world.learn_state(0, node="node-3")
    assert examined_by_decide() == ["node-3", "node-7"]
    assert examined_by_decide(everything=True) == sorted(names)
    assert examined_by_decide() == []


async def test_a_failed_report_is_repeated() -> None:
    world = World()
    world.learn_window(window(1, 1))
    world.learn_state(1)
    world.api.failures["PATCH"] = ApiRefusedError("busy")

    async def recover() -> None:
        await world.clock.sleep(1.0)
        del world.api.failures["PATCH"]

    recovery = asyncio.create_task(recover())
    assert len(await world.patches(8.0)) == 2
    assert recovery.done()


async def test_any_duration_up_to_an_hour_is_reported_and_an_unmeasured_one_without_usage() -> None:
    """As koordlet reports a duration without data. Without readings, as from providers, percentiles
    follow from windows."""
    durations = ["7m", "1.5s", "5m0s", "10m", "30m", "61m"]
    world = World(metricAggregatePolicy={"durations": durations})
    for end in range(14):
        world.learn_window(window(end, 1, cpu_cores_avg=float(end), cpu_cores_p95=2.0 * end))
    five = AggregatedUsage(avg=Usage(cpu_cores=1.0, memory_bytes=1024.0))
    world.learn_state(14, aggregated={"5m": five, "10m": AggregatedUsage()})
    (patch,) = await world.patches(1.0)
    usages = list(patch[0]["value"]["nodeMetric"]["aggregatedNodeUsages"])
    every = ["avg", "p50", "p90", "p95", "p99"]
    assert [(usage["duration"], sorted(usage.get("usage", ()))) for usage in usages] == [
        ("1.5s", []), ("5m0s", ["avg"]), ("7m0s", every), ("10m0s", every), ("30m0s", []),
        ("1h1m0s", []),
    ]  # fmt: skip
    assert usages[1]["usage"]["avg"]["resources"] == {"cpu": "1", "memory": "1Ki"}
    # Windows 0 to 13, of which each counts half as its average, 40% as its p95 for want of a p90.
    seven = {name: usage["resources"]["cpu"] for name, usage in usages[2]["usage"].items()}
    assert seven == {"avg": "6500m", "p50": "8", "p90": "22", "p95": "24", "p99": "26"}


async def test_percentiles_of_the_system_are_reported_for_the_durations_of_the_policy() -> None:
    world = World()
    system = {
        "kind": "tier", "id": "system", "coverage": 1.0, "memory_bytes_avg": 2e9,
        "memory_bytes_max": 3e9, "cpu_cores_avg": 0.5, "cpu_cores_p90": 0.75, "cpu_cores_p95": 1.0,
        "cpu_cores_max": 2.0,
    }  # fmt: skip
    for end in range(5):
        world.learn_window(logged(joined(NODE_ROW, system, of=header(end=end))))
    world.learn_state(5)
    (patch,) = await world.patches(1.0)
    five, ten, half_hour = patch[0]["value"]["nodeMetric"]["aggregatedSystemUsages"]
    assert [ten, half_hour] == [{"duration": "10m0s"}, {"duration": "30m0s"}]
    assert five["duration"] == "5m0s"
    cpu = {name: usage["resources"]["cpu"] for name, usage in five["usage"].items()}
    assert cpu == {"avg": "500m", "p50": "500m", "p90": "750m", "p95": "1", "p99": "2"}
    assert five["usage"]["p99"]["resources"]["memory"] == "3000000000"


async def test_host_applications_are_reported_with_class_and_qos() -> None:
    world = World()
    world.learn_policy(host_apps={"nginx": "prod"})
    row = {"kind": "host_app", "coverage": 1.0, "cpu_cores_avg": 1.0, "memory_bytes_avg": 1e9}
    apps = [row | {"id": "nginx", "qos": "LS"}, row | {"id": "other", "qos": "Tomorrow"}]
    world.learn_window(logged(joined(NODE_ROW, *apps, of=header())))
    world.learn_state(1)
    (patch,) = await world.patches(1.0)
    usage = {"resources": {"cpu": "1", "memory": "1000000000"}}
    assert list(patch[0]["value"]["hostApplicationMetric"]) == [
        {"name": "nginx", "usage": usage, "priority": "koord-prod", "qos": "LS"},
        {"name": "other", "usage": usage},
    ]


@pytest.mark.parametrize(
    ("asked", "window_seconds", "gaps"),
    [
        (45, 45, {45}),
        (90, 90, {90}),
        (180, 180, {180}),
        (600, 300, {600}),
        # Windows of a provider or of a node whose exporter has not read the policy yet.
        (45, 30, {30, 60}),
        (70, 30, {60, 90}),
    ],
)
async def test_reports_come_at_the_interval_that_was_asked_on_average(
    asked: int, window_seconds: int, gaps: set[int]
) -> None:
    world = World(metricReportIntervalSeconds=asked)
    reported = []
    for end_ms in range(END_MS, END_MS + 20 * asked * 1000 + 1, window_seconds * 1000):
        of = header(window_start_ms=end_ms - window_seconds * 1000, window_end_ms=end_ms)
        world.learn_window(logged(joined(NODE_ROW, of=of)))
        world.learn_state((end_ms - END_MS) // 30_000 + 1)
        if await world.patches(1.0):
            reported.append(end_ms // 1000)
    assert {b - a for a, b in pairwise(reported)} == gaps
    assert (reported[-1] - reported[0]) / (len(reported) - 1) == pytest.approx(asked, rel=0.03)


async def test_a_shorter_interval_applies_at_once() -> None:
    world = World(metricReportIntervalSeconds=600)
    world.learn_window(window(0, 1))
    world.learn_state(100)
    assert len(await world.patches(1.0)) == 1
    world.learn_policy(metricReportIntervalSeconds=30)
    world.learn_window(window(1, 1))
    assert len(await world.patches(1.0)) == 1
