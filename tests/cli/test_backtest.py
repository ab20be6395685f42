"""`springtide backtest`: its files, options and errors."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.csv
import pyarrow.parquet
import pytest
from click.testing import CliRunner, Result

from pipeline.cli.main import cli
from pipeline.sources.trace_folders import read_dataset
from tests.processors.backtest.trace_exports import (
    long_placement_rows,
    long_series_rows,
    long_tables,
)
from tests.processors.backtest.trace_files import (
    PLACEMENT,
    SERIES,
    series_row,
    stay_row,
    table_of,
)

METADATA = {"step_s": "300", "t0_unix": "1700000100", "steps": "96"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Eight hours of a pod that uses half of its request, at last more than that."""
    usage = [250] * 80 + [450] * 16
    series = table_of([series_row("a", usage)], SERIES, METADATA)
    stays = [
        stay_row(f"pod-{node}", "a", 0, 96, node=node, scenario=scenario)
        for scenario in ("std", "dense")
        for node in ("n1", "n2")
    ]
    for name in ("april", "may"):
        pyarrow.parquet.write_table(series, tmp_path / f"{name}.series.parquet")
        placement = table_of(stays, PLACEMENT, METADATA)
        pyarrow.parquet.write_table(placement, tmp_path / f"{name}.placement.parquet")
    return tmp_path


def backtest(folder: Path, *arguments: str | Path, input: str | None = None) -> Result:
    command = ["backtest", str(folder), *map(str, arguments)]
    return CliRunner().invoke(cli, command, input=input)


def test_results_as_text_json_and_parquet(folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "out.parquet"
    options = (
        "--cold-start-seconds", "0", "--predictors", "[percentile, nsigma-v1, borg-default]",
    )  # fmt: skip
    result = backtest(folder, "--parquet", table, *options)
    assert result.exit_code == 0, result.output
    document = json.loads(backtest(folder, "-o", "json", *options).stdout)
    names = [f"{dataset}-{scenario}-cpu-1h" for dataset in ("april", "may")
             for scenario in ("dense", "std")]  # fmt: skip
    assert [suite["suite"] for suite in document["suites"]] == names
    assert [line.partition(":")[0] for line in result.stdout.splitlines() if ":" in line] == names
    first = document["suites"][0]
    assert [(row["variant"], row["counts"]) for row in first["rows"]] == [
        ("percentile", "prod"), ("nsigma-v1", "prod"), ("borg-default", "node"),
    ]  # fmt: skip
    # Every 15 min from 2 h to 7 h. Those of the last hour before the rise miss it, and some after.
    assert (first["machines"], first["points"]) == (2, 40)
    assert 0.2 <= first["rows"][0]["violation"] <= 0.4
    assert first["rows"][2]["violation"] == 0.0
    assert 0.3 <= first["rows"][0]["savings"] <= 0.45
    assert [entry["variant"] for entry in document["summary"]] == [
        "percentile", "nsigma-v1", "borg-default",
    ]  # fmt: skip
    rows = pyarrow.parquet.read_table(table).to_pylist()
    assert len(rows) == 4 * 3 * 2
    assert {row["node"] for row in rows} == {"n1", "n2"}


def test_variants_and_suites_of_files(folder: Path, tmp_path: Path) -> None:
    variants, suites = tmp_path / "v.yaml", tmp_path / "s.yaml"
    variants.write_text(
        """
variants:
  - name: careful
    predictor: percentile
    options: {cpu: 1.0}
    model: {safety_margin_percent: 100, half_life_seconds: {cpu: 3600}}
  - {name: bold, predictor: percentile, counts: pods, model: {safety_margin_percent: 0}}
"""
    )
    suites.write_text(
        """
suites:
  - {name: mine, dataset: may, scenario: dense, horizon_hours: 1, burn_in_hours: 1, origin: lab}
"""
    )
    result = backtest(
        folder, "--variants", variants, "--suites", suites, "-o", "json",
        "--cold-start-seconds", "0",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    (suite,) = json.loads(result.stdout)["suites"]
    assert (suite["suite"], suite["origin"], suite["points"]) == ("mine", "lab", 12)
    careful, bold = suite["rows"]
    assert (careful["violation"], careful["savings"]) == (0.0, 0.0)
    assert bold["savings"] > 0.4
    assert careful["settings_hash"] != bold["settings_hash"]


def test_peers_run_beside_the_variants(folder: Path) -> None:
    options = ("--dataset", "april", "--scenario", "std", "--resource", "cpu", "--peers")
    result = backtest(folder, *options, "--horizon", "1h", "--burn-in", "2h", "--stride", "1h")
    assert result.exit_code == 0, result.output
    lines = [line.strip().split("  ")[0] for line in result.stdout.splitlines()]
    assert lines[0] == "april-std-cpu-1h: 2 nodes, 10 predictions, oracle saves 42.0%"
    assert {"percentile", "borg-default 0.9", "N-sigma v2, N=5"} <= {*lines}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "standard input has 0 documents, not one"),
        ("variants: [", "standard input is not valid YAML"),
        ("variants: []", "Expected `array` of length >= 1"),
        ("other: 1", "Object contains unknown field `other`"),
        ("variants: [{name: a}]", "missing required field `predictor`"),
        ("variants: [{name: a, predictor: x}]", "model.predictors"),
        (
            "variants: [{name: a, predictor: vpa, options: {cpu: 2}}]",
            "predictor vpa: cpu is 2, not a number",
        ),
        (
            "variants: [{name: a, predictor: vpa, model: {half: 2}}]",
            "model.half: unknown setting",
        ),
        (
            "variants: [{name: a, predictor: vpa, model: {drift: 2}}]",
            "2 is not allowed, allowed is one of flag, off, shorten (variant 'a')",
        ),
        (
            "variants: [{name: a, predictor: vpa}, {name: a, predictor: vpa}]",
            "two variants are called 'a'",
        ),
    ],
)
def test_invalid_variants(folder: Path, content: str, problem: str) -> None:
    result = backtest(folder, "--variants", "-", input=content)
    assert (result.exit_code in (1, 2), problem in result.output) == (True, True), result.output
    assert "  fix: " in result.output


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("suites: [{name: a, dataset: june}]", "has no data set 'june'"),
        ("suites: [{name: a, dataset: may, horizon_hours: 0}]", "Expected `float` > 0"),
        ("suites: [{name: a, dataset: may, resource: gpu}]", "Invalid enum value 'gpu'"),
        ("suites: [{name: a, dataset: may}]", "may has 8 h, too few for a burn-in of 168 h"),
        ("suites: [{name: a, dataset: may, scenario: none}]", "no suite is left"),
        (
            "suites: [{name: a, dataset: may}, {name: a, dataset: may}]",
            "two suites are called 'a'",
        ),
    ],
)
def test_invalid_suites(folder: Path, content: str, problem: str) -> None:
    result = backtest(folder, "--suites", "-", input=content)
    assert result.exit_code == 2, result.output
    assert problem in result.output
    assert "  fix: " in result.output


