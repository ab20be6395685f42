"""`springtide calibrate`: its result, the settings that it prints, and its exit codes."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import yaml
from click.testing import CliRunner, Result

from pipeline.cli.backtest_files import settings_variants
from pipeline.cli.main import cli
from pipeline.processors.backtest.judge import predict_suites
from pipeline.processors.backtest.protocol import over_machines, score
from pipeline.processors.backtest.suites import Selection, selected_suites
from pipeline.processors.policy.policy_in_force import load_policies
from pipeline.settings import load_settings
from pipeline.sources.trace_folders import read_dataset
from tests.processors.backtest.trace_files import (
    PLACEMENT,
    SERIES,
    series_row,
    stay_row,
    table_of,
)

NODES, STEPS = 5, 12 * 24
COLD = ("--cold-start-seconds", "3600")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve days of five nodes, in steps of an hour; usage follows the time of day."""
    random = np.random.default_rng(4)
    path = tmp_path_factory.mktemp("traces")
    metadata = {"step_s": "3600", "t0_unix": "1700000100", "steps": str(STEPS)}
    wave = np.array([1 - math.cos(2 * math.pi * step / 24) for step in range(STEPS)])
    series = [
        series_row(
            f"s{n}", (100 + 150 * wave + random.normal(0, 20, STEPS)).round().astype(int).tolist(),
            cpu_request_m=800, mem_request_mi=512, mem_limit_mi=1024,
            mem_mi=(200 + random.normal(0, 5, STEPS)).round().astype(int).tolist(),
        )
        for n in range(NODES)
    ]  # fmt: skip
    stays = [stay_row(f"p{n}", f"s{n}", 0, STEPS, node=f"n{n}") for n in range(NODES)]
    pyarrow.parquet.write_table(table_of(series, SERIES, metadata), path / "april.series.parquet")
    pyarrow.parquet.write_table(
        table_of(stays, PLACEMENT, metadata), path / "april.placement.parquet"
    )
    return path


def calibrate(folder: Path, *arguments: str | Path) -> Result:
    command = ["calibrate", str(folder), "--stride", "6h", *COLD, *map(str, arguments)]
    return CliRunner().invoke(cli, command)


@pytest.fixture(scope="module")
def found(folder: Path) -> tuple[Result, dict[str, Any]]:
    options = ("--violation", "0.2", "--predictors", "[percentile]")
    (item,) = json.loads(calibrate(folder, *options, "-o", "json").stdout)["items"]
    return calibrate(folder, *options), item


def test_setting_for_both_resources(found: tuple[Result, dict[str, Any]]) -> None:
    result, item = found
    assert (result.exit_code, item["outcome"]) == (0, "reached"), result.output
    assert [each["resource"] for each in item["resources"]] == ["cpu", "memory"]
    for each in item["resources"]:
        assert each["judged_on"]["violation"] <= 0.2
        assert 0.2 < each["judged_on"]["savings"] < 1.0
        confidence = each["confidence"]
        assert confidence["low"] <= each["judged_on"]["violation"] <= confidence["high"]
    assert "april/std, 12.0 days, 5 nodes, horizon 24 h, at most 20% violations" in result.stdout


def test_settings_to_paste_predict_as_was_judged(
    folder: Path, found: tuple[Result, dict[str, Any]], tmp_path: Path
) -> None:
    result, item = found
    text = result.stdout[result.stdout.index("\nmodel:") :]
    assert yaml.safe_load(text) == item["settings"]
    file = tmp_path / "springtide.yaml"
    file.write_text(text)
    settings = load_settings(file, {}, {"model.cold_start_seconds": "3600"})
    (trace,) = read_dataset(folder, "april")
    suites = selected_suites(trace, Selection(horizon_hours=[24.0], stride_seconds=6 * 3600))
    for predicted, own in zip(
        predict_suites(trace, suites, settings_variants(settings)), item["resources"], strict=True
    ):
        later = predicted.at >= (72 + STEPS) // 2
        scores = over_machines(
            score(
                predicted.predictions[0][:, later], predicted.requests[:, later],
                predicted.oracle[:, later], predicted.tolerance,
            )
        )  # fmt: skip
        assert scores.violation == pytest.approx(own["judged_on"]["violation"], abs=1e-6)
        assert scores.savings == pytest.approx(own["judged_on"]["savings"], abs=1e-6)


def test_declared_risk_to_paste(folder: Path, tmp_path: Path) -> None:
    options = ("--predictors", "[calibrated]", "--predictor", "calibrated", "-o", "json")
    result = calibrate(folder, "--violation", "0.2", *options)
    (item,) = json.loads(result.stdout)["items"]
    assert (result.exit_code, item["outcome"]) == (0, "reached"), result.output
    model = item["settings"]["model"]
    assert model["predictor"] == "calibrated"
    # No risk that is tried is missed on these waves: the highest saves most.
    assert model["predictor_options"] == {"calibrated": {"risk": 0.3}}
    for each in item["resources"]:
        assert each["setting"] == "calibrated, risk 30%"
        assert each["judged_on"]["savings"] > each["present"]["savings"]


def test_policy_to_paste_is_in_force(found: tuple[Result, dict[str, Any]]) -> None:
    _, item = found
    data = {key: json.dumps(value) for key, value in item["policy"].items()}
    policies, problems = load_policies(data)
    assert problems == ()
    assert policies.springtide is not None
    model = item["settings"]["model"]
    assert policies.springtide.cluster.predictor == model["predictor"]
    assert policies.springtide.cluster.safety_margin_percent == model["safety_margin_percent"]


def test_too_short_history(folder: Path) -> None:
    options = ("--violation", "0.001", "--resource", "cpu", "--predictors", "[nsigma-v1]")
    result = calibrate(folder, *options, "--predictor", "nsigma-v1", "-o", "yaml")
    assert result.exit_code == 4, result.output
    assert "# too short to be sure: 12.0 days of 5 nodes, about " in result.stdout
    model = yaml.safe_load(result.stdout)["model"]
    assert model["predictor"] == "nsigma-v1"
    assert "nsigma_multiplier" in model
    # Not one prediction has its whole horizon in each half.
    result = calibrate(folder, "--violation", "0.1", "--horizon-seconds", "864000")
    assert result.exit_code == 4, result.output
    assert "model:" not in result.stdout


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--violation", "0"), "0 is not in the range"),
        (("--violation", "nan"), "'nan' is not a number"),
        (("--violation", "1e-320"), "1e-320 is not in the range"),
        ((), "Missing option '--violation'"),
        (("--violation", "0.1", "--dataset", "may"), "has no data set 'may'"),
        (("--violation", "0.1", "--scenario", "dense"), "no trace is left"),
    ],
)
def test_invalid_arguments(folder: Path, options: tuple[str, ...], problem: str) -> None:
    result = calibrate(folder, *options)
    assert (result.exit_code, problem in result.output) == (2, True), result.output
