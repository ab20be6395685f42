"""What was ever written stays readable, and no change of a format goes unnoticed."""

from typing import Any

import pyarrow as pa
import pytest

from pipeline.topics.sample_rows import encode_arrays, read_rows, read_samples
from pipeline.topics.samples import KINDS
from pipeline.topics.windows import Window, decode_window, encode_window
from tests.topics import golden
from tests.topics.golden import FOLDER, GOLDEN, Golden
from tests.topics.window_values import columns


def newest(name: str) -> bytes:
    (found,) = [g for g in GOLDEN if g.name == name]
    return found.files()[-1].read_bytes()


@pytest.mark.parametrize("kind", GOLDEN, ids=lambda g: g.name)
def test_bytes_of_today_are_those_of_the_newest_file(kind: Golden) -> None:
    assert kind.files(), "no golden file: python -m tests.topics.golden --write"
    assert kind.write(kind.record) == kind.files()[-1].read_bytes(), (
        "the format changed: if that is meant and readers accept both forms, "
        "python -m tests.topics.golden --write"
    )


@pytest.mark.parametrize(
    ("kind", "path"), [(g, p) for g in GOLDEN for p in g.files()], ids=lambda v: v.name
)
def test_every_file_ever_written_is_read(kind: Golden, path: Any) -> None:
    kind.read(path.read_bytes())


def test_no_golden_file_is_without_a_reader() -> None:
    known = {path for kind in GOLDEN for path in kind.files()}
    assert {path for path in FOLDER.iterdir() if path.is_file()} == known


@pytest.mark.parametrize(
    "kind",
    [
        kind
        for kind in GOLDEN
        if kind.suffix == "msgpack"
        or kind.name in ("nodes", "pods", "workloads", "predictions", "node-state")
    ],
    ids=lambda kind: kind.name,
)
def test_what_is_read_is_what_was_written_with_unknown_for_nan(kind: Golden) -> None:
    data = newest(kind.name)
    assert kind.read(data) == kind.record
    assert b"NaN" not in data


def test_samples_are_read_as_written() -> None:
    read = read_samples(newest("samples"))
    assert read.header == golden.HEADER
    for row, expected in zip(read.rows, golden.sample_rows(), strict=True):
        assert repr(dict(sorted(row.items()))) == repr(dict(sorted(expected.items())))


def test_nanoarrow_and_pyarrow_write_the_same_sample() -> None:
    """The exporter encodes with nanoarrow, workers with pyarrow."""
    sample = read_rows(newest("samples"))
    numbers = [
        pa.array(values, mask=null)
        for values, null in zip(sample.numbers, sample.null, strict=True)
    ]
    again = encode_arrays(
        sample.header, kinds=[KINDS[code] for code in sample.listing.kinds], ids=sample.listing.ids,
        qos=sample.qos, statistics=dict(zip(sample.statistic_rows, numbers, strict=True)),
        points=pa.array(sample.points.ravel(), from_pandas=True),
        containers=sample.container_lists,
    )  # fmt: skip
    one, other = (
        pa.ipc.open_stream(data.partition(b"\n")[2]).read_next_batch()
        for data in (again, newest("samples"))
    )
    assert one.schema.equals(other.schema, check_metadata=True)
    assert str(one) == str(other)


def test_windows_are_read_as_written() -> None:
    window = decode_window(newest("windows"))
    expected = golden.window_record()
    assert columns(window) == columns(expected)
    names = ("type", "header", "node", "sample_offset", "appended_ms", "bad_values")
    assert [getattr(window, name) for name in names] == [getattr(expected, name) for name in names]


def test_a_window_read_and_written_again_is_the_same_bytes() -> None:
    for name in ("windows", "windows-departure"):
        window: Window = decode_window(newest(name))
        assert encode_window(window) == newest(name)


def test_write_adds_a_revision_and_leaves_the_old_one(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(golden, "FOLDER", tmp_path)
    assert [golden.main(arguments) for arguments in (["--write"], [])] == [0, 0]
    old = tmp_path / "nodes.001.json"
    old.write_bytes(b"{}")
    assert golden.main([]) == 1
    assert "differs: nodes.002.json" in capsys.readouterr().out
    assert [golden.main([argument]) for argument in ("--write", "--wat")] == [0, 2]
    assert old.read_bytes() == b"{}"
    assert golden.main([]) == 0