def test_refused_folders_and_files(folder: Path, tmp_path: Path) -> None:
    assert "has no trace" in backtest(tmp_path.parent).output
    assert "has no data set 'june'" in backtest(folder, "--dataset", "june").output
    assert "no suite is left" in backtest(folder, "--resource", "memory").output
    (tmp_path / "there").write_text("kept")
    refused = backtest(folder, "--html", tmp_path / "there")
    assert (refused.exit_code, "already exists" in refused.output) == (2, True)
    (folder / "april.series.parquet").write_text("no")
    broken = backtest(folder)
    assert (broken.exit_code, "not a Parquet file" in broken.output) == (1, True)


def test_results_that_could_not_be_written_are_refused_before_anything_is_computed(
    folder: Path, tmp_path: Path
) -> None:
    nowhere = backtest(folder, "--html", tmp_path / "missing" / "out.json")
    assert (nowhere.exit_code, "there is no directory" in nowhere.output) == (2, True)
    (tmp_path / "link").symlink_to(tmp_path / "out")
    same = backtest(folder, "--html", tmp_path / "out", "--parquet", tmp_path / "link")
    assert (same.exit_code, "two results name one file" in same.output) == (2, True)
    assert not (tmp_path / "out").exists()
    long = backtest(folder, "--html", tmp_path / ("n" * 300))
    assert (long.exit_code, "File name too long" in long.output) == (2, True)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    loop = backtest(folder, "--html", tmp_path / "loop")
    assert (loop.exit_code, "cannot write" in loop.output) == (2, True)


def test_a_risk_that_is_no_number_is_refused(folder: Path) -> None:
    result = backtest(folder, "--risk", "nan")
    assert (result.exit_code, "'nan' is not a number" in result.output) == (2, True)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_results_in_a_directory_of_another_user_are_refused(folder: Path) -> None:
    # Loads the modules, which another user may not be able to read.
    assert backtest(folder, "--html", folder / "ours.html").exit_code == 0
    # Other users may not enter the directories of pytest.
    with TemporaryDirectory(dir="/tmp") as directory:
        theirs = shutil.copytree(folder, Path(directory), dirs_exist_ok=True)
        theirs.chmod(0o755)
        with as_nobody():
            result = backtest(theirs, "--html", theirs / "out.html")
    assert (result.exit_code, f"may not write to {theirs}" in result.output) == (2, True)


@contextmanager
def as_nobody() -> Iterator[None]:
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_suites_of_one_name_are_not_mixed(folder: Path) -> None:
    options = ("--burn-in", "2h", "--stride", "15m", "--resource", "cpu", "--scenario", "dense")
    once = backtest(folder, "--dataset", "april", "--horizon", "1h", *options)
    twice = backtest(folder, "--dataset", "april", "--horizon", "1h", "--horizon", "60m", *options)
    assert twice.stdout == once.stdout
    # Data set a-std with scenario dense, and data set a with scenario std-dense.
    for name, scenario in (("a-std", "dense"), ("a", "std-dense")):
        series = table_of([series_row("s", [250] * 96)], SERIES, METADATA)
        stays = [stay_row("pod", "s", 0, 96, scenario=scenario)]
        pyarrow.parquet.write_table(series, folder / f"{name}.series.parquet")
        placement = table_of(stays, PLACEMENT, METADATA)
        pyarrow.parquet.write_table(placement, folder / f"{name}.placement.parquet")
    mixed = backtest(folder, "--dataset", "a", "--dataset", "a-std")
    assert (mixed.exit_code, "two suites are called 'a-std-dense-cpu-" in mixed.output) == (2, True)


