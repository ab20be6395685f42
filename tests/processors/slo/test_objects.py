"""Recorded objects are read and written unchanged, and every field is declared."""

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
from pipeline.processors.slo.nodemetric import NodeMetric, PodMetric
from pipeline.processors.slo.nodeslo import NodeSLO
from pipeline.topics.node_state import AGGREGATIONS
from tests.crds import path_of, text_of
from tests.processors.slo.recorded import FOLDER, Json, full_document, load, names, read_strictly


@pytest.mark.parametrize("name", names())
def test_recorded_objects_are_read_and_written_unchanged(name: str) -> None:
    document = load(name)
    read = read_strictly(document)
    assert json.loads(msgspec.json.encode(read)) == document


def test_every_recorded_file_has_a_provenance() -> None:
    stated = (FOLDER / "PROVENANCE.md").read_text()
    files = {path.name for path in FOLDER.iterdir()} - {"PROVENANCE.md"}
    assert {*re.findall(r"`([\w-]+\.yaml)`", stated)} == files
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
def test_strict_reading_names_the_invalid_field(path: str, value: Any, says: str) -> None:
    document = changed(load("nodemetric-master-01.yaml"), path, value)
    with pytest.raises(msgspec.ValidationError, match=re.escape(says)):
        read_strictly(document, NodeMetric)


def test_fields_of_a_newer_koordinator_are_ignored() -> None:
    document = changed(load("nodeslo-dispatched.yaml"), "spec.newStrategy", {"enable": True})
    read = msgspec.convert(document, NodeSLO)
    assert read == msgspec.convert(load("nodeslo-dispatched.yaml"), NodeSLO)


def test_unset_fields_are_not_written() -> None:
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
def test_the_definitions_on_disk_equal_the_structs(kind: Kind) -> None:
    text = path_of(kind).read_text()
    assert text == text_of(kind), "python -m tests.crds writes them anew"
    assert yaml.safe_load(text) == definition(kind)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_definition_has_koordinators_names(kind: Kind) -> None:
    result = definition(kind)
    names = result["metadata"]["name"], result["spec"]["scope"]
    assert names == (f"{kind.name.lower()}s.slo.koordinator.sh", "Cluster")
    (version,) = result["spec"]["versions"]
    assert (version["name"], version["subresources"]) == ("v1alpha1", {"status": {}})
    assert "shortNames" not in result["spec"]["names"], "there are none upstream"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_an_object_with_every_field_is_read(kind: Kind) -> None:
    read_strictly(example(kind))


def test_a_type_without_a_schema_is_refused() -> None:
    class Odd(Document, frozen=True, kw_only=True):
        number: float | None = None

    class Either(Document, frozen=True, kw_only=True):
        number: int | bool | None = None

    for struct in (Odd, Either):
        with pytest.raises(TypeError, match="has no schema"):
            definition(Kind(struct, ()))


def example(kind: Kind) -> Json:
    document = full_document(schema_of(kind))
    own = {"apiVersion": "slo.koordinator.sh/v1alpha1", "kind": kind.name}
    return document | own | {"metadata": {"name": f"all-of-{kind.name.lower()}"}}


def schema_of(kind: Kind) -> Json:
    result: Json = definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return result


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


def table(path: str, names_by_kind: dict[str, str]) -> dict[str, str]:
    """The kind of each field by its path."""
    return {
        f"{path}.{name}".removeprefix("."): kind
        for kind, names in names_by_kind.items()
        for name in names.split()
    }


