"""Traces in CSV and Parquet give equal windows; other files are refused."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from pipeline.errors import InvalidRecordError, UsageError
from pipeline.processors.exchange.trace_windows import read_trace
from pipeline.sources.trace_files import read_table
from pipeline.topics.nodes import Strategy
from pipeline.topics.windows import encode_window

CSV = """window_end,kind,id,cpu_cores_avg,memory_bytes_avg,coverage,pod_class,deleting
2026-11-01T00:00:00Z,node,,1.5,1e9,1,,
2026-11-01T00:00:00Z,pod,7,0.5,,0.9,prod,false
2026-11-01T00:05:00Z,node,,2,2000000000,1,,
2026-11-01T00:05:00Z,pod,7,0.25,1e8,1,prod,true
"""


def windows(path: Path) -> list[bytes]:
    return [encode_window(window) for window in read_trace(read_table(path), "n", Strategy())]


def test_csv_and_parquet_give_the_same_windows(tmp_path: Path) -> None:
    text, binary = tmp_path / "trace.csv", tmp_path / "trace"
    text.write_text(CSV)
    table = read_table(text)
    assert table.column("id").to_pylist() == ["", "7", "", "7"]
    # Types of other writers: timestamps, dictionaries, 32-bit numbers.
    table = table.set_column(0, "window_end", table.column(0).cast(pa.timestamp("us", tz="UTC")))
    table = table.set_column(1, "kind", table.column(1).dictionary_encode())
    table = table.set_column(5, "coverage", table.column(5).cast(pa.float32()))
    pyarrow.parquet.write_table(table, binary)
    from_csv, from_parquet = windows(text), windows(binary)
    assert (len(from_csv), from_csv[1]) == (2, from_parquet[1])
    assert from_csv[0] != from_parquet[0]  # 0.9 in 32 bits


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"", InvalidRecordError, "neither CSV nor Parquet"),
        (b"window_end,coverage\na,b\n", InvalidRecordError, "neither CSV nor Parquet: .*'b'"),
        (b"window_end,coverage\na\n", InvalidRecordError, "neither CSV nor Parquet: .*columns"),
        (b"window_end\n\xff\xfe\n", InvalidRecordError, "neither CSV nor Parquet"),
        (b"PAR1 and no more", InvalidRecordError, "neither CSV nor Parquet"),
        (None, UsageError, "cannot read"),
    ],
)
def test_other_files_are_refused(
    content: bytes | None, error: type[Exception], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "trace"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(error, match=message):
        read_table(path)


def test_csv_cannot_contain_points(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "window_end,points_cpu_cores\n2026-11-01T00:00:00Z,1 2\n2026-11-01T00:05:00Z,3\n"
    )
    with pytest.raises(InvalidRecordError, match="column points_cpu_cores"):
        windows(path)
