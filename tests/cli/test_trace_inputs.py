"""What `springtide backtest` and `gaps` read: a folder by its content, and errors of others."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pipeline.cli import trace_inputs
from pipeline.cli.main import cli
from pipeline.cli.recommend_thresholds import read_history
from pipeline.processors.backtest.trace import Trace
from pipeline.times import format_time
from tests.archive.archives import write
from tests.processors.backtest.test_window_traces import played
from tests.processors.backtest.trace_log import log_of

TRACE = played({"a": [100, 300, 100, 300], "b": [300, 100, 300, 100]}, 4)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """The archive of a cluster that ran `TRACE`, whose limits are 1000."""
    directory = tmp_path / "april"
    directory.mkdir()
    write(directory, log_of(TRACE))
    return directory


def gaps(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["gaps", *map(str, arguments)])


def test_an_archive_is_known_by_its_content(archive: Path) -> None:
    result = gaps(archive, "-o", "json")
    assert result.exit_code == 0, result.output
    fleet = json.loads(result.stdout)["items"][0]
    assert (fleet["dataset"], fleet["scenario"], fleet["steps"]) == ("april", "std", 4)
    assert fleet["usage_of_requests"] == {"mean": 0.4, "peak": 0.4}
    assert result.stderr == "april: no usage of memory is known\n"
    backtest = CliRunner().invoke(
        cli, ["backtest", str(archive), "--horizon", "5m", "--burn-in", "5m", "--stride", "5m"]
    )
    assert backtest.exit_code == 0, backtest.output
    assert "april-std-cpu-0.0833333h: 2 nodes, 4 predictions" in backtest.stdout


def test_policies_are_replayed_on_the_windows_of_an_archive(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replay(*options: str) -> Result:
        return CliRunner().invoke(
            cli,
            ["what-if", str(archive), "--policy", "-", "--burn-in", "5m", "-o", "json",
             *options],
            input="model: {horizon_seconds: 300}",
        )  # fmt: skip

    result = replay()
    assert result.exit_code == 0, result.output
    (item,) = json.loads(result.stdout)["items"]
    assert (item["dataset"], [node["node"] for node in item["nodes"]]) == ("april", [*TRACE.nodes])
    assert "cpu_savings" in item["total"]["new"]
    # One window is left, which nothing follows: no prediction can be judged.
    result = replay("--since", format_time(TRACE.start_seconds + 900))
    assert result.exit_code == 0, result.output
    (item,) = json.loads(result.stdout)["items"]
    assert "cpu_savings" not in item["total"]["new"]
    statistics: list[str] = []

    def archive_trace(directory: Path, name: str, statistic: str, *_: object) -> Trace:
        statistics.append(statistic)
        return TRACE

    monkeypatch.setattr(trace_inputs, "archive_trace", archive_trace)
    assert replay("--training-statistic", "avg").exit_code == 0
    assert statistics == ["avg"]


def test_pools_are_those_of_windows(tmp_path: Path) -> None:
    directory = tmp_path / "april"
    directory.mkdir()
    write(directory, log_of(replace(TRACE, pools=("large", "small"))))
    items = json.loads(gaps(directory, "--by", "pool", "-o", "json").stdout)["items"]
    assert [(item["level"], item["name"]) for item in items] == [
        ("fleet", None), ("pool", "large"), ("pool", "small"),
    ]  # fmt: skip
    without = gaps("tests/data/traces", "--by", "pool")
    assert (without.exit_code, "no pod of tests/data/traces has a pool" in without.output) == (
        2,
        True,
    )


def test_a_span_selects_windows_by_their_end(archive: Path) -> None:
    times = [format_time(TRACE.start_seconds + 300 * step) for step in (1, 3)]
    result = gaps(archive, "-o", "json", "--since", times[0], "--until", times[1])
    assert json.loads(result.stdout)["items"][0]["steps"] == 2
    nothing = gaps(archive, "--since", "1h")
    assert (nothing.exit_code, "no window has a pod of Prod" in nothing.output) == (1, True)


def test_folders_that_are_no_input(archive: Path, tmp_path: Path) -> None:
    refused = gaps(tmp_path)
    assert refused.exit_code == 2
    assert "has no trace, and is no archive" in refused.output
    assert "an archive has folders date=YYYY-MM-DD" in refused.output
    assert "cannot read" in gaps(tmp_path / "missing").output
    (archive / "a.series.parquet").write_bytes(b"")
    (archive / "a.placement.parquet").write_bytes(b"")
    assert "has traces and an archive" in gaps(archive).output


def test_a_damaged_file_of_an_archive_is_named(archive: Path) -> None:
    path = next(archive.rglob("*.parquet"))
    path.write_bytes(path.read_bytes()[:-20])
    result = gaps(archive)
    assert (result.exit_code, f"{path} is not a file of an archive" in result.output) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "give either FOLDER or --live"),
        (("tests/data/traces", "--live"), "give either FOLDER or --live"),
        (("tests/data/traces", "--since", "1h"), "do not apply to the traces in tests/data/traces"),
        (("--live", "--since", "1h", "--until", "2h"), "--until is not after --since"),
        (("--live", "--since", "yesterday"), "'yesterday' is not a time such as 2023"),
        (("--live", "--since", "2025-11-29T25:00:00Z"), "is not a time such as 2023-11-14T22:13"),
        (("--live", "--until", "2999-01-01T00:00:00Z"), "is in the future"),
    ],
)
def test_options_that_select_nothing(arguments: tuple[str, ...], problem: str) -> None:
    result = gaps(*arguments)
    assert (result.exit_code, problem in result.output) == (2, True), result.output


def test_reading_reports_progress(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_inputs, "_PROGRESS_SECONDS", 0.0)
    assert f"reading {archive}: " in gaps(archive).stderr
    monkeypatch.setattr(trace_inputs, "print_progress", lambda line, **_: lines.append(line))
    lines: list[str] = []
    read_history(archive, TRACE.start_seconds)
    assert lines[-1] == f"reading {archive}: 100%"
