"""`springtide report --metrics-server` against a real API server. No kubelet runs here, so custom
resources stand for the answers of metrics-server."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pipeline.cli.main import cli
from pipeline.local.control_plane import ControlPlane
from pipeline.settings import Settings
from pipeline.times import format_time
from tests.cluster.objects import Object, apply, define, items, node, pod
from tests.processes import eventually

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(600)]

GROUP = "metrics.k8s.io"


def definition(kind: str, plural: str, scope: str) -> Object:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{GROUP}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
        },
        "spec": {
            "group": GROUP, "scope": scope,
            "names": {"kind": kind, "plural": plural, "listKind": f"{kind}List"},
            "versions": [
                {
                    "name": "v1beta1", "served": True, "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }  # fmt: skip


def metrics(kind: str, name: str, namespace: str | None = None) -> Object:
    """Half a core and 1 GiB, as metrics-server answers."""
    amounts = {"cpu": "500000000n", "memory": "1048576Ki"}
    of_pod = {"containers": [{"name": "main", "usage": amounts}]}
    return {
        "apiVersion": f"{GROUP}/v1beta1", "kind": kind,
        "metadata": {"name": name, **({"namespace": namespace} if namespace else {})},
        "timestamp": format_time(int(time.time())), "window": "15s",
        **(of_pod if namespace else {"usage": amounts}),
    }  # fmt: skip


@pytest.fixture
def answers(plane: ControlPlane, settings: Settings, tmp_path: Path) -> Iterator[None]:
    """The API server answers for metrics-server while the test runs."""
    kinds = [
        definition("NodeMetrics", "nodes", "Cluster"),
        definition("PodMetrics", "pods", "Namespaced"),
    ]
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": kinds}))
    define(plane, str(file))
    try:
        yield
    finally:
        plane.kubectl("delete", "-f", str(file))


def report(plane: ControlPlane, *arguments: str) -> Result:
    return CliRunner().invoke(
        cli,
        ["report", "--metrics-server", "--kubeconfig", str(plane.kubeconfig()), *arguments],
    )


@pytest.mark.usefixtures("answers")
def test_a_report_of_what_stands_for_metrics_server(plane: ControlPlane) -> None:
    apply(plane, node("m1", labels={"agentpool": "general"}), node("m2"))
    apply(plane, pod("a", on="m1", cpu="2", memory="4Gi"), pod("b", on="m1", cpu="2", memory="4Gi"))
    apply(plane, metrics("NodeMetrics", "m1"), metrics("PodMetrics", "a", "default"))
    assert eventually(
        lambda: all(p["status"]["phase"] == "Running" for p in items(plane, "pods")), 120
    )
    shown = report(plane, "--for", "1s", "-o", "json")
    assert shown.exit_code == 0, shown.stderr
    document = json.loads(shown.stdout)
    cpu = next(i for i in document["items"] if (i["name"], i["resource"]) == ("m1", "cpu"))
    assert document["watched_seconds"] == 1
    assert (cpu["pool"], cpu["pods"], cpu["requests"]) == ("general", 2, 4000)
    # Of pod b there is no reading.
    assert (cpu["usage_mean"], cpu["requests_of_pods_with_usage"]) == (500, 2000)
    assert "1 running pods have no known cpu usage" in document["notes"]


@pytest.mark.usefixtures("settings")
def test_without_metrics_server_the_report_says_what_to_check(plane: ControlPlane) -> None:
    shown = report(plane, "--for", "10m")
    assert shown.exit_code == 1
    assert "kubectl top nodes" in shown.stderr
