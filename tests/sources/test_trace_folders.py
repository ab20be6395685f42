"""Folders with traces: which data sets they hold, and what is refused."""

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from pipeline.errors import InvalidRecordError, UsageError
from pipeline.sources import csv_files, trace_folders
from pipeline.sources.prometheus_files import read_exports
from pipeline.sources.trace_folders import datasets, read_dataset
from tests.processors.backtest.trace_exports import answer, matrix
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
    write(tmp_path, "a")
    (tmp_path / "a.series.parquet").unlink()
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


SERIES_CSV = """series,time_unix,cpu_m,mem_mi,cpu_request_m,cpu_limit_m,mem_request_mi,mem_limit_mi
a,1700000100,1,,500,1000,0,0
a,1700000400,2.5,,500,1000,0,0
a,1700000700,NaN,,500,1000,0,0
a,1700001000,3,,500,1000,0,0
"""
PLACEMENT_CSV = """owner,scenario,node,pod,series,start_unix,end_unix,allocatable_m
me,std,"node 1, old",pod,a,1700000400,1700001300,8000
"""


def write_csv(folder: Path, series: str = SERIES_CSV, placement: str = PLACEMENT_CSV) -> None:
    (folder / "a.series.csv").write_text(series)
    (folder / "a.placement.csv").write_text(placement)


def test_csv_files_compressed_or_not(tmp_path: Path) -> None:
    write_csv(tmp_path)
    path = tmp_path / "a.series.csv"
    (tmp_path / "a.series.csv.gz").write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(UsageError, match=r"has a\.series\.csv and a\.series\.csv\.gz"):
        datasets(tmp_path)
    path.unlink()
    assert datasets(tmp_path) == ["a"]
    (trace,) = read_dataset(tmp_path, "a")
    assert (trace.nodes, trace.pods) == (("node 1, old",), ("pod",))
    assert trace.stay_usage(0)[:, 0].tolist() == [2.5, 2.5, 3.0]
    assert trace.workloads == ()
    placement = PLACEMENT_CSV.replace("owner", "workload").replace("me,std", "shop/cart,std")
    (tmp_path / "a.placement.csv").write_text(placement)
    (trace,) = read_dataset(tmp_path, "a")
    assert trace.workloads == ("shop/cart",)


def test_csv_files_with_a_byte_order_mark(tmp_path: Path) -> None:
    # Spreadsheets write one. The first column is an optional one here.
    lines = PLACEMENT_CSV.splitlines()
    placement = "\n".join([f"workload,{lines[0]}", *(f"shop/cart,{line}" for line in lines[1:])])
    write_csv(tmp_path, "\ufeff" + SERIES_CSV, "\ufeff" + placement)
    (trace,) = read_dataset(tmp_path, "a")
    assert trace.workloads == ("shop/cart",)


def test_names_in_csv_files_may_have_line_breaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "a\r\nb\n" * 20
    rows = SERIES_CSV.replace("\na,", f'\n"{name}",')
    # Blocks end within a name.
    monkeypatch.setattr(csv_files, "_BLOCK_BYTES", 300)
    write_csv(tmp_path, rows, PLACEMENT_CSV.replace("pod,a,", f'"{name}","{name}",'))
    (trace,) = read_dataset(tmp_path, "a")
    assert len(trace.pods) == 1
    assert trace.pods == trace.series
    assert trace.stay_usage(0)[:, 0].tolist() == [2.5, 2.5, 3.0]


def test_tables_of_two_kinds(tmp_path: Path) -> None:
    write(tmp_path, "a")
    write_csv(tmp_path)
    with pytest.raises(UsageError, match=r"has a\.placement\.csv and a\.placement\.parquet"):
        datasets(tmp_path)
    (tmp_path / "a.placement.csv").unlink()
    (tmp_path / "a.series.parquet").unlink()
    with pytest.raises(UsageError, match=r"has no a\.(placement\.csv|series\.parquet)"):
        datasets(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("time_unix", "time", r"a\.series\.csv: Column 'time_unix' in .* does not exist"),
        ("mem_mi", "cpu_m", r"a\.series\.csv: two columns cpu_m"),
        ("2.5", "2,5", r"a\.series\.csv: CSV parse error: Row #3: Expected 8 columns, got 9"),
        ("2.5", "2.5m", r"a\.series\.csv: In CSV column #2: Row #3: .* invalid value '2\.5m'"),
        ("1700000400", "2023-11-14", r"In CSV column #1: Row #3: .* invalid value '2023-11-14'"),
        ("NaN", "+Inf", "^a: series: row 4: cpu_m is negative or above"),
        ("NaN", "-3", "^a: series: row 4: cpu_m is negative or above"),
        ("a,1700000400", ",1700000400", "^a: series: row 3: it has no series"),
        (SERIES_CSV, "", r"a\.series\.csv: Empty CSV file"),
        (SERIES_CSV, "x" * 9_000_000, r"a\.series\.csv: "),
    ],
)
def test_csv_files_that_are_no_series(tmp_path: Path, old: str, new: str, problem: str) -> None:
    write_csv(tmp_path, series=SERIES_CSV.replace(old, new))
    with pytest.raises(InvalidRecordError, match=problem) as caught:
        read_dataset(tmp_path, "a")
    assert caught.value.hint


