"""The files of deploy/chart/monitoring that are written from others.

python -m tests.deploy.monitoring_files    # `make docs`
"""

import json
from pathlib import Path
from typing import Any, Final

import yaml

from tests.deploy.dashboards import DASHBOARDS, grafana_dashboard
from tests.deploy.helm import CHART, NAMESPACE

FOLDER: Final = CHART / "monitoring"
RULES: Final = FOLDER / "rules.yaml"
RUNBOOKS: Final = "docs/how-to/runbooks.md"
_WRITTEN: Final = "# Written by `make docs`; do not edit.\n"


def rule_groups() -> list[dict[str, Any]]:
    """The groups of rules.yaml."""
    groups: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"]
    return groups


def alerts() -> list[dict[str, Any]]:
    """All alerts of rules.yaml."""
    return [rule for group in rule_groups() for rule in group["rules"]]


def files() -> dict[Path, str]:
    """Each written file, as it should be."""
    rules = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": _metadata("springtide"),
        "spec": {"groups": rule_groups()},
    }
    return {
        FOLDER / "prometheusrule.yaml": _WRITTEN + _dumped(rules),
        FOLDER / "podmonitor.yaml": _WRITTEN + _dumped(_pod_monitor()),
    } | {
        FOLDER / "dashboards" / f"springtide-{name}.json": (
            json.dumps(grafana_dashboard(name), indent=1, ensure_ascii=False) + "\n"
        )
        for name in DASHBOARDS
    }


def _pod_monitor() -> dict[str, Any]:
    """Scrapes the pods of the chart. `job` is `springtide-<role>`."""
    role = "__meta_kubernetes_pod_label_app_kubernetes_io_component"
    relabelings = [
        {
            "sourceLabels": [role], "regex": "(.+)", "replacement": "springtide-$1",
            "targetLabel": "job",
        },
    ]  # fmt: skip
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": _metadata("springtide"),
        "spec": {
            "selector": {"matchLabels": {"app.kubernetes.io/name": "springtide"}},
            # The extender serves its page beside its answers.
            "podMetricsEndpoints": [
                {"port": port, "path": "/metrics", "interval": "30s", "relabelings": relabelings}
                for port in ("metrics", "http")
            ],
        },
    }


def _metadata(name: str) -> dict[str, Any]:
    labels = {"app.kubernetes.io/part-of": "springtide"}
    return {"name": name, "namespace": NAMESPACE, "labels": labels}


class _Plain(yaml.SafeDumper):
    """YAML in which what is said twice is written twice."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _dumped(document: object) -> str:
    return yaml.dump(document, Dumper=_Plain, sort_keys=False, width=100, allow_unicode=True)


if __name__ == "__main__":
    for path, text in files().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
