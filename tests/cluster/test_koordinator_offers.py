"""koord-manager computes Mid and Batch from the NodeMetrics of our cluster actuator, and arrives at
the amounts that our worker offers. `make koordinator` runs this and prints the result."""

import json
import sys
import time
from contextlib import suppress

import pytest

from pipeline.local.control_plane import ControlPlane
from pipeline.processors.overcommit.status_patch import ABSENT, EXTENDED_RESOURCES, read_amounts
from pipeline.settings import Settings
from pipeline.times import parse_time
from pipeline.topics.codec import decode_json
from pipeline.topics.node_resources import NodeResourcesRecord
from pipeline.topics.registry import RESOURCES
from tests.broker import latest
from tests.cluster.exporters import WINDOW_SECONDS
from tests.cluster.koordinator import (
    exporters,
    koord_manager,
    module,
    prepare,
)
from tests.cluster.objects import Object, apply, items, named, node, pod, write_policy
from tests.cluster.roles import Role, in_step, worker, worker_in_step
from tests.processes import until

pytestmark = [pytest.mark.peer, pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(3600)]

WINDOWS = 60
STALE_WINDOWS = 60
"""Windows that the silent node missed: half an hour, twice the time after which it offers
nothing."""
CLASS, QOS = "koordinator.sh/priority-class", "koordinator.sh/qosClass"
LARGER = {"cpuCalculatePolicy": "maxUsageRequest", "memoryCalculatePolicy": "maxUsageRequest"}

# The colocation strategy of each node.
STRATEGIES: dict[str, Object] = {
    "by-usage": {},
    "by-request": {"memoryCalculatePolicy": "request"},
    "by-larger": LARGER,
    "batch-limited": {"batchCPUThresholdPercent": 10, "batchMemoryThresholdPercent": 10},
    "other-margin": {"cpuReclaimThresholdPercent": 75, "memoryReclaimThresholdPercent": 85},
    "reserved": {},
    "third-party": {},
    "mid-unallocated": {"midUnallocatedPercent": 20},
    "mid-limited": {"midUnallocatedPercent": 20, "midCPUThresholdPercent": 15,
                    "midMemoryThresholdPercent": 10},
    "mid-static": {"midReclaimMode": "static", "midStaticCPUReservedPercent": 15,
                   "midStaticMemoryReservedPercent": 20},
    "late-pod": {},
    "late-pod-by-larger": LARGER,
    "as-installed": {"midUnallocatedPercent": 20},
    "silent": {},
    "switched-off": {"enable": False},
}  # fmt: skip
ANNOTATIONS = {
    "reserved": ("node.koordinator.sh/reservation", {"resources": {"cpu": "6", "memory": "20Gi"}}),
    "third-party": (
        "node.koordinator.sh/thirdPartyAllocations",
        {"allocations": [{"name": "yarn", "priority": "koord-batch",
                          "resources": {"kubernetes.io/batch-cpu": "1500",
                                        "kubernetes.io/batch-memory": "1Gi"}}]},
    ),
}  # fmt: skip
WITHOUT = {"silent", "switched-off"}
"""Nodes that may not offer anything."""
KOORDINATORS = {"bufferPercent": 0, "promiseOnce": False, "midFormula": "source"}
"""The part of springtide-config that gives Koordinator's amounts."""
AS_INSTALLED = {"bufferPercent": 10, "promiseOnce": True, "midFormula": "v1.6"}
# Stated in docs/explanation/overcommit.md.
DIFFERENCES = {"late-pod-by-larger", "as-installed"}

# The labels of a pod, its requests, and the cores and GiB that it uses.
PODS: dict[str, tuple[dict[str, str], dict[str, str], tuple[float, float]]] = {
    "idle": ({CLASS: "koord-prod"}, {"cpu": "5", "memory": "16Gi"}, (2.0, 6.0)),
    "busy": ({CLASS: "koord-prod"}, {"cpu": "1", "memory": "4Gi"}, (2.1237, 8.5)),
    "exclusive": ({CLASS: "koord-prod", QOS: "LSE"}, {"cpu": "3", "memory": "8Gi"}, (1.0, 2.0)),
    "unlabelled": ({}, {"cpu": "1", "memory": "1Gi"}, (0.25, 0.5)),
    "mid": (
        {CLASS: "koord-mid"},
        {"kubernetes.io/mid-cpu": "3000", "kubernetes.io/mid-memory": "4Gi"}, (1.0, 2.0),
    ),
    "batch": (
        {CLASS: "koord-batch"},
        {"kubernetes.io/batch-cpu": "3000", "kubernetes.io/batch-memory": "4Gi"}, (2.0, 4.0),
    ),
    "free": ({CLASS: "koord-free"}, {}, (0.5, 1.0)),
}  # fmt: skip
LATE = {"cpu": "2", "memory": "2Gi"}
"""Requests of a pod that was placed after the last report."""

