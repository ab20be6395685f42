"""`springtide what-if`: its files, policies, and errors."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from click.testing import CliRunner, Result

from pipeline.cli.main import cli
from pipeline.cli.replayed_policies import NodeAmounts, read_policy
from pipeline.cli.what_if_text import row
from pipeline.errors import SpringtideError
from pipeline.processors.backtest.trace import Trace
from pipeline.processors.explain.quantity_text import format_cpu
from pipeline.settings import ModelSettings, Settings
from tests.processors.backtest.replayed_policies import (
    NODES,
    policy_of,
    policy_text,
    trace_of,
)
from tests.processors.backtest.trace_files import (
    PLACEMENT,
    SERIES,
    series_row,
    stay_row,
    table_of,
)


@pytest.fixture(scope="module")
def trace() -> Trace:
    return trace_of(allocatable_m=2000)


def test_results_as_text_and_json(tmp_path: Path) -> None:
    random = np.random.default_rng(8)
    metadata = {"step_s": "3600", "t0_unix": "1700000100", "steps": "48"}
    usage = random.integers(100, 500, 48).tolist()
    tables = {
        "series": table_of([series_row("s", usage)], SERIES, metadata),
        "placement": table_of([stay_row("p", "s", 0, 48)], PLACEMENT, metadata),
    }
    for name, table in tables.items():
        pyarrow.parquet.write_table(table, tmp_path / f"april.{name}.parquet")
    policies = {"old": policy_text(), "new": policy_text(cpuReclaimThresholdPercent=80)}
    for name, text in policies.items():
        (tmp_path / f"{name}.yaml").write_bytes(text)
    command = [
        "what-if", str(tmp_path), "--policy", str(tmp_path / "new.yaml"), "--against",
        str(tmp_path / "old.yaml"), "--by-node", "--burn-in", "6h", "--horizon-seconds", "21600",
    ]  # fmt: skip
    result = CliRunner().invoke(cli, command)
    assert result.exit_code == 0, result.output
    (item,) = json.loads(CliRunner().invoke(cli, [*command, "-o", "json"]).stdout)["items"]
    old, new = item["total"]["old"], item["total"]["new"]
    assert new["batch_cpu_millicores"] == pytest.approx(old["batch_cpu_millicores"] + 1600)
    # No pod of the trace has memory: what would be offered of it is unknown.
    assert (old["mid_memory_bytes"], old["batch_memory_bytes"]) == (None, None)
    assert [node["node"] for node in item["nodes"]] == ["node-0"]
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["node-0", "batch", "cpu"] in [line[:3] for line in lines]
    same = CliRunner().invoke(
        cli,
        ["what-if", str(tmp_path), "--policy", "-", "--against", str(tmp_path / "old.yaml"),
         "--by-node", "--burn-in", "6h"],
        input=policies["old"],
    )  # fmt: skip
    assert "no node differs" in same.stdout, same.output


def test_a_change_that_rounds_to_nothing_has_no_sign() -> None:
    pairs = ((1.0, 1.0), (1.0, 0.9999), (1.0, 1.5), (1.5, 1.0), (math.nan, 1.0))
    changes = [row("mid cpu", before, after, format_cpu)[3] for before, after in pairs]
    assert changes == ["0", "0", "+500m", "-500m", "-"]


def test_names_in_files_may_be_any_text(tmp_path: Path) -> None:
    policy = tmp_path / "new.yaml"
    policy.write_bytes(policy_text())

    def replay(node: str, pod: str) -> dict[str, Any]:
        metadata = {"step_s": "3600", "t0_unix": "1700000100", "steps": "48"}
        usage = np.random.default_rng(8).integers(100, 500, 48).tolist()
        series = table_of([series_row("s", usage)], SERIES, metadata)
        stays = table_of([stay_row(pod, "s", 0, 48, node=node)], PLACEMENT, metadata)
        pyarrow.parquet.write_table(series, tmp_path / "april.series.parquet")
        pyarrow.parquet.write_table(stays, tmp_path / "april.placement.parquet")
        arguments = ["--policy", str(policy), "-o", "json"]
        result = CliRunner().invoke(cli, ["what-if", str(tmp_path), *arguments])
        assert result.exit_code == 0, result.output
        (item,) = json.loads(result.stdout)["items"]
        (found,) = item["nodes"]
        assert found.pop("node") == node
        return item

    usual = replay("n", "p")
    assert usual["total"]["new"]["batch_cpu_millicores"] is not None
    for node, pod in (("Node 1, old", "p"), ("n" * 300, "p" * 300), ("", '"\\\x1b')):
        assert replay(node, pod) == usual


def test_traces_of_which_nothing_is_known(tmp_path: Path) -> None:
    policy = tmp_path / "new.yaml"
    policy.write_text("model: {safety_margin_percent: 20}")

    def replay(usage: list[int | None], **amounts: int) -> Result:
        metadata = {"step_s": "3600", "t0_unix": "1700000100", "steps": "48"}
        series = table_of([series_row("s", usage, **amounts)], SERIES, metadata)
        stays = table_of([stay_row("p", "s", 0, 48)], PLACEMENT, metadata)
        pyarrow.parquet.write_table(series, tmp_path / "april.series.parquet")
        pyarrow.parquet.write_table(stays, tmp_path / "april.placement.parquet")
        return CliRunner().invoke(cli, ["what-if", str(tmp_path), "--policy", str(policy)])

    gaps = replay([None] * 48)
    assert (gaps.exit_code, "every amount is 0 or unknown" in gaps.stdout) == (0, True), gaps.output
    unlimited = replay([100] * 48, cpu_limit_m=0, cpu_request_m=0)
    assert (unlimited.exit_code, "give traces with limits" in unlimited.output) == (2, True)


def test_capacity_that_the_trace_lacks_is_said(trace: Trace) -> None:
    amounts = NodeAmounts.of(trace, "limits")
    assert amounts.amounts[:, 0].tolist() == [2000.0] * NODES
    assert amounts.amounts[:, 1].tolist() == [2048 * 2.0**20] * NODES
    assert amounts.notes == [
        "capacity of memory is not in the trace of 3 nodes: the highest sum of limits stands for it"
    ]
    assert NodeAmounts.of(trace, "requests").amounts[0, 1] == 1024 * 2.0**20


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "has no policy: it is empty"),
        (b"model: {safety_margin_percent: 5}\nkafka: {}", "not just the section model"),
        (policy_text(cpuReclaimThresholdPercent=-1), "cpuReclaimThresholdPercent"),
        (policy_text(high=10), "lowThresholds.cpu: 20 is above"),
        (b"model: {half_life: 3}", "unknown setting"),
    ],
)
def test_invalid_policies(text: bytes, problem: str) -> None:
    with pytest.raises(SpringtideError, match=problem):
        read_policy(text, "policy", Settings())


def test_settings_in_a_policy_count(trace: Trace) -> None:
    text = policy_text() + b"\n---\nmodel: {half_life_seconds: {cpu: 600}, horizon_seconds: 3600}"
    policy = policy_of(trace, text)
    assert policy.config.profile.half_life_seconds[0] == 600.0
    assert policy.config.horizon_seconds == 3600.0
    other = policy_of(trace, policy_text(predictor="nsigma-v2"))
    assert other.config.predictors == ("nsigma-v2",)


def test_a_policy_with_another_statistic_than_the_one_replayed_is_refused() -> None:
    text = b"model: {training_statistic: max}"
    with pytest.raises(SpringtideError, match="training_statistic is max, but p90") as caught:
        read_policy(text, "new.yaml", Settings())
    assert "--training-statistic max" in (caught.value.hint or "")
    file = read_policy(text, "new.yaml", Settings(model=ModelSettings(training_statistic="max")))
    assert file.settings.model.training_statistic == "max"
