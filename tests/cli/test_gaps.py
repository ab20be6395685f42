"""`springtide gaps`: its table, JSON, errors, and the sample of the documentation."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
from click.testing import CliRunner, Result

from pipeline.cli.main import cli
from tests.processors.backtest.trace_exports import (
    answer,
    exports_of,
    long_placement_rows,
    long_series_rows,
    long_tables,
    random_trace,
)
from tests.processors.backtest.trace_files import (
    METADATA,
    PLACEMENT,
    SERIES,
    series_row,
    stay_row,
    table_of,
)

PROJECT = Path(__file__).parents[2]


def gaps(folder: Path | str, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["gaps", str(folder), *arguments])


def write(folder: Path, *, workloads: list[str] | None = None, limit: int = 1000) -> None:
    """Two pods on one node that use 100 and 300 of 500 in turn; one has memory."""
    metadata = METADATA | {"steps": "4"}
    series = [
        series_row("a", [100, 300, 100, 300], cpu_request_m=limit // 2, cpu_limit_m=limit),
        series_row(
            "b", [300, 100, 300, 100], cpu_request_m=limit // 2, cpu_limit_m=limit,
            mem_mi=[32] * 4, mem_limit_mi=64,
        ),
    ]  # fmt: skip
    pyarrow.parquet.write_table(table_of(series, SERIES, metadata), folder / "april.series.parquet")
    stays = [stay_row("pod-a", "a", 0, 4), stay_row("pod-b", "b", 0, 4)]
    placement = table_of(stays, PLACEMENT, metadata)
    if workloads is not None:
        placement = placement.append_column("workload", [workloads])
    pyarrow.parquet.write_table(placement, folder / "april.placement.parquet")


def test_table_of_fleet_and_nodes(tmp_path: Path) -> None:
    write(tmp_path)
    result = gaps(tmp_path)
    assert (result.exit_code, result.stdout) == (
        0,
        """\
TRACE      RESOURCE  GROUP   PODS  REQUESTS   PEAK  LIMITS   PEAK  POOLED     P99   NODES
april/std  cpu       fleet      2     40.0%  40.0%   20.0%  20.0%   66.7%   66.7%  100.0%
april/std  cpu       node-0     2     40.0%  40.0%   20.0%  20.0%   66.7%   66.7%       -
april/std  memory    fleet      1         -      -   50.0%  50.0%  100.0%  100.0%  100.0%
april/std  memory    node-0     1         -      -   50.0%  50.0%  100.0%  100.0%       -