Offers = dict[str, list[int]]
"""Amounts of each node, in the order of `EXTENDED_RESOURCES`."""


def usage_of(name: str, _: int) -> tuple[float, float]:
    cores, gib = PODS[name.partition("-on-")[0]][2]
    return cores, gib * 2.0**30


def offers(plane: ControlPlane) -> Offers:
    """What each Node offers."""
    nodes = named(plane, "nodes").items()
    return {name: read_amounts(item["status"]["allocatable"]) for name, item in nodes}


def capacity(name: str) -> Object:
    """A Node; the kubelet reserves 2 cores and 8 GiB of it."""
    key, annotation = ANNOTATIONS.get(name, ("", {}))
    annotations = {key: json.dumps(annotation)} if key else {}
    item = node(name, labels={"case": name}, annotations=annotations, cpu="32", memory="128Gi")
    item["status"]["allocatable"] = item["status"]["capacity"] | {"cpu": "30", "memory": "120Gi"}
    return item


@pytest.fixture(scope="module", autouse=True)
def definitions(plane: ControlPlane) -> None:
    prepare(plane, "koord-manager")


async def test_koord_manager_offers_what_the_worker_offers(
    plane: ControlPlane, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    write_policy(plane, settings.kubernetes.config_name, **policy())
    apply(plane, *map(capacity, STRATEGIES))
    apply(plane, *(
        pod(f"{kind}-on-{name}", on=name, labels=labels, **requests)
        for name in STRATEGIES for kind, (labels, requests, _) in PODS.items()
    ))  # fmt: skip
    with Role("watcher", settings), worker(settings):
        await until(lambda: all(p["status"]["phase"] == "Running" for p in items(plane, "pods")))
        await until(lambda: in_step(plane, settings))
        await until(lambda: worker_in_step(settings))
        flags = ("--mode", "act", "--node-metrics", "--writes-per-second", "50")
        with Role("actuator", settings, *flags) as actuator:
            await until(lambda: named(plane, "nodemetrics").keys() == STRATEGIES.keys())
            ours = await report(plane, settings)
            assert actuator.stop() == 0
    withdraw(plane)
    with koord_manager(plane, settings.kubernetes.config_name) as manager:
        await until(lambda: is_whole(offers(plane)), 60, manager.tail)
        # It may write a Node more than once before it knows everything about it.
        with suppress(AssertionError):
            await until(lambda: different(ours, offers(plane)) == DIFFERENCES)
        theirs = offers(plane)
    lines = [f"koord-manager {module()['Version']} and the cluster actuator, {len(ours)} nodes"]
    lines += [f"{name:18}  {comparison(ours[name], theirs[name])}" for name in STRATEGIES]
    with capsys.disabled():
        sys.stdout.write("\n".join(["", *lines, ""]))
    assert different(ours, theirs) == DIFFERENCES
    # As installed, Springtide offers less Batch than Koordinator, never more.
    assert all(map(int.__lt__, ours["as-installed"][:2], theirs["as-installed"][:2]))
    assert ours["late-pod-by-larger"][1] == theirs["late-pod-by-larger"][1] - 2**31


def policy() -> dict[str, Object]:
    """The two sections of the ConfigMap that both programs read."""
    colocation = {
        "enable": True, "metricReportIntervalSeconds": WINDOW_SECONDS,
        "metricAggregateDurationSeconds": 60, "resourceDiffThreshold": 0.00001,
        "nodePredictPolicy": {"coldStartPeriodSeconds": 0},
        "nodeConfigs": [{**selector(name), **own} for name, own in STRATEGIES.items()],
    }  # fmt: skip
    own = {**KOORDINATORS, "nodeConfigs": [{**selector("as-installed"), **AS_INSTALLED}]}
    return {"colocation_config": colocation, "springtide_config": own}


def selector(name: str) -> Object:
    return {"nodeSelector": {"matchLabels": {"case": name}}}


async def report(plane: ControlPlane, settings: Settings) -> Offers:
    """Send the usage of all nodes; return their offers when they and the NodeMetrics follow from
    the last window."""
    # What a window from before the creation of a Node tells is of an earlier one of its name.
    nodes = named(plane, "nodes").values()
    created = max(parse_time(item["metadata"]["creationTimestamp"]) for item in nodes)
    await until(lambda: time.time() >= (created // WINDOW_SECONDS + 1) * WINDOW_SECONDS)
    silent = exporters(plane, settings, WINDOWS + STALE_WINDOWS, {"silent"}, usage_of)
    live = exporters(plane, settings, WINDOWS, STRATEGIES.keys() - {"silent"}, usage_of)
    await silent.send(WINDOWS)
    await live.send(WINDOWS - 1)
    apply(plane, *(
        pod(f"placed-on-{name}", on=name, labels={CLASS: "koord-prod"}, **LATE)
        for name in STRATEGIES if name.startswith("late-pod")
    ))  # fmt: skip
    await until(lambda: in_step(plane, settings))
    await until(lambda: worker_in_step(settings))
    await live.send(1)

    late: list[str] = []

    async def are_current() -> bool:
        metrics, nodes = named(plane, "nodemetrics"), offers(plane)
        records = {
            name: decode_json(NodeResourcesRecord, value)
            for name, value in (await latest(settings.kafka, RESOURCES)).items()
        }
        late.clear()
        for name in STRATEGIES.keys() - WITHOUT:
            updated = metrics[name].get("status", {}).get("updateTime")
            # Third parties take a part of Batch.
            first = 2 if name == "third-party" else 0
            wanted = amounts_of(records[name])[first:]
            if not records[name].as_of == live.last_end() == updated:
                late.append(f"{name}: computed {records[name].as_of}, reported {updated}")
            elif nodes[name][first:] != wanted:
                late.append(f"{name}: offers {nodes[name][first:]}, not {wanted}")
        return not late

    await until(are_current, 120, lambda: [live.last_end(), *late])
    return offers(plane)


def amounts_of(record: NodeResourcesRecord) -> list[int | None]:
    """The amounts of a record in the order of `EXTENDED_RESOURCES`."""
    assert record.batch is not None
    assert record.mid is not None
    tiers = record.batch, record.mid
    return [amount for tier in tiers for amount in (tier.cpu_millicores, tier.memory_bytes)]


def withdraw(plane: ControlPlane) -> None:
    """Remove all offers."""
    absent = dict.fromkeys(EXTENDED_RESOURCES)
    patch = json.dumps({"status": {"capacity": absent, "allocatable": absent}})
    for name in STRATEGIES:
        plane.kubectl("patch", "node", name, "--subresource=status", "--type=merge", "-p", patch)


def is_whole(amounts: Offers) -> bool:
    """Whether every node offers all resources that it may offer."""
    return not any(ABSENT in amounts[name] for name in STRATEGIES.keys() - WITHOUT)


def different(ours: Offers, theirs: Offers) -> set[str]:
    """The nodes whose amounts differ by more than rounding."""
    return {name for name in ours if not is_same(ours[name], theirs[name])}


def is_same(ours: list[int], theirs: list[int]) -> bool:
    """Whether amounts are equal but for rounding: usage of the system and of each pod is rounded up
    here, and cut in a NodeMetric."""
    return all(abs(a - b) <= len(PODS) + 1 for a, b in zip(ours, theirs, strict=True))


def comparison(ours: list[int], theirs: list[int]) -> str:
    """The amounts of both, in the order of `EXTENDED_RESOURCES`."""
    names = ("batch-cpu", "batch-memory", "mid-cpu", "mid-memory")
    if {*ours, *theirs} == {ABSENT}:
        return "both offer nothing"
    return "  ".join(
        f"{name} {a}" if a == b else f"{name} {a} (koord-manager {b - a:+})"
        for name, a, b in zip(names, ours, theirs, strict=True)
    )
