"""Objects that others published are read and written as they are; every field is in the table."""

import copy
import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import yaml

from pipeline.processors.slo.crd_fields import Document, go_name
from pipeline.processors.slo.crd_schema import KINDS, Kind, definition
from pipeline.processors.slo.nodemetric import AGGREGATIONS, NodeMetric, PodMetric
from pipeline.processors.slo.nodeslo import NodeSLO
from tests.crds import path_of, text_of
from tests.processors.slo.recorded import FOLDER, Json, everything, load, names, strictly


@pytest.mark.parametrize("name", names())
def test_what_others_published_is_read_and_written_as_it_is(name: str) -> None:
    document = load(name)
    read = strictly(document)
    assert json.loads(msgspec.json.encode(read)) == document


def test_every_file_says_where_it_is_from() -> None:
    said = (FOLDER / "PROVENANCE.md").read_text()
    files = {path.name for path in FOLDER.iterdir()} - {"PROVENANCE.md"}
    assert {*re.findall(r"`([\w-]+\.yaml)`", said)} == files
    assert len(names()) == 9


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("spec.collectPolicy", {"reportIntervalSeconds": 60}, "$.spec.collectPolicy: no such"),
        ("status.podsMetric.0.usage", {}, "$.status.podsMetric[0].usage: no such field"),
        ("status.nodeMetric.nodeUsage.cpu", "1", "$.status.nodeMetric.nodeUsage.cpu: no such"),
        ("spec.metricCollectPolicy.reportIntervalSeconds", "60", "reportIntervalSeconds"),
        ("spec.metricCollectPolicy.reportIntervalSeconds", 60.5, "reportIntervalSeconds"),
        ("spec.metricCollectPolicy.nodeMemoryCollectPolicy", "all", "nodeMemoryCollectPolicy"),
        ("spec.metricCollectPolicy.nodeAggregatePolicy.durations", [300], "durations"),
        ("status.podsMetric", {}, "podsMetric"),
        ("status.nodeMetric.nodeUsage.resources.cpu", 0.5, "resources"),
        ("status.nodeMetric.nodeUsage.devices", [{"minor": 0}], "health"),
        ("kind", "NodeMetrics", "kind"),
        ("apiVersion", "slo.koordinator.sh/v1beta1", "apiVersion"),
    ],
)
def test_reading_without_mercy_names_what_is_wrong(path: str, value: Any, says: str) -> None:
    document = changed(load("nodemetric-master-01.yaml"), path, value)
    if path == "kind":
        with pytest.raises(msgspec.ValidationError, match=re.escape(says)):
            msgspec.convert(document, NodeMetric)
        return
    with pytest.raises(msgspec.ValidationError, match=re.escape(says)):
        strictly(document)


def test_what_a_newer_koordinator_writes_is_read_over() -> None:
    document = changed(load("nodeslo-dispatched.yaml"), "spec.newStrategy", {"enable": True})
    read = msgspec.convert(document, NodeSLO)
    assert read == msgspec.convert(load("nodeslo-dispatched.yaml"), NodeSLO)


def test_what_is_not_known_is_not_written() -> None:
    assert msgspec.json.encode(PodMetric(name="a")) == b'{"name":"a"}'


def changed(document: Json, path: str, value: Any) -> Json:
    """The document with another value at a path of names and places."""
    document = copy.deepcopy(document)
    *way, last = path.split(".")
    place: Any = document
    for step in way:
        place = place[int(step)] if isinstance(place, list) else place[step]
    place[last] = value
    return document


# -- the definitions


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_definitions_are_those_of_the_structs(kind: Kind) -> None:
    text = path_of(kind).read_text()
    assert text == text_of(kind), "python -m tests.crds writes them anew"
    assert yaml.safe_load(text) == definition(kind)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_definition_is_as_koordinator_has_it(kind: Kind) -> None:
    found = definition(kind)
    assert found["metadata"]["name"] == f"{kind.name.lower()}s.slo.koordinator.sh"
    assert found["spec"]["scope"] == "Cluster"
    (version,) = found["spec"]["versions"]
    assert (version["name"], version["subresources"]) == ("v1alpha1", {"status": {}})
    assert "shortNames" not in found["spec"]["names"], "there are none upstream"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_an_object_that_says_everything_is_read(kind: Kind) -> None:
    strictly(example(kind))


