"""The definitions in a real API server: objects are accepted, refused and printed."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from pipeline.errors import ControlPlaneError
from pipeline.local.control_plane import ControlPlane
from pipeline.processors.slo.crd_schema import KINDS
from tests.cluster.objects import define
from tests.crds import path_of
from tests.processors.slo.recorded import Json, load, names, read_strictly
from tests.processors.slo.test_objects import changed, example

# The first may have to wait until the programs are built.
pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module", autouse=True)
def definitions(plane: ControlPlane) -> Iterator[None]:
    for kind in KINDS:
        define(plane, str(path_of(kind)))
    yield
    for kind in KINDS:
        plane.kubectl("delete", "-f", str(path_of(kind)))


def put(plane: ControlPlane, document: Json) -> Json:
    """The object as the API server has it, after spec and status were written each by its way."""
    # What it is called is ours to say, the rest of the metadata the API server's.
    document = document | {"metadata": {"name": document["metadata"]["name"]}}
    resource = f"{document['kind'].lower()}s.slo.koordinator.sh"
    name = document["metadata"]["name"]
    plane.kubectl("delete", resource, name, "--ignore-not-found")
    plane.kubectl("create", "-f", "-", stdin=json.dumps(document))
    created = read(plane, resource, name)
    assert "status" not in created, "the status is a way of its own"
    if "status" in document:
        plane.kubectl("replace", "--subresource=status", "-f", "-", stdin=json.dumps(document))
    return read(plane, resource, name)


def read(plane: ControlPlane, resource: str, name: str) -> Json:
    result: Json = json.loads(plane.kubectl("get", resource, name, "-o", "json"))
    return result


@pytest.mark.parametrize("document", [*map(load, names()), *map(example, KINDS)])
def test_recorded_objects_and_those_with_every_field_are_accepted_unchanged(
    plane: ControlPlane, document: Json
) -> None:
    result = put(plane, document)
    read_strictly(result)
    for part in ("spec", "status"):
        assert result.get(part) == document.get(part)


THRESHOLD = "spec.resourceUsedThresholdWithBE"


@pytest.mark.parametrize(
    ("kind", "path", "value", "says"),
    [
        (0, "spec.metricCollectPolicy.reportIntervalSeconds", "60", "must be of type integer"),
        (0, "spec.metricCollectPolicy.reportIntervalSeconds", 0, "greater than or equal to 1"),
        (0, "spec.metricCollectPolicy.nodeMemoryCollectPolicy", "all", "Unsupported value"),
        (0, "spec.metricCollectPolicy.nodeAggregatePolicy.durations", "5m0s", "of type array"),
        (0, "spec.collectPolicy", {}, 'unknown field "spec.collectPolicy"'),
        (1, f"{THRESHOLD}.enable", "true", "must be of type boolean"),
        (1, f"{THRESHOLD}.cpuSuppressThresholdPercent", 101, "less than or equal to 100"),
        (1, f"{THRESHOLD}.cpuSuppressPolicy", "cpu", "Unsupported value"),
        (1, "spec.cpuBurstStrategy.cfsQuotaBurstPercent", 99, "greater than or equal to 100"),
        (1, "spec.resourceQOSStrategy.beClass", [], "must be of type object"),
        (1, "spec.systemStrategy.totalNetworkBandwidth", "fast", "should match"),
        (1, "spec.hostApplications", {}, "must be of type array"),
    ],
)
def test_an_invalid_object_is_refused(
    plane: ControlPlane, kind: int, path: str, value: Any, says: str
) -> None:
    document = example(KINDS[kind])
    del document["status"]
    with pytest.raises(ControlPlaneError, match=says):
        plane.kubectl("create", "-f", "-", stdin=json.dumps(changed(document, path, value)))


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("status.updateTime", "yesterday", "must be of type date-time"),
        ("status.nodeMetric.nodeUsage.resources", {"cpu": "much"}, "should match"),
        ("status.nodeMetric.nodeUsage.resources", {"cpu": 0.5}, "must be of type"),
        ("status.podsMetric", {}, "must be of type array"),
        ("status.nodeMetric.nodeUsage.devices", [{"minor": 0}], "health: Required value"),
        ("status.prodPeakMetric.resource.cpu", "1", "unknown field"),
    ],
)
def test_an_invalid_status_is_refused(
    plane: ControlPlane, path: str, value: Any, says: str
) -> None:
    document = example(KINDS[0])
    put(plane, document)
    text = json.dumps(changed(document, path, value))
    with pytest.raises(ControlPlaneError, match=says):
        plane.kubectl("replace", "--subresource=status", "-f", "-", stdin=text)


def test_kubectl_prints_the_declared_columns(plane: ControlPlane) -> None:
    put(plane, load("nodemetric-master-01.yaml"))
    header, row = plane.kubectl("get", "nodemetrics", "master-01").splitlines()
    assert header.split() == ["NAME", "CPU", "INTERVAL", "UPDATED", "AGE"]
    assert row.split()[:3] == ["master-01", "515m", "60"]
    header, row = plane.kubectl("get", "nodemetrics", "master-01", "-o", "wide").splitlines()
    assert (header.split()[-1], row.split()[-1]) == ("MEMORY", "5862330450")
    put(plane, load("nodeslo-dispatched.yaml"))
    header, row = plane.kubectl("get", "nodeslos", "test-node").splitlines()
    assert header.split() == ["NAME", "THRESHOLD", "SUPPRESS", "BURST", "AGE"]
    assert row.split()[:3] == ["test-node", "true", "cpuset"]


def test_kubectl_explains_a_field(plane: ControlPlane) -> None:
    stated = plane.kubectl("explain", "nodeslo.spec.cpuBurstStrategy.cfsQuotaBurstPercent")
    assert "Highest CPU quota, in percent of the limit." in stated
