"""The PodMonitor selects every role of the chart, and names its job."""

import re
from typing import Any

import pytest
import yaml

from tests.deploy.helm import EVERYTHING, ROLES, rendered
from tests.deploy.monitoring_files import FOLDER

# Helm is built once, with the control plane.
pytestmark = [pytest.mark.plane, pytest.mark.timeout(1200)]

_LABEL = "__meta_kubernetes_pod_label_"


def scraped_jobs(pod: Any) -> list[str]:
    """The jobs under which the PodMonitor scrapes a pod of this template, one for each port."""
    spec = yaml.safe_load((FOLDER / "podmonitor.yaml").read_text())["spec"]
    labels = pod["metadata"]["labels"]
    if not spec["selector"]["matchLabels"].items() <= labels.items():
        return []
    ports = [
        port["name"] for each in pod["spec"]["containers"] for port in each.get("ports", [])
    ]  # fmt: skip
    found = [each for each in spec["podMetricsEndpoints"] if each["port"] in ports]
    return [job_of(labels, endpoint["relabelings"]) for endpoint in found]


def job_of(labels: dict[str, str], relabelings: list[dict[str, Any]]) -> str:
    """The label `job` after Prometheus' action `replace`."""
    sources = {_LABEL + re.sub(r"[^a-zA-Z0-9_]", "_", key): value for key, value in labels.items()}
    job = "the name of the PodMonitor"
    for rule in relabelings:
        value = ";".join(sources.get(name, "") for name in rule["sourceLabels"])
        if matched := re.fullmatch(rule["regex"], value):
            template = rule.get("replacement", "$1").replace("$1", r"\1")
            job = matched.expand(template)
    return job


def test_each_role_of_the_chart_is_scraped_once() -> None:
    pods = [each["spec"]["template"] for each in rendered(*EVERYTHING)
            if "template" in each.get("spec", {})]  # fmt: skip
    jobs = [job for pod in pods for job in scraped_jobs(pod)]
    assert sorted(jobs) == sorted(f"springtide-{role}" for role in ROLES)