def test_a_type_without_a_schema_is_refused() -> None:
    class Odd(Document, frozen=True, kw_only=True):
        number: float | None = None

    class Either(Document, frozen=True, kw_only=True):
        number: int | bool | None = None

    for struct in (Odd, Either):
        with pytest.raises(TypeError, match="has no schema"):
            definition(Kind(struct, ()))


def example(kind: Kind) -> Json:
    document = everything(schema_of(kind))
    own = {"apiVersion": "slo.koordinator.sh/v1alpha1", "kind": kind.name}
    return document | own | {"metadata": {"name": f"all-of-{kind.name.lower()}"}}


def schema_of(kind: Kind) -> Json:
    found: Json = definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def rows(schema: Json, path: str = "") -> Iterator[tuple[str, str]]:
    """Every field of a schema: its path, and its type, words and bounds as a short text."""
    if of := schema.get("properties"):
        for name, one in of.items():
            yield from rows(one, f"{path}.{name}" if path else name)
    elif schema.get("type") == "array":
        yield from rows(schema["items"], f"{path}[]")
    elif more := schema.get("additionalProperties"):
        yield from rows(more, f"{path}{{}}")
    else:
        yield path, _short(schema)


def _short(schema: Json) -> str:
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return "free"
    if schema.get("x-kubernetes-int-or-string"):
        return "quantity" if "pattern" in schema else "int or text"
    words = "|".join(sorted(schema.get("enum", ())))
    bounds = ""
    if "minimum" in schema or "maximum" in schema:
        bounds = f" {schema.get('minimum', '')}..{schema.get('maximum', '')}"
    of = schema.get("format") if schema["type"] in ("integer", "string") else None
    return f"{words or of or schema['type']}{bounds}"


USAGE = {
    "resources{}": "quantity",
    "devices[].health": "boolean",
    "devices[].type": "string",
    "devices[].labels{}": "string",
    "devices[].id": "string",
    "devices[].minor": "int32",
    "devices[].moduleID": "int32",
    "devices[].resources{}": "quantity",
    "devices[].topology.socketID": "int32",
    "devices[].topology.nodeID": "int32",
    "devices[].topology.pcieID": "string",
    "devices[].topology.busID": "string",
    "devices[].vfGroups[].labels{}": "string",
    "devices[].vfGroups[].vfs[].minor": "int32",
    "devices[].vfGroups[].vfs[].busID": "string",
}
QOS = {
    "cpuQOS.enable": "boolean",
    "cpuQOS.groupIdentity": "int64 -1..2",
    "cpuQOS.schedIdle": "int64 0..1",
    "cpuQOS.coreExpeller": "boolean",
    "memoryQOS.enable": "boolean",
    "memoryQOS.minLimitPercent": "int64 0..100",
    "memoryQOS.lowLimitPercent": "int64 0..100",
    "memoryQOS.throttlingPercent": "int64 0..100",
    "memoryQOS.wmarkRatio": "int64 0..100",
    "memoryQOS.wmarkScalePermill": "int64 1..1000",
    "memoryQOS.wmarkMinAdj": "int64 -25..50",
    "memoryQOS.priorityEnable": "int64 0..1",
    "memoryQOS.priority": "int64 0..12",
    "memoryQOS.oomKillGroup": "int64 0..1",
    "memoryQOS.pageCacheEnable": "boolean",
    "memoryQOS.pageCacheLimitPercent": "int64 0..100",
    "memoryQOS.pageCacheLimitSize": "quantity",
    "memoryQOS.pageCacheReclaimSync": "boolean",
    "blkioQOS.enable": "boolean",
    "blkioQOS.blocks[].name": "string",
    "blkioQOS.blocks[].type": "device|podvolume|volumegroup",
    "blkioQOS.blocks[].ioCfg.readIOPS": "int64 0..",
    "blkioQOS.blocks[].ioCfg.writeIOPS": "int64 0..",
    "blkioQOS.blocks[].ioCfg.readBPS": "int64 0..",
    "blkioQOS.blocks[].ioCfg.writeBPS": "int64 0..",
    "blkioQOS.blocks[].ioCfg.ioWeightPercent": "int64 1..100",
    "blkioQOS.blocks[].ioCfg.readLatency": "int64 0..",
    "blkioQOS.blocks[].ioCfg.writeLatency": "int64 0..",
    "blkioQOS.blocks[].ioCfg.readLatencyPercent": "int64 0..100",
    "blkioQOS.blocks[].ioCfg.writeLatencyPercent": "int64 0..100",
    "blkioQOS.blocks[].ioCfg.enableUserModel": "boolean",
    "blkioQOS.blocks[].ioCfg.modelReadBPS": "int64 1..",
    "blkioQOS.blocks[].ioCfg.modelWriteBPS": "int64 1..",
    "blkioQOS.blocks[].ioCfg.modelReadSeqIOPS": "int64 1..",
    "blkioQOS.blocks[].ioCfg.modelWriteSeqIOPS": "int64 1..",
    "blkioQOS.blocks[].ioCfg.modelReadRandIOPS": "int64 1..",
    "blkioQOS.blocks[].ioCfg.modelWriteRandIOPS": "int64 1..",
    "resctrlQOS.enable": "boolean",
    "resctrlQOS.catRangeStartPercent": "int64 0..100",
    "resctrlQOS.catRangeEndPercent": "int64 0..100",
    "resctrlQOS.mbaPercent": "int64 0..100",
    "networkQOS.enable": "boolean",
    "networkQOS.ingressRequest": "int or text",
    "networkQOS.ingressLimit": "int or text",
    "networkQOS.egressRequest": "int or text",
    "networkQOS.egressLimit": "int or text",
}


