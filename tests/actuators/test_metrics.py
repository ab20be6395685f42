"""What is reported of a node is of its newest window, whatever else arrives."""

import asyncio
from typing import Any, cast

from actuators.cluster.metrics import NodeMetrics
from actuators.cluster.writing import Budget, Writer
from pipeline.clock import ManualClock
from pipeline.kube.client import Api
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.overcommit import Overcommit
from pipeline.topics.windows import Window
from tests.actuators.fake_api import FakeApi
from tests.processors.joined import NODE_ROW, header, joined, known_pod, logged, pod_row, view_of

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
            metrics.decide()
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