def test_moved_pods_without_a_risk_are_refused(folder: Path) -> None:
    result = backtest(folder, "--moved-pods-known")
    assert (result.exit_code, "is without --risk" in result.output) == (2, True)


def test_results_do_not_replace_what_is_read(folder: Path, tmp_path: Path) -> None:
    variants = tmp_path / "variants.yaml"
    variants.write_text("variants: [{name: a, predictor: percentile}]")
    link = tmp_path / "link"
    link.symlink_to(folder / "april.series.parquet")
    (folder / "report.html").write_text("of the day before")
    before = {path: path.read_bytes() for path in [variants, *folder.iterdir()]}
    for path in (variants, link, folder / "april.placement.parquet", folder / "new.series.csv"):
        result = backtest(folder, "--variants", variants, "--html", path, "--overwrite")
        assert (result.exit_code, "is a file that is read" in result.output) == (2, True), path
    assert {path: path.read_bytes() for path in [variants, *folder.iterdir()]} == before
    again = backtest(
        folder, "--dataset", "april", "--html", folder / "report.html", "--overwrite"
    )  # fmt: skip
    assert again.exit_code == 0, again.output


def test_calibrated_predictors_by_declared_risk(folder: Path) -> None:
    result = backtest(
        folder, "--dataset", "april", "--scenario", "std", "--risk", "0.02", "--risk", "0.1",
        "--moved-pods-known",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    for name in ("calibrated 2%", "calibrated 10%", "calibrated 2%, moved pods known"):
        assert f"  {name} " in result.output
    for risk in ("1.5", "0.0009"):
        refused = backtest(folder, "--risk", risk)
        assert refused.exit_code == 2
        assert "0.001<=x<=0.5" in refused.output


def test_priors_of_other_origins(folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "out.parquet"
    options = (
        "--scenario", "std", "--risk", "0.02", "--prior", "package", "--prior", "others",
    )  # fmt: skip
    result = backtest(folder, *options, "--parquet", table)
    assert result.exit_code == 0, result.output
    document = json.loads(backtest(folder, *options, "-o", "json").stdout)
    entries = {entry["variant"]: entry for entry in document["summary"]}
    package, others = (
        entries[name] for name in ("calibrated 2%", "calibrated 2%, prior of others")
    )
    assert (package["declared_risk"], others["declared_risk"]) == (0.02, 0.02)
    assert package["settings_hash"] != others["settings_hash"]
    for entry in (package, others):
        assert f"  {entry['settings_hash']}  " in result.stdout
    hashes = {
        (row["variant"], row["origin"], row["settings_hash"], row["declared_risk"])
        for row in pyarrow.parquet.read_table(table).to_pylist()
        if row["declared_risk"] is not None
    }
    assert hashes == {
        (entry["variant"], origin, entry["settings_hash"], 0.02)
        for entry in (package, others)
        for origin in ("april", "may")
    }


def test_priors_of_other_origins_need_others(folder: Path) -> None:
    result = backtest(folder, "--prior", "others")
    assert (result.exit_code, "--prior others is without --risk" in result.output) == (2, True)
    for path in folder.glob("may.*"):
        path.rename(path.with_name(f"april_{path.name}"))
    result = backtest(folder, "--risk", "0.02", "--prior", "others")
    assert (result.exit_code, "all data sets have the origin 'april'" in result.output) == (2, True)
    assert "  fix: --prior others needs data sets of two origins" in result.output


def test_csv_files_give_the_results_of_parquet_files(folder: Path, tmp_path: Path) -> None:
    (april, _) = read_dataset(folder, "april")
    other = tmp_path / "csv"
    other.mkdir()
    series, placement = long_tables(long_series_rows(april), long_placement_rows(april))
    pyarrow.csv.write_csv(series, other / "april.series.csv")
    pyarrow.csv.write_csv(placement, other / "april.placement.csv")
    options = ("--dataset", "april", "--scenario", april.scenario)
    results = [backtest(each, *options) for each in (folder, other)]
    assert results[0].exit_code == 0, results[0].output
    assert results[1].stdout == results[0].stdout


def test_gaps_are_reported(folder: Path) -> None:
    usage = [250] * 40 + [None] * 24 + [250] * 32
    series = table_of([series_row("a", usage)], SERIES, METADATA)
    pyarrow.parquet.write_table(series, folder / "april.series.parquet")
    result = backtest(folder, "--dataset", "april", "--scenario", "std")
    assert result.exit_code == 0, result.output
    assert "april: cpu is unknown for 1.0 h, in 1 gap of 1 series\n" in result.stderr
    # Every 15 min from 2 h to 7 h, but those before the unknown hour of the gap.
    assert "april-std-cpu-1h: 2 nodes, 26 predictions" in result.stdout