april/std memory: pods not counted, because their usage is unknown: 1
april/std memory: pods without a request, left out of shares of requests: 1
""",
    )
    without = gaps(tmp_path, "--no-headers")
    assert without.stdout.splitlines()[0].split() == [
        "april/std", "cpu", "fleet", "2", "40.0%", "40.0%", "20.0%", "20.0%", "66.7%", "66.7%",
        "100.0%",
    ]  # fmt: skip


def test_json_has_amounts_and_null_for_unknown(tmp_path: Path) -> None:
    write(tmp_path)
    cpu, node, memory, _ = json.loads(gaps(tmp_path, "-o", "json").stdout)["items"]
    assert cpu == {
        "dataset": "april", "scenario": "std", "step_seconds": 300, "resource": "cpu",
        "unit": "millicores", "level": "fleet", "name": None,
        "pods": 2, "unknown_pods": 0, "pods_without_request": 0, "pods_without_limit": 0,
        "steps": 4, "unknown_steps": 0,
        "usage_mean": 400.0, "requests_mean": 1000.0, "limits_mean": 2000.0,
        "usage_of_requests": {"mean": 0.4, "peak": 0.4},
        "usage_of_limits": {"mean": 0.2, "peak": 0.2},
        "usage": {"p95": 400.0, "p99": 400.0, "peak": 400.0},
        "pods_alone": {"p95": 600.0, "p99": 600.0, "peak": 600.0},
        "nodes_alone": {"p95": 400.0, "p99": 400.0, "peak": 400.0},
        "pod_pooling": {"p95": 400 / 600, "p99": 400 / 600, "peak": 400 / 600},
        "node_pooling": {"p95": 1.0, "p99": 1.0, "peak": 1.0},
    }  # fmt: skip
    assert (node["level"], node["name"]) == ("node", "node-0")
    assert node["node_pooling"] == {"p95": None, "p99": None, "peak": None}
    assert (memory["unit"], memory["usage_mean"]) == ("bytes", 32 * 2**20)
    assert memory["usage_of_requests"] == {"mean": None, "peak": None}


def test_workloads(tmp_path: Path) -> None:
    write(tmp_path, workloads=["web", ""])
    items = json.loads(gaps(tmp_path, "--by", "workload", "-o", "json").stdout)["items"]
    assert [(item["level"], item["name"], item["resource"], item["pods"]) for item in items] == [
        ("fleet", None, "cpu", 2), ("workload", "web", "cpu", 1),
        ("fleet", None, "memory", 1), ("workload", "web", "memory", 0),
    ]  # fmt: skip


def test_workloads_of_a_trace_without_any_are_an_error(tmp_path: Path) -> None:
    write(tmp_path)
    result = gaps(tmp_path, "--by", "workload")
    assert result.exit_code == 2
    assert "no pod of" in result.output
    assert "fix: add the column workload" in result.output


def test_a_missing_workload_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, workloads=["web", None])  # type: ignore[list-item]
    result = gaps(tmp_path)
    assert (result.exit_code, "row 1 has no workload" in result.output) == (1, True)


def test_traces_without_any_known_usage_are_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    assert "has no trace" in gaps(folder).output
    series = table_of([series_row("a", [1], cpu_request_m=0, cpu_limit_m=0)], SERIES, METADATA)
    pyarrow.parquet.write_table(series, folder / "a.series.parquet")
    stays = table_of([stay_row("pod", "a", 0, 1)], PLACEMENT, METADATA)
    pyarrow.parquet.write_table(stays, folder / "a.placement.parquet")
    result = gaps(folder)
    assert (result.exit_code, "has known usage" in result.output) == (2, True)


def flat(item: dict[str, Any]) -> dict[str, Any]:
    """The fields of an item, those of its objects as `object.field`."""
    fields: dict[str, Any] = {}
    for name, value in item.items():
        if isinstance(value, dict):
            fields |= {f"{name}.{key}": each for key, each in value.items()}
        else:
            fields[name] = value
    return fields


def test_other_forms_of_traces_give_the_same_gaps(tmp_path: Path) -> None:
    """CSV files and exports of Prometheus, each with a gap of more than an hour."""
    random = np.random.default_rng(3)
    trace = random_trace(random, 30, 300, mixed=False)
    series, placement = long_tables(long_series_rows(trace), long_placement_rows(trace))
    pyarrow.csv.write_csv(series, tmp_path / "csv.series.csv")
    pyarrow.csv.write_csv(placement, tmp_path / "csv.placement.csv")
    exports = tmp_path / "prometheus.prometheus"
    exports.mkdir()
    for name, export in exports_of(trace).items():
        (exports / f"{name}.json").write_bytes(answer(export))
    result = gaps(tmp_path, "-o", "json")
    assert result.exit_code == 0, result.output
    items: dict[str, list[dict[str, Any]]] = {"csv": [], "prometheus": []}
    for item in json.loads(result.stdout)["items"]:
        items[item.pop("dataset")].append(flat(item))
    assert len(items["csv"]) > 2
    for one, other in zip(items["csv"], items["prometheus"], strict=True):
        assert one == pytest.approx(other, rel=1e-9)


def test_the_sample_of_the_documentation_is_real(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PROJECT)
    result = gaps("tests/data/traces")
    document = (PROJECT / "docs/how-to/measure-gaps.md").read_text()
    sample = document.partition("```text\n")[2].partition("```")[0].splitlines()
    assert sample[-1] == "..."
    assert sample[:-1] == result.stdout.splitlines()[: len(sample) - 1]
    assert len(sample) > 5


def test_the_page_has_each_trace_and_resource(tmp_path: Path) -> None:
    write(tmp_path, workloads=["web", ""])
    out = tmp_path / "gaps.html"
    result = gaps(tmp_path, "--by", "workload", "--html", str(out))
    assert result.exit_code == 0, result.output
    page = out.read_text()
    assert re.findall("<h2>(.*?)</h2>", page) == ["april/std, cpu", "april/std, memory"]
    assert page.count("<svg") == 4
    refused = gaps(tmp_path, "--html", str(out))
    assert (refused.exit_code, "already exists" in refused.output) == (2, True)
    assert gaps(tmp_path, "--html", str(out), "--overwrite").exit_code == 0


def test_the_picture_of_the_documentation_is_real(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(PROJECT)
    gaps("tests/data/traces", "--html", str(tmp_path / "gaps.html"))
    first = (tmp_path / "gaps.html").read_text().partition("<figure>")[2].partition("</figure>")[0]
    assert (PROJECT / "docs/how-to/gaps.svg").read_text() == first
