"""The alerts of deploy/chart/monitoring: promtool evaluates each of them on series."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pipeline.local.build_programs import ensure_promtool
from tests.deploy.alert_cases import CASES, MINUTES, Series
from tests.deploy.monitoring_files import RULES, RUNBOOKS, alerts, files
from tests.docs.metric_tables import declarations
from tests.processes import ROOT

PROMTOOL_SECONDS = 300
FIELDS = {"alert", "expr", "for", "labels", "annotations"}


def promtool(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ensure_promtool()), *map(str, arguments)],
        capture_output=True, text=True, timeout=PROMTOOL_SECONDS,
    )  # fmt: skip


def evaluated(alert: str, series: Series, count: int) -> dict[str, Any]:
    """A test of promtool: so many alerts of this name fire in the last minute."""
    firing = f'ALERTS{{alertname="{alert}",alertstate="firing"}}'
    expected = [{"labels": "{}", "value": count}] if count else []
    return {
        "name": f"{alert}, {count} times",
        "interval": "1m",
        "input_series": [{"series": each, "values": values} for each, values in series.items()],
        "promql_expr_test": [
            {"expr": f"count({firing})", "eval_time": f"{MINUTES - 1}m", "exp_samples": expected}
        ],
    }


@pytest.mark.slow
def test_each_alert_fires_on_its_series_and_not_on_others(tmp_path: Path) -> None:
    assert [alert["alert"] for alert in alerts()] == [*CASES]
    tests = [
        evaluated(name, series, count)
        for name, case in CASES.items()
        for series, count in ((case.fires, case.firing), (case.quiet, 0))
    ]
    file = tmp_path / "tests.yaml"
    # JSON is YAML.
    document = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}
    file.write_text(json.dumps(document))
    done = promtool("test", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr
    # promtool does evaluate what is written here.
    tests[0]["promql_expr_test"][0]["exp_samples"] = []
    file.write_text(json.dumps(document | {"tests": tests[:1]}))
    assert promtool("test", "rules", file).returncode == 1


@pytest.mark.slow
def test_promtool_accepts_the_rules() -> None:
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", RULES)
    assert done.returncode == 0, done.stdout + done.stderr


def test_written_files_agree_with_their_sources() -> None:
    stale = [path.name for path, text in files().items() if path.read_text() != text]
    assert stale == [], "run `make docs`"


def test_rules_read_declared_metrics() -> None:
    names = {*declarations()}
    names |= {name.removesuffix("_total") for name in names}
    for alert in alerts():
        read = set(re.findall(r"\b(?:springtide|descheduler)_\w+", alert["expr"]))
        read = {name.removesuffix("_bucket") for name in read} - {"springtide_"}
        assert read <= names, alert["alert"]


def test_each_alert_is_explained_and_has_a_section_of_the_runbooks() -> None:
    runbooks = (ROOT / RUNBOOKS).read_text()
    sections = dict(re.findall(r"^## (Springtide\w+)\n(.*?)(?=^## |\Z)", runbooks, re.M | re.S))
    assert [*sections] == [alert["alert"] for alert in alerts()]
    for alert in alerts():
        name, annotations = alert["alert"], alert["annotations"]
        assert alert.keys() <= FIELDS
        assert alert["labels"]["severity"] in ("warning", "critical")
        assert annotations.keys() == {"summary", "description", "runbook_url"}
        assert annotations["runbook_url"] == f"{RUNBOOKS}#{name.lower()}"
        for part in ("**Meaning.**", "**Check.**", "**Mend.**"):
            assert part in sections[name], (name, part)