def at(path: str, table: dict[str, str]) -> dict[str, str]:
    return {f"{path}.{name}": of for name, of in table.items()}


COLLECT = "spec.metricCollectPolicy"
NODE = "status.nodeMetric"
NODE_METRIC = {
    f"{COLLECT}.aggregateDurationSeconds": "int64 1..",
    f"{COLLECT}.reportIntervalSeconds": "int64 1..",
    f"{COLLECT}.nodeAggregatePolicy.durations[]": "string",
    f"{COLLECT}.nodeMemoryCollectPolicy": (
        "usageWithHotPageCache|usageWithPageCache|usageWithoutPageCache"
    ),
    "spec.predictPolicy.resourceDiffThresholdPercent": "int64 0..",
    "spec.predictPolicy.coldStartPeriodSeconds": "int64 0..",
    "status.updateTime": "date-time",
    **at(f"{NODE}.nodeUsage", USAGE),
    f"{NODE}.aggregatedNodeUsages[].duration": "string",
    **at(f"{NODE}.aggregatedNodeUsages[].usage{{}}", USAGE),
    **at(f"{NODE}.systemUsage", USAGE),
    f"{NODE}.aggregatedSystemUsages[].duration": "string",
    **at(f"{NODE}.aggregatedSystemUsages[].usage{{}}", USAGE),
    f"{NODE}.numaUsages[].numaNodeID": "int32",
    **at(f"{NODE}.numaUsages[].nodeUsage", USAGE),
    **at(f"{NODE}.numaUsages[].systemUsage", USAGE),
    "status.podsMetric[].name": "string",
    "status.podsMetric[].namespace": "string",
    **at("status.podsMetric[].podUsage", USAGE),
    "status.podsMetric[].priority": "string",
    "status.podsMetric[].qos": "string",
    "status.podsMetric[].extensions": "free",
    "status.hostApplicationMetric[].name": "string",
    **at("status.hostApplicationMetric[].usage", USAGE),
    "status.hostApplicationMetric[].priority": "string",
    "status.hostApplicationMetric[].qos": "string",
    **at("status.prodReclaimableMetric.resource", USAGE),
    **at("status.prodPeakMetric.resource", USAGE),
}
THRESHOLD = "spec.resourceUsedThresholdWithBE"
STRATEGY = "spec.resourceQOSStrategy"
NODE_SLO = {
    f"{THRESHOLD}.enable": "boolean",
    f"{THRESHOLD}.cpuSuppressThresholdPercent": "int64 0..100",
    f"{THRESHOLD}.cpuSuppressMinPercent": "int64 0..100",
    f"{THRESHOLD}.cpuSuppressPolicy": "cfsQuota|cpuset",
    f"{THRESHOLD}.memoryEvictThresholdPercent": "int64 0..100",
    f"{THRESHOLD}.memoryEvictLowerPercent": "int64 0..100",
    f"{THRESHOLD}.memoryAllocatableEvictThresholdPercent": "int64 0..",
    f"{THRESHOLD}.memoryAllocatableEvictLowerPercent": "int64 0..",
    f"{THRESHOLD}.cpuEvictBESatisfactionUpperPercent": "int64 0..100",
    f"{THRESHOLD}.cpuEvictBESatisfactionLowerPercent": "int64 0..100",
    f"{THRESHOLD}.cpuEvictBEUsageThresholdPercent": "int64 0..100",
    f"{THRESHOLD}.cpuEvictTimeWindowSeconds": "int64 1..",
    f"{THRESHOLD}.cpuEvictThresholdPercent": "int64 0..100",
    f"{THRESHOLD}.cpuEvictLowerPercent": "int64 0..100",
    f"{THRESHOLD}.cpuAllocatableEvictThresholdPercent": "int64 0..",
    f"{THRESHOLD}.cpuAllocatableEvictLowerPercent": "int64 0..",
    f"{THRESHOLD}.cpuEvictPolicy": "evictByAllocatable|evictByRealLimit",
    f"{THRESHOLD}.evictEnabledPriorityThreshold": "int32",
    f"{THRESHOLD}.allocatableEvictPriorityThreshold": "int32 0..7999",
    f"{STRATEGY}.policies.cpuPolicy": "coreSched|groupIdentity",
    f"{STRATEGY}.policies.netQOSPolicy": "tc|terway-qos",
    **at(f"{STRATEGY}.lsrClass", QOS),
    **at(f"{STRATEGY}.lsClass", QOS),
    **at(f"{STRATEGY}.beClass", QOS),
    **at(f"{STRATEGY}.systemClass", QOS),
    **at(f"{STRATEGY}.cgroupRoot", QOS),
    "spec.cpuBurstStrategy.policy": "auto|cfsQuotaBurstOnly|cpuBurstOnly|none",
    "spec.cpuBurstStrategy.cpuBurstPercent": "int64 1..10000",
    "spec.cpuBurstStrategy.cfsQuotaBurstPercent": "int64 100..",
    "spec.cpuBurstStrategy.cfsQuotaBurstPeriodSeconds": "int64 -1..",
    "spec.cpuBurstStrategy.sharePoolThresholdPercent": "int64 0..100",
    "spec.systemStrategy.minFreeKbytesFactor": "int64 1..",
    "spec.systemStrategy.watermarkScaleFactor": "int64 1..400",
    "spec.systemStrategy.memcgReapBackGround": "int64 0..1",
    "spec.systemStrategy.schedGroupIdentityEnabled": "int64 0..1",
    "spec.systemStrategy.schedIdleSaverWmark": "int64 0..",
    "spec.systemStrategy.schedFeatures{}": "boolean",
    "spec.systemStrategy.pageCacheLimitEnabled": "int64 0..1",
    "spec.systemStrategy.totalNetworkBandwidth": "quantity",
    "spec.hostApplications[].name": "string",
    "spec.hostApplications[].priority": "string",
    "spec.hostApplications[].qos": "string",
    "spec.hostApplications[].cgroupPath.base": (
        "CgroupRoot|Kubepods|KubepodsBesteffort|KubepodsBurstable"
    ),
    "spec.hostApplications[].cgroupPath.parentDir": "string",
    "spec.hostApplications[].cgroupPath.relativePath": "string",
    "spec.hostApplications[].strategy": "object",
    "spec.extensions": "free",
    "status": "object",
}