USAGE = {
    "quantity": "resources{} devices[].resources{}",
    "boolean": "devices[].health",
    "string": (
        "devices[].type devices[].labels{} devices[].id devices[].topology.pcieID "
        "devices[].topology.busID devices[].vfGroups[].labels{} devices[].vfGroups[].vfs[].busID"
    ),
    "int32": (
        "devices[].minor devices[].moduleID devices[].topology.socketID devices[].topology.nodeID "
        "devices[].vfGroups[].vfs[].minor"
    ),
}
QOS = {
    "boolean": (
        "cpuQOS.enable cpuQOS.coreExpeller memoryQOS.enable memoryQOS.pageCacheEnable "
        "memoryQOS.pageCacheReclaimSync blkioQOS.enable blkioQOS.blocks[].ioCfg.enableUserModel "
        "resctrlQOS.enable networkQOS.enable"
    ),
    "int64 -1..2": "cpuQOS.groupIdentity",
    "int64 0..1": "cpuQOS.schedIdle memoryQOS.priorityEnable memoryQOS.oomKillGroup",
    "int64 0..100": (
        "memoryQOS.minLimitPercent memoryQOS.lowLimitPercent memoryQOS.throttlingPercent "
        "memoryQOS.wmarkRatio memoryQOS.pageCacheLimitPercent "
        "blkioQOS.blocks[].ioCfg.readLatencyPercent blkioQOS.blocks[].ioCfg.writeLatencyPercent "
        "resctrlQOS.catRangeStartPercent resctrlQOS.catRangeEndPercent resctrlQOS.mbaPercent"
    ),
    "int64 1..1000": "memoryQOS.wmarkScalePermill",
    "int64 -25..50": "memoryQOS.wmarkMinAdj",
    "int64 0..12": "memoryQOS.priority",
    "quantity": "memoryQOS.pageCacheLimitSize",
    "string": "blkioQOS.blocks[].name",
    "device|podvolume|volumegroup": "blkioQOS.blocks[].type",
    "int64 0..": (
        "blkioQOS.blocks[].ioCfg.readIOPS blkioQOS.blocks[].ioCfg.writeIOPS "
        "blkioQOS.blocks[].ioCfg.readBPS blkioQOS.blocks[].ioCfg.writeBPS "
        "blkioQOS.blocks[].ioCfg.readLatency blkioQOS.blocks[].ioCfg.writeLatency"
    ),
    "int64 1..100": "blkioQOS.blocks[].ioCfg.ioWeightPercent",
    "int64 1..": (
        "blkioQOS.blocks[].ioCfg.modelReadBPS blkioQOS.blocks[].ioCfg.modelWriteBPS "
        "blkioQOS.blocks[].ioCfg.modelReadSeqIOPS blkioQOS.blocks[].ioCfg.modelWriteSeqIOPS "
        "blkioQOS.blocks[].ioCfg.modelReadRandIOPS blkioQOS.blocks[].ioCfg.modelWriteRandIOPS"
    ),
    "int or text": (
        "networkQOS.ingressRequest networkQOS.ingressLimit networkQOS.egressRequest "
        "networkQOS.egressLimit"
    ),
}
NODE_METRIC = {
    "int64 1..": (
        "spec.metricCollectPolicy.aggregateDurationSeconds "
        "spec.metricCollectPolicy.reportIntervalSeconds"
    ),
    "string": (
        "spec.metricCollectPolicy.nodeAggregatePolicy.durations[] "
        "status.nodeMetric.aggregatedNodeUsages[].duration "
        "status.nodeMetric.aggregatedSystemUsages[].duration status.podsMetric[].name "
        "status.podsMetric[].namespace status.podsMetric[].priority status.podsMetric[].qos "
        "status.hostApplicationMetric[].name status.hostApplicationMetric[].priority "
        "status.hostApplicationMetric[].qos"
    ),
    "usageWithHotPageCache|usageWithPageCache|usageWithoutPageCache": (
        "spec.metricCollectPolicy.nodeMemoryCollectPolicy"
    ),
    "int64 0..": (
        "spec.predictPolicy.resourceDiffThresholdPercent spec.predictPolicy.coldStartPeriodSeconds"
    ),
    "date-time": "status.updateTime",
    "int32": "status.nodeMetric.numaUsages[].numaNodeID",
    "free": "status.podsMetric[].extensions",
}
USAGE_PATHS = (
    "status.nodeMetric.nodeUsage",
    "status.nodeMetric.aggregatedNodeUsages[].usage{}",
    "status.nodeMetric.systemUsage",
    "status.nodeMetric.aggregatedSystemUsages[].usage{}",
    "status.nodeMetric.numaUsages[].nodeUsage",
    "status.nodeMetric.numaUsages[].systemUsage",
    "status.podsMetric[].podUsage",
    "status.hostApplicationMetric[].usage",
    "status.prodReclaimableMetric.resource",
    "status.prodPeakMetric.resource",
)
THRESHOLD = {
    "boolean": "enable",
    "int64 0..100": (
        "cpuSuppressThresholdPercent cpuSuppressMinPercent memoryEvictThresholdPercent "
        "memoryEvictLowerPercent cpuEvictBESatisfactionUpperPercent "
        "cpuEvictBESatisfactionLowerPercent cpuEvictBEUsageThresholdPercent "
        "cpuEvictThresholdPercent cpuEvictLowerPercent"
    ),
    "cfsQuota|cpuset": "cpuSuppressPolicy",
    "int64 0..": (
        "memoryAllocatableEvictThresholdPercent memoryAllocatableEvictLowerPercent "
        "cpuAllocatableEvictThresholdPercent cpuAllocatableEvictLowerPercent"
    ),
    "int64 1..": "cpuEvictTimeWindowSeconds",
    "evictByAllocatable|evictByRealLimit": "cpuEvictPolicy",
    "int32": "evictEnabledPriorityThreshold",
    "int32 0..7999": "allocatableEvictPriorityThreshold",
}
BURST = {
    "auto|cfsQuotaBurstOnly|cpuBurstOnly|none": "policy",
    "int64 1..10000": "cpuBurstPercent",
    "int64 100..": "cfsQuotaBurstPercent",
    "int64 -1..": "cfsQuotaBurstPeriodSeconds",
    "int64 0..100": "sharePoolThresholdPercent",
}
SYSTEM = {
    "int64 1..": "minFreeKbytesFactor",
    "int64 1..400": "watermarkScaleFactor",
    "int64 0..1": "memcgReapBackGround schedGroupIdentityEnabled pageCacheLimitEnabled",
    "int64 0..": "schedIdleSaverWmark",
    "boolean": "schedFeatures{}",
    "quantity": "totalNetworkBandwidth",
}
HOST_APPLICATION = {
    "string": "name priority qos cgroupPath.parentDir cgroupPath.relativePath",
    "CgroupRoot|Kubepods|KubepodsBesteffort|KubepodsBurstable": "cgroupPath.base",
    "object": "strategy",
}
NODE_SLO = {
    "coreSched|groupIdentity": "spec.resourceQOSStrategy.policies.cpuPolicy",
    "tc|terway-qos": "spec.resourceQOSStrategy.policies.netQOSPolicy",
    "free": "spec.extensions",
    "object": "status",
}
QOS_CLASSES = ("lsrClass", "lsClass", "beClass", "systemClass", "cgroupRoot")


def test_fields_are_those_that_are_documented() -> None:
    node_metric, node_slo = table("", NODE_METRIC), table("", NODE_SLO)
    for path in USAGE_PATHS:
        node_metric |= table(path, USAGE)
    for name in QOS_CLASSES:
        node_slo |= table(f"spec.resourceQOSStrategy.{name}", QOS)
    node_slo |= table("spec.resourceUsedThresholdWithBE", THRESHOLD)
    node_slo |= table("spec.cpuBurstStrategy", BURST)
    node_slo |= table("spec.systemStrategy", SYSTEM)
    node_slo |= table("spec.hostApplications[]", HOST_APPLICATION)
    own = {"apiVersion": "string", "kind": "string", "metadata": "object"}
    for kind, fields in zip(KINDS, (node_metric, node_slo), strict=True):
        assert dict(rows(schema_of(kind))) == own | fields


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
def test_the_pattern_of_quantities_matches_kubernetes(text: str, fits: bool) -> None:
    usage = schema_of(KINDS[0])["properties"]["status"]["properties"]["nodeMetric"]["properties"]
    amounts = usage["nodeUsage"]["properties"]["resources"]["additionalProperties"]
    assert bool(re.search(amounts["pattern"], text)) is fits
