"""NodeMetric and NodeSLO objects on the real API server, from samples on the real broker."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.local.control_plane import ControlPlane
from pipeline.processors.slo.nodemetric import NodeMetric
from pipeline.processors.slo.nodeslo import NodeSLO
from pipeline.settings import Settings
from tests.cluster.exporters import Exporters, usage_of
from tests.cluster.objects import apply, define, delete, items, named, node, pod, write_policy
from tests.cluster.roles import Role, in_step, worker, worker_in_step
from tests.processes import until
from tests.processors.slo.recorded import read_strictly

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(1800)]

GOLD = {"nodeSelector": {"matchLabels": {"pool": "gold"}}}


@pytest.fixture(scope="module", autouse=True)
def definitions(plane: ControlPlane) -> Iterator[None]:
    folder = Path(__file__).parents[2] / "deploy/chart/crds"
    define(plane, str(folder))
    yield
    plane.kubectl("delete", "-f", str(folder))


async def test_every_node_is_reported_according_to_its_policy(
    plane: ControlPlane, settings: Settings
) -> None:
    often = {**GOLD, "metricReportIntervalSeconds": 30, "metricAggregateDurationSeconds": 60}
    colocation = {
        "enable": True, "metricReportIntervalSeconds": 90,
        "nodePredictPolicy": {"coldStartPeriodSeconds": 0, "resourceDiffThresholdPercent": 7},
        "nodeConfigs": [often],
    }  # fmt: skip
    rules = {"clusterStrategy": {"enable": True, "cpuSuppressThresholdPercent": 60},
             "nodeStrategies": [{**GOLD, "memoryEvictThresholdPercent": 80}]}  # fmt: skip
    sections = {"colocation_config": colocation, "resource_threshold_config": rules}
    write_policy(plane, settings.kubernetes.config_name, **sections)
    apply(plane, node("m1", cpu="32", memory="128Gi"),
          node("m2", labels={"pool": "gold"}, cpu="32", memory="128Gi"))  # fmt: skip
    apply(plane, *(pod(f"s{i}", on=f"m{1 + i % 2}", cpu="1", memory="4Gi") for i in range(6)))

    def objects() -> dict[str, Any]:
        return named(plane, "nodemetrics")

    def are_running() -> bool:
        return [item["status"]["phase"] for item in items(plane, "pods")] == ["Running"] * 6

    flags = ("--mode", "act", "--node-metrics", "--node-slos", "--writes-per-second", "50")
    with Role("watcher", settings), worker(settings):
        await until(are_running)
        await until(lambda: in_step(plane, settings))
        await until(lambda: worker_in_step(settings))
        exporters = Exporters(plane, settings.kafka, windows=20)
        with Role("actuator", settings, *flags) as actuator:
            await until(lambda: objects().keys() == {"m1", "m2"})
            await exporters.send(8)
            await until(lambda: all("status" in item for item in objects().values()))
            await until(lambda: is_current(plane, "m2", exporters))
            await until(lambda: "prodPeakMetric" in objects()["m2"]["status"])
            for name, item in objects().items():
                decoded = read_strictly(item)
                assert isinstance(decoded, NodeMetric)
                assert decoded.status is not None
                assert {metric.name for metric in decoded.status.pods_metric or ()} == {
                    f"s{i}" for i in range(6) if f"m{1 + i % 2}" == name
                }
                (owner,) = item["metadata"]["ownerReferences"]
                assert (owner["kind"], owner["name"]) == ("Node", name)
            # The policy of the pool asks for the average of two windows.
            usual, gold = (objects()[name] for name in ("m1", "m2"))
            for metric in gold["status"]["podsMetric"]:
                steps = (exporters.step - 1, exporters.step - 2)
                cores = sum(usage_of(metric["name"], step)[0] for step in steps) / 2
                assert abs(millicores(metric["podUsage"]["resources"]["cpu"]) - cores * 1000) <= 1
            assert [interval(plane, name) for name in ("m1", "m2")] == [90, 30]
            assert usual["spec"]["predictPolicy"] == {
                "resourceDiffThresholdPercent": 7, "coldStartPeriodSeconds": 0,
            }  # fmt: skip
            await assert_reported_at_intervals(plane, exporters)
            # A change of the policy reaches the selected nodes only, without a restart.
            colocation["nodeConfigs"] = [{**often, "metricReportIntervalSeconds": 45}]
            write_policy(plane, settings.kubernetes.config_name, **sections)
            await until(lambda: interval(plane, "m2") == 45)
            assert interval(plane, "m1") == 90
            await assert_rules_are_written(plane, settings, sections)
            # A deleted object is created again. The object of a deleted Node is deleted with it.
            plane.kubectl("delete", "nodemetric", "m1")
            await until(lambda: "m1" in objects())
            delete(plane, "node", "m1")
            await until(lambda: objects().keys() == {"m2"})
            assert actuator.stop() == 0
        with Role("actuator", settings, "--mode", "act"):
            await until(lambda: not objects() and not items(plane, "nodeslos"))


def is_current(plane: ControlPlane, name: str, exporters: Exporters) -> bool:
    """Whether the node was reported as of its newest window."""
    status = named(plane, "nodemetrics")[name].get("status", {})
    return bool(status.get("updateTime") == exporters.last_end())


async def assert_rules_are_written(
    plane: ControlPlane, settings: Settings, sections: dict[str, Any]
) -> None:
    """NodeSLOs have the rules of the ConfigMap for their nodes, and follow an edit."""

    def threshold(name: str, field: str) -> Any:
        item = named(plane, "nodeslos")[name]
        assert isinstance(read_strictly(item), NodeSLO)
        return item["spec"]["resourceUsedThresholdWithBE"][field]

    assert threshold("m1", "cpuSuppressThresholdPercent") == 60
    assert threshold("m2", "memoryEvictThresholdPercent") == 80
    assert threshold("m1", "memoryEvictThresholdPercent") == 70
    sections["resource_threshold_config"]["clusterStrategy"]["cpuSuppressThresholdPercent"] = 55
    write_policy(plane, settings.kubernetes.config_name, **sections)
    await until(lambda: threshold("m1", "cpuSuppressThresholdPercent") == 55)


def interval(plane: ControlPlane, name: str) -> int:
    policy = named(plane, "nodemetrics")[name]["spec"]["metricCollectPolicy"]
    seconds: int = policy["reportIntervalSeconds"]
    return seconds


def millicores(text: str) -> float:
    return float(text[:-1]) if text.endswith("m") else 1000 * float(text)


async def assert_reported_at_intervals(plane: ControlPlane, exporters: Exporters) -> None:
    """With windows of 30 s, one node is reported with each, the other with every third."""
    times: dict[str, set[str]] = {"m1": set(), "m2": set()}
    for _ in range(6):
        await exporters.send(1)
        await until(lambda: is_current(plane, "m2", exporters))
        for name, item in named(plane, "nodemetrics").items():
            times[name].add(item["status"]["updateTime"])
    assert len(times["m2"]) == 6
    assert 2 <= len(times["m1"]) <= 3