@pytest.mark.parametrize(
    ("kind", "table"), [(KINDS[0], NODE_METRIC), (KINDS[1], NODE_SLO)], ids=lambda of: ""
)
def test_fields_are_those_that_are_documented(kind: Kind, table: dict[str, str]) -> None:
    own = {"apiVersion": "string", "kind": "string", "metadata": "object"}
    found = dict(rows(schema_of(kind)))
    assert found == own | table


def test_names_of_fields_and_words_of_aggregation() -> None:
    assert go_name("cpu_evict_be_usage_threshold_percent") == "cpuEvictBEUsageThresholdPercent"
    assert go_name("update_time") == "updateTime"
    assert AGGREGATIONS == ("avg", "p50", "p90", "p95", "p99")


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("515m", True), ("5712464Ki", True), ("0", True), ("1.5Gi", True), (".5", True),
        ("1e3", True), ("-3", True), ("+1E2", True), ("100n", True),
        ("", False), ("5 Gi", False), ("1,5", False), ("Gi", False), ("5gi", False), ("NaN", False),
    ],
)  # fmt: skip
def test_quantities_are_known_by_their_pattern(text: str, fits: bool) -> None:
    usage = schema_of(KINDS[0])["properties"]["status"]["properties"]["nodeMetric"]["properties"]
    amounts = usage["nodeUsage"]["properties"]["resources"]["additionalProperties"]
    assert bool(re.search(amounts["pattern"], text)) is fits