# Without names the tests of two processes differ: gzip writes the time.
@pytest.mark.parametrize(
    "content", [b"no gzip", gzip.compress(SERIES_CSV.encode())[:-9]], ids=["text", "cut short"]
)
def test_damaged_gzip_file(tmp_path: Path, content: bytes) -> None:
    write_csv(tmp_path)
    (tmp_path / "a.series.csv").unlink()
    (tmp_path / "a.series.csv.gz").write_bytes(content)
    with pytest.raises(UsageError, match=r"cannot read .*a\.series\.csv\.gz"):
        read_dataset(tmp_path, "a")


def test_csv_file_that_expands_beyond_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_csv(tmp_path)
    (tmp_path / "a.series.csv").unlink()
    rows = SERIES_CSV + "a,1700000400,1,,500,1000,0,0\n" * 500_000
    path = tmp_path / "a.series.csv.gz"
    path.write_bytes(gzip.compress(rows.encode()))
    assert path.stat().st_size < 100_000
    monkeypatch.setattr(csv_files, "MOST_ROWS", 100_000)
    with pytest.raises(InvalidRecordError, match=r"more than 100,000 rows"):
        read_dataset(tmp_path, "a")


def write_exports(folder: Path) -> Path:
    """Three steps of a pod, in two parts of its usage, one of them compressed."""
    exports = folder / "a.prometheus"
    exports.mkdir()
    labels = {"namespace": "shop", "pod": "cart", "node": "n1", "container": "main"}
    for part, values in (("1", {1700000400: 0.1, 1700000700: 0.2}), ("2", {1700001000: 0.3})):
        (exports / f"cpu.{part}.json").write_bytes(answer(matrix((labels, values))))
    (exports / "cpu.2.json.gz").write_bytes(gzip.compress((exports / "cpu.2.json").read_bytes()))
    (exports / "cpu.2.json").unlink()
    for name, amount in (("requests", 0.5), ("limits", 1.0), ("allocatable", 4.0)):
        stated = matrix((labels | {"resource": "cpu"}, {1700000400: amount}))
        (exports / f"{name}.json").write_bytes(answer(stated))
    (exports / "notes.txt").write_text("ignored")
    return exports


def test_exports_of_prometheus(tmp_path: Path) -> None:
    exports = write_exports(tmp_path)
    assert datasets(tmp_path) == ["a"]
    (trace,) = read_dataset(tmp_path, "a")
    assert (trace.dataset, trace.scenario, trace.pods) == ("a", "std", ("shop/cart@n1",))
    assert trace.stay_usage(0)[:, 0] == pytest.approx([100.0, 200.0, 300.0])
    write_csv(tmp_path)
    with pytest.raises(UsageError, match=r"has a\.placement\.csv and a\.prometheus"):
        datasets(tmp_path)
    for name in ("a.series.csv", "a.placement.csv"):
        (tmp_path / name).unlink()
    (exports / "memroy.json").write_text("{}")
    with pytest.raises(UsageError, match=r"memroy\.json is no export: allocatable, cpu, limits, "):
        read_dataset(tmp_path, "a")


def test_errors_name_the_export(tmp_path: Path) -> None:
    exports = write_exports(tmp_path)
    path = exports / "cpu.2.json.gz"
    path.write_bytes(gzip.compress(b'{"status":"error","errorType":"timeout","error":"slow"}'))
    with pytest.raises(InvalidRecordError, match=r"cpu\.2\.json\.gz: .* an error: timeout: slow"):
        read_dataset(tmp_path, "a")
    for content in (b"no gzip", gzip.compress(bytes(100))[:-9]):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=r"cannot read .*cpu\.2\.json\.gz"):
            read_dataset(tmp_path, "a")
    path.unlink()
    (exports / "limits.json").unlink()
    with pytest.raises(InvalidRecordError, match=r"^a: the export limits has no series"):
        read_dataset(tmp_path, "a")


def test_exports_are_bounded(tmp_path: Path) -> None:
    exports = write_exports(tmp_path)
    with pytest.raises(InvalidRecordError, match=r"cpu\.2\.json\.gz: more than 3 samples in "):
        read_exports(exports, most_samples=3)
    (exports / "cpu.2.json.gz").write_bytes(gzip.compress(b" " * 1_000_000))
    with pytest.raises(UsageError, match=r"cpu\.2\.json\.gz: it is larger than 4 KiB"):
        read_exports(exports, most_bytes=4096)
