"""Folders with traces: which data sets they hold, and what is refused."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from pipeline.errors import InvalidRecordError, UsageError
from pipeline.sources import trace_folders
from pipeline.sources.trace_folders import datasets, read_dataset
from tests.processors.backtest.trace_files import (
    PLACEMENT,
    SERIES,
    series_row,
    stay_row,
    table_of,
)


def write(folder: Path, name: str) -> None:
    series = table_of([series_row("a", [1, 2, 3])], SERIES)
    stays = [stay_row("pod", "a", 0, 3), stay_row("pod", "a", 1, 3, scenario="dense")]
    pyarrow.parquet.write_table(series, folder / f"{name}.series.parquet")
    placement = table_of(stays, PLACEMENT)
    # Other writers store repeated names once.
    for number in (0, 1):
        encoded = placement.column(number).dictionary_encode()
        placement = placement.set_column(number, placement.column_names[number], encoded)
    pyarrow.parquet.write_table(placement, folder / f"{name}.placement.parquet")


def test_data_sets_are_pairs_of_files(tmp_path: Path) -> None:
    for name in ("b", "a.week-1"):
        write(tmp_path, name)
    (tmp_path / "README.md").write_text("made up")
    assert datasets(tmp_path) == ["a.week-1", "b"]
    traces = read_dataset(tmp_path, "b")
    assert [(trace.dataset, trace.scenario) for trace in traces] == [("b", "dense"), ("b", "std")]
    assert traces[0].stay_usage(0)[:, 0].tolist() == [2.0, 3.0]


def test_folder_without_traces(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no trace"):
        datasets(tmp_path)
    with pytest.raises(UsageError, match=r"cannot read .*No such file"):
        datasets(tmp_path / "missing")


@pytest.mark.parametrize("suffix", ["series", "placement"])
def test_half_a_data_set(tmp_path: Path, suffix: str) -> None:
    write(tmp_path, "a")
    (tmp_path / f"a.{suffix}.parquet").unlink()
    with pytest.raises(UsageError, match=rf"has no a\.{suffix}\.parquet"):
        datasets(tmp_path)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"series,start\n", b"PAR1" + bytes(100)])
def test_files_that_are_not_parquet(tmp_path: Path, content: bytes) -> None:
    write(tmp_path, "a")
    (tmp_path / "a.series.parquet").write_bytes(content)
    with pytest.raises(InvalidRecordError, match=r"a\.series\.parquet: not a Parquet file"):
        read_dataset(tmp_path, "a")


def test_truncated_file(tmp_path: Path) -> None:
    write(tmp_path, "a")
    path = tmp_path / "a.placement.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InvalidRecordError, match="not a Parquet file"):
        read_dataset(tmp_path, "a")


def test_unreadable_file(tmp_path: Path) -> None:
    (tmp_path / "a.series.parquet").mkdir()
    with pytest.raises(UsageError, match="cannot read"):
        read_dataset(tmp_path, "a")


def test_errors_name_the_data_set(tmp_path: Path) -> None:
    write(tmp_path, "a")
    table = pa.table({"series": ["a"]}).replace_schema_metadata({"step_s": "300"})
    pyarrow.parquet.write_table(table, tmp_path / "a.series.parquet")
    with pytest.raises(InvalidRecordError, match=r"^a: series: steps of the file's metadata"):
        read_dataset(tmp_path, "a")


def test_file_that_expands_beyond_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million equal samples take a few bytes in a file."""
    write(tmp_path, "a")
    rows = [series_row("a", [7] * 1_000_000)]
    path = tmp_path / "a.series.parquet"
    pyarrow.parquet.write_table(table_of(rows, SERIES), path)
    assert path.stat().st_size < 10_000
    monkeypatch.setattr(trace_folders, "MOST_VALUES", 100_000)
    with pytest.raises(InvalidRecordError, match=r"1,000,\d+ values, more than 100,000"):
        read_dataset(tmp_path, "a")
