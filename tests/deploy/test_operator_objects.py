"""A real API server accepts the objects for other operators by the definitions of these: Strimzi,
KEDA, the Prometheus operator, cert-manager."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.errors import ControlPlaneError
from pipeline.local.control_plane import ControlPlane
from tests.cluster.objects import define, items
from tests.deploy.helm import rendered
from tests.processes import ROOT

DEFINITIONS = ROOT / "tests/data/operators/definitions.jsonl"
NAMESPACE = "operator-objects"
KAFKA = [
    each
    for name in ("strimzi/kafka.yaml", "strimzi/topics-and-users.yaml", "keda.yaml")
    for each in yaml.safe_load_all((ROOT / "deploy/kafka" / name).read_text())
]
CHART = (
    "monitoring.enabled=true", "monitoring.labels.release=prometheus",
    "webhook.enabled=true", "webhook.tls.certManager=true",
    "extender.tls.secretName=extender-tls", "extender.tls.issuerRef.name=internal",
    "extender.tls.issuerRef.kind=ClusterIssuer", "kafka.strimzi.enabled=true",
    "worker.keda.enabled=true",
)  # fmt: skip
"""Values with which the chart has objects for other operators."""


@pytest.fixture(scope="module")
def operators(plane: ControlPlane) -> Iterator[ControlPlane]:
    """A control plane that serves the kinds of all operators, and a namespace."""
    define(plane, str(DEFINITIONS))
    plane.kubectl("create", "namespace", NAMESPACE)
    yield plane
    plane.kubectl("delete", "namespace", NAMESPACE, "--wait=false")
    plane.kubectl("delete", "-f", str(DEFINITIONS))


def test_the_objects_of_deploy_kafka_are_accepted(operators: ControlPlane, tmp_path: Path) -> None:
    check_accepted(operators, KAFKA, tmp_path)


def test_the_objects_of_the_chart_are_accepted(operators: ControlPlane, tmp_path: Path) -> None:
    groups = ("monitoring.coreos.com/", "cert-manager.io/", "kafka.strimzi.io/", "keda.sh/")
    objects = [
        each
        for each in rendered(*CHART, namespace=NAMESPACE)
        if each["apiVersion"].startswith(groups)
    ]
    kinds = [each["kind"] for each in objects]
    assert {*kinds} == {
        "Certificate", "Issuer", "KafkaTopic", "KafkaUser", "PodMonitor", "PrometheusRule",
        "ScaledObject", "TriggerAuthentication",
    }  # fmt: skip
    # Of the extender, of the webhook, and of its CA.
    assert kinds.count("Certificate") == 3
    check_accepted(operators, objects, tmp_path)


@pytest.mark.parametrize(
    ("kind", "field"),
    [("ScaledObject", "minimumReplicas"), ("KafkaUser", "quota"), ("KafkaTopic", "partition")],
)
def test_a_field_that_an_operator_does_not_have_is_refused(
    operators: ControlPlane, tmp_path: Path, kind: str, field: str
) -> None:
    wrong = next(each for each in KAFKA if each["kind"] == kind)
    wrong = wrong | {"spec": wrong["spec"] | {field: 1}}
    with pytest.raises(ControlPlaneError, match=field):
        apply_strictly(operators, [wrong], tmp_path)


def check_accepted(plane: ControlPlane, objects: list[Any], folder: Path) -> None:
    """Create the objects. Nothing of them may be unknown to the API server, which drops what a
    definition does not have."""
    apply_strictly(plane, objects, folder)
    stored = {
        (each["kind"], each["metadata"]["name"]): each
        for kind in {each["kind"] for each in objects}
        for each in items(plane, kind, "-n", NAMESPACE)
    }
    for each in objects:
        found = stored[each["kind"], each["metadata"]["name"]]
        assert is_part(each.get("spec"), found.get("spec")), each["metadata"]["name"]


def apply_strictly(plane: ControlPlane, objects: list[Any], folder: Path) -> None:
    """Apply the objects; unknown fields are errors."""
    file = folder / "objects.yaml"
    file.write_text(yaml.safe_dump_all(objects))
    plane.kubectl("apply", "--validate=strict", "-n", NAMESPACE, "-f", str(file))


def is_part(wanted: Any, stored: Any) -> bool:
    """Whether `stored` has all of `wanted`, and perhaps defaults."""
    if isinstance(wanted, dict):
        return all(key in stored and is_part(value, stored[key]) for key, value in wanted.items())
    if isinstance(wanted, list):
        return len(wanted) == len(stored) and all(map(is_part, wanted, stored))
    return bool(wanted == stored)
