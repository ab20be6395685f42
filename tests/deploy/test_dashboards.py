"""The dashboards: no query with an unknown metric or label, and each has data where its metrics
have. `tests/cluster/test_monitoring.py` runs them against running roles."""

import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.dashboard_queries import Query, queries
from tests.deploy.dashboards import DASHBOARDS, grafana_dashboard
from tests.deploy.test_alert_rules import promtool
from tests.docs.metric_tables import METRIC_ROLES, declarations, metrics_of

MINUTES = 120
# Every process has these, and Prometheus adds the labels.
TARGET_LABELS = {"job", "instance", "le"}
VALUES = {
    "resource": ["cpu", "memory"], "result": ["success", "error"], "job": ["springtide-worker"],
    "le": ["1.0", "+Inf"],
}  # fmt: skip


def labels_of(name: str) -> set[str]:
    declared = declarations().get(name)
    return {*declared.labels} if declared is not None else set()


def test_queries_name_known_metrics_and_their_labels() -> None:
    known = {"up"}.union(*map(metrics_of, METRIC_ROLES))
    for query in queries("5m"):
        assert query.metrics, query
        assert query.metrics <= known, query
        labels = TARGET_LABELS.union(*map(labels_of, query.metrics))
        assert query.labels <= labels, query


def test_variables_are_labels_of_their_metric() -> None:
    for dashboard in DASHBOARDS.values():
        for label, metric in dashboard.variables.items():
            assert label in labels_of(metric) | TARGET_LABELS


def test_panels_have_unique_places_and_all_fields() -> None:
    for name in DASHBOARDS:
        document: dict[str, Any] = json.loads(json.dumps(grafana_dashboard(name)))
        panels = document["panels"]
        places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
        assert len(places) == len({panel["id"] for panel in panels}) == len(panels)
        for panel in panels:
            assert panel["fieldConfig"]["defaults"]["unit"]
            assert all(target["expr"] and target["legendFormat"] for target in panel["targets"])
        variables = {variable["name"] for variable in document["templating"]["list"]}
        used = set(re.findall(r"\$(?!__)(\w+)", json.dumps(panels)))
        assert used <= variables


def samples_of(name: str) -> list[dict[str, str]]:
    """Series of a metric with a value for each of its labels."""
    declared = declarations().get(name)
    is_histogram = declared is not None and declared.kind == "histogram"
    labels = sorted(labels_of(name) | {"job", "instance"} | ({"le"} if is_histogram else set()))
    series = f"{name}_bucket" if is_histogram else name
    grows = is_histogram or name.endswith("_total") or name == "descheduler_pods_evicted"
    rows = product(*(VALUES.get(label, ["x"]) for label in labels))
    pairs = [", ".join(f'{k}="{v}"' for k, v in zip(labels, row, strict=True)) for row in rows]
    values = f"60+60x{MINUTES}" if grows else f"1x{MINUTES}"
    return [{"series": f"{series}{{{each}}}", "values": values} for each in pairs]


def evaluated(query: Query) -> dict[str, Any]:
    """A test of promtool: the query has a result."""
    return {
        "name": f"{query.dashboard} / {query.panel}",
        "interval": "1m",
        "input_series": [each for name in sorted(query.metrics) for each in samples_of(name)],
        "promql_expr_test": [
            {
                "expr": f"group({query.expression})", "eval_time": f"{MINUTES - 1}m",
                "exp_samples": [{"labels": "{}", "value": 1}],
            }
        ],
    }  # fmt: skip


@pytest.mark.slow
def test_each_query_has_a_result_where_its_metrics_have_series(tmp_path: Path) -> None:
    file = tmp_path / "tests.yaml"
    # JSON is YAML.
    file.write_text(json.dumps({"tests": [evaluated(query) for query in queries("5m")]}))
    done = promtool("test", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr
