"""pandas, polars and DuckDB read an archive as it is, and the page's examples run."""

import re
import subprocess
import sys
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import duckdb
import pandas
import polars
import pyarrow as pa
import pyarrow.compute
import pytest

from pipeline.archive.archive_files import locked, partial_path
from pipeline.archive.archive_reader import read_table
from pipeline.processors.archive.archive_schema import ARCHIVE_SCHEMA
from tests.archive.archives import log_of, write
from tests.processes import environment

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "archive.md"
COLUMNS = [name for name in ARCHIVE_SCHEMA.names if name != "gauges"]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """An archive `windows` with unfinished files and a lock."""
    directory = tmp_path / "windows"
    with locked(directory):
        write(directory, log_of(1, count=40))
    partial_path(directory, date(2025, 11, 29), 9).write_bytes(b"unfinished")
    return directory


def expected(archive: Path) -> pa.Table:
    """The rows in the order of the log."""
    return read_table(archive, columns=COLUMNS).sort_by(_ORDER)


_ORDER = [("log_partition", "ascending"), ("log_offset", "ascending"), ("kind", "ascending"),
          ("id", "ascending")]  # fmt: skip
_BY = [name for name, _ in _ORDER]


def test_pandas_reads_the_folder(archive: Path) -> None:
    frame = pandas.read_parquet(archive)
    assert "date" in frame.columns
    table = pa.Table.from_pandas(
        frame[COLUMNS].sort_values(_BY), ARCHIVE_SCHEMA.empty_table().select(COLUMNS).schema,
        preserve_index=False,
    )  # fmt: skip
    assert (pa.compute.list_value_length(table["container_ids"]).fill_null(0).to_numpy() > 1).any()
    # pandas has one value for null and NaN.
    assert _without_nan(table).equals(_without_nan(expected(archive)))


def test_polars_reads_the_folder(archive: Path) -> None:
    frame = polars.scan_parquet(archive / "**/*.parquet", hive_partitioning=True).collect()
    assert {*frame["date"].unique()} == {date(2025, 11, day) for day in (29, 30)} | {
        date(2025, 12, 1)
    }
    rows = frame.select(COLUMNS).sort(_BY).to_arrow()
    assert _texts(rows) == _texts(expected(archive))


def test_duckdb_reads_the_folder(archive: Path) -> None:
    connection = duckdb.connect()
    files = f"read_parquet('{archive}/**/*.parquet', hive_partitioning = true)"
    rows = connection.sql(
        f"SELECT {', '.join(COLUMNS)} FROM {files} ORDER BY {', '.join(_BY)}"
    ).to_arrow_table()
    assert _texts(rows) == _texts(expected(archive))
    (times,) = connection.sql(f"SELECT list(DISTINCT date) FROM {files}").fetchall()
    assert {*times[0]} <= {date(2025, 11, 29), date(2025, 11, 30), date(2025, 12, 1)}
    ((start,),) = connection.sql(f"SELECT min(window_start) FROM {files}").fetchall()
    assert datetime(2025, 11, 29, tzinfo=UTC) <= start < datetime(2025, 12, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    "code", re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
)
def test_an_example_of_the_page_runs(code: str, archive: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=archive.parent, env=environment(), capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "node" in done.stdout


def _without_nan(table: pa.Table) -> pa.Table:
    """The table with null for NaN, also in lists."""
    return pa.table(
        [
            pa.array(_nulls(column.to_pylist()), column.type, from_pandas=True)
            if pa.types.is_floating(column.type) or pa.types.is_list(column.type)
            else column.combine_chunks()
            for column in table.columns
        ],
        table.schema.names,
    )


def _nulls(values: list[Any]) -> list[Any]:
    return [
        _nulls(value) if isinstance(value, list) else None if value != value else value
        for value in values
    ]


def _texts(table: pa.Table) -> list[str]:
    """Rows in a form that compares NaN, null and times."""
    times = [field.name for field in table.schema if pa.types.is_timestamp(field.type)]
    for name in times:
        column = table[name].cast(pa.timestamp("ms", "UTC"))
        table = table.set_column(table.schema.get_field_index(name), name, column)
    return [*map(str, table.to_pylist())]
