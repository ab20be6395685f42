"""NodeMetric on the real API server, from samples on the real broker."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.local.control_plane import ControlPlane
from pipeline.processors.slo.nodemetric import NodeMetric
from pipeline.processors.slo.nodeslo import NodeSLO
from pipeline.settings import Settings
from tests.cluster.objects import apply, define, delete, items, node, pod, write_policy
from tests.cluster.usage import Exporters, used_by
from tests.cluster.watching import Role, in_step, worker
from tests.processes import until
from tests.processors.slo.recorded import strictly

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(1800)]

GOLD = {"nodeSelector": {"matchLabels": {"pool": "gold"}}}


@pytest.fixture(scope="module", autouse=True)
def definitions(plane: ControlPlane) -> Iterator[None]:
    folder = Path(__file__).parents[2] / "deploy" / "crds"
    define(plane, str(folder))
    yield
    plane.kubectl("delete", "-f", str(folder))


def found(plane: ControlPlane) -> dict[str, Any]:
    return {of["metadata"]["name"]: of for of in items(plane, "nodemetrics")}


async def test_every_node_is_reported_as_its_policy_says(
    plane: ControlPlane, settings: Settings
) -> None:
    often = {**GOLD, "metricReportIntervalSeconds": 30, "metricAggregateDurationSeconds": 60}
    colocation = {
        "enable": True,
        "metricReportIntervalSeconds": 90,
        "nodePredictPolicy": {"coldStartPeriodSeconds": 0, "resourceDiffThresholdPercent": 7},
        "nodeConfigs": [often],
    }
    rules = {"clusterStrategy": {"enable": True, "cpuSuppressThresholdPercent": 60},
             "nodeStrategies": [{**GOLD, "memoryEvictThresholdPercent": 80}]}  # fmt: skip
    sections = {"colocation_config": colocation, "resource_threshold_config": rules}
    write_policy(plane, settings.kubernetes.config_name, **sections)
    apply(plane, node("m1", cpu="32", memory="128Gi"),
          node("m2", labels={"pool": "gold"}, cpu="32", memory="128Gi"))  # fmt: skip
    apply(plane, *(pod(f"s{i}", on=f"m{1 + i % 2}", cpu="1", memory="4Gi") for i in range(6)))
    flags = ("--mode", "act", "--node-metrics", "--node-slos", "--writes-per-second", "50")
    with Role("watcher", settings), worker(settings):
        await until(lambda: all_run(plane, 6))
        await until(lambda: in_step(plane, settings))
        exporters = Exporters(plane, settings.kafka, windows=20)
        with Role("actuator", settings, *flags) as actuator:
            await until(lambda: found(plane).keys() == {"m1", "m2"})
            await exporters.send(8)
            await until(lambda: all("status" in of for of in found(plane).values()))
            await until(lambda: is_told(plane, "m2", exporters))
            await until(lambda: "prodPeakMetric" in found(plane)["m2"]["status"])
            for of in found(plane).values():
                read = strictly(of)
                assert isinstance(read, NodeMetric)
                assert read.status is not None
                assert {metric.name for metric in read.status.pods_metric or ()} == {
                    f"s{i}" for i in range(6) if f"m{1 + i % 2}" == of["metadata"]["name"]
                }
                (owner,) = of["metadata"]["ownerReferences"]
                assert (owner["kind"], owner["name"]) == ("Node", of["metadata"]["name"])
            # The average of the last two windows, as the policy of its pool has it.
            usual, gold = (found(plane)[name] for name in ("m1", "m2"))
            of_pods = {p["name"]: p["podUsage"] for p in gold["status"]["podsMetric"]}
            for name, usage in of_pods.items():
                cores = sum(used_by(name, exporters.step - back)[0] for back in (1, 2)) / 2
                assert abs(millicores(usage["resources"]["cpu"]) - cores * 1000) <= 1
            policy = usual["spec"]["metricCollectPolicy"]
            assert policy["reportIntervalSeconds"] == 90
            assert gold["spec"]["metricCollectPolicy"]["reportIntervalSeconds"] == 30
            assert usual["spec"]["predictPolicy"] == {
                "resourceDiffThresholdPercent": 7, "coldStartPeriodSeconds": 0,
            }  # fmt: skip
            await an_interval_is_kept(plane, exporters)
            # A change of the policy reaches the selected nodes alone, without a restart.
            colocation["nodeConfigs"] = [{**often, "metricReportIntervalSeconds": 45}]
            write_policy(plane, settings.kubernetes.config_name, **sections)
            await until(lambda: interval(plane, "m2") == 45, 10)
            assert interval(plane, "m1") == 90
            await rules_are_written(plane, settings, sections)
            # What somebody deletes comes again, what has no Node goes with it.
            plane.kubectl("delete", "nodemetric", "m1")
            await until(lambda: "m1" in found(plane))
            delete(plane, "node", "m1")
            await until(lambda: found(plane).keys() == {"m2"}, 60)
            assert actuator.stop() == 0
        with Role("actuator", settings, "--mode", "act"):
            await until(lambda: not found(plane) and not items(plane, "nodeslos"))


def all_run(plane: ControlPlane, count: int) -> bool:
    return sum(of["status"]["phase"] == "Running" for of in items(plane, "pods")) == count


def is_told(plane: ControlPlane, name: str, exporters: Exporters) -> bool:
    """Whether the node was reported as of its last window."""
    status = found(plane)[name].get("status", {})
    return bool(status.get("updateTime") == exporters.end_of(exporters.step))


async def rules_are_written(
    plane: ControlPlane, settings: Settings, sections: dict[str, Any]
) -> None:
    """NodeSLOs say what the ConfigMap says for their nodes, and an edit reaches them."""

    def threshold(name: str, field: str) -> Any:
        of = {one["metadata"]["name"]: one for one in items(plane, "nodeslos")}[name]
        assert isinstance(strictly(of), NodeSLO)
        return of["spec"]["resourceUsedThresholdWithBE"][field]

    assert threshold("m1", "cpuSuppressThresholdPercent") == 60
    assert threshold("m2", "memoryEvictThresholdPercent") == 80
    assert threshold("m1", "memoryEvictThresholdPercent") == 70
    sections["resource_threshold_config"]["clusterStrategy"]["cpuSuppressThresholdPercent"] = 55
    write_policy(plane, settings.kubernetes.config_name, **sections)
    await until(lambda: threshold("m1", "cpuSuppressThresholdPercent") == 55, 10)


def interval(plane: ControlPlane, name: str) -> int:
    policy = found(plane)[name]["spec"]["metricCollectPolicy"]
    seconds: int = policy["reportIntervalSeconds"]
    return seconds


def millicores(text: str) -> float:
    return float(text[:-1]) if text.endswith("m") else 1000 * float(text)


async def an_interval_is_kept(plane: ControlPlane, exporters: Exporters) -> None:
    """Of windows of 30 s one node is reported with each, the other with every third."""
    told: dict[str, set[str]] = {"m1": set(), "m2": set()}
    for _ in range(6):
        await exporters.send(1)
        await until(lambda: is_told(plane, "m2", exporters))
        for name, times in told.items():
            times.add(found(plane)[name]["status"]["updateTime"])
    assert len(told["m2"]) == 6
    assert 2 <= len(told["m1"]) <= 3
