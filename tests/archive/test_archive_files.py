"""Segments of an archive: what is written is read again, and nothing else counts."""

import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.archive import segment_writer
from pipeline.archive.archive_files import (
    METADATA_KEY,
    SegmentMetadata,
    archive_files,
    encode_metadata,
    file_name,
    locked,
    newest_segment,
    partial_path,
    read_metadata,
    recover,
    remove_before,
)
from pipeline.archive.archive_reader import (
    read_files,
    read_row_groups,
    read_table,
    read_windows,
)
from pipeline.archive.segment_writer import SegmentWriter, day_of
from pipeline.errors import ArchiveError, InvalidRecordError, UnsupportedVersionError, UsageError
from pipeline.processors.archive.archive_rows import LoggedWindow
from pipeline.processors.archive.archive_schema import CONTAINER_COLUMNS
from pipeline.processors.backtest.window_log import COLUMNS, WindowLog
from pipeline.processors.hot_nodes.usage_history import USAGE_COLUMNS, UsageHistory
from tests.archive.archives import TODAY, log_of, metadata_of, write
from tests.processors.archive.window_equality import parts


def by_node(records: list[LoggedWindow]) -> dict[str, list[Any]]:
    """The order of each node's records."""
    nodes = defaultdict[str, list[Any]](list)
    for record in records:
        nodes[record.window.header.node].append((record[:2], parts(record.window)))
    return dict(nodes)


@pytest.fixture
def small_row_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_writer, "ROW_GROUP_ROWS", 12)
    monkeypatch.setattr(segment_writer, "MOST_WAITING_ROWS", 16)


@pytest.mark.usefixtures("small_row_groups")
@pytest.mark.parametrize("seed", range(10))
def test_an_archive_returns_every_record_once_and_each_node_in_order(
    tmp_path: Path, seed: int
) -> None:
    records = log_of(seed)
    write(tmp_path, records)
    back = [*read_windows(tmp_path)]
    assert sorted(record[:2] for record in back) == sorted(record[:2] for record in records)
    assert by_node(back) == by_node(records)


@pytest.mark.usefixtures("small_row_groups")
def test_windows_of_all_partitions_come_in_the_order_of_their_ends(tmp_path: Path) -> None:
    records = sorted(log_of(0, count=60), key=lambda record: record.window.appended_ms)
    records = [r._replace(offset=i) for i, r in enumerate(records) if r.window.type == "window"]
    assert {record.partition for record in records} == {0, 1}
    write(tmp_path, [r for r in records if r.partition] + [r for r in records if not r.partition])
    back = [record.offset for record in read_windows(tmp_path)]
    assert back == [record.offset for record in records]


def test_each_day_has_its_folder(tmp_path: Path) -> None:
    records = log_of(1)
    write(tmp_path, records, segments=1)
    days = {day_of(record) for record in records}
    assert {file.day for file in archive_files(tmp_path)} == days
    for day in days:
        own = [*read_windows(tmp_path, since=day, until=day)]
        assert sorted(r[:2] for r in own) == sorted(r[:2] for r in records if day_of(r) == day)
    assert {path.name for path in tmp_path.iterdir()} == {f"date={day}" for day in days}


def test_nodes_are_selected(tmp_path: Path) -> None:
    records = log_of(2)
    write(tmp_path, records)
    for nodes in (["a"], ["b", "node-1.example"], ["c"]):
        expected = sorted(r[:2] for r in records if r.window.header.node in nodes)
        assert sorted(r[:2] for r in read_windows(tmp_path, nodes=nodes)) == expected
        assert set(read_table(tmp_path, nodes=nodes)["node"].to_pylist()) <= {*nodes}


def test_a_table_has_the_columns_that_were_asked_for(tmp_path: Path) -> None:
    records = log_of(3)
    write(tmp_path, records)
    table = read_table(tmp_path, columns=["kind", "cpu_cores_avg"])
    assert table.column_names == ["kind", "cpu_cores_avg"]
    assert len(table) == sum(len(record.window.rows) for record in records)
    with pytest.raises(UsageError, match="no column 'cpu'"):
        read_table(tmp_path, columns=["cpu"])


def test_files_without_the_columns_of_containers_are_read(tmp_path: Path) -> None:
    records = log_of(3)
    write(tmp_path, records)
    expected = {column: read_table(tmp_path)[column] for column in ("id", "log_offset")}
    for file in archive_files(tmp_path):
        parquet = pq.ParquetFile(file.path)
        groups = [parquet.read_row_group(i) for i in range(parquet.num_row_groups)]
        old = [group.drop_columns(CONTAINER_COLUMNS) for group in groups]
        schema = parquet.schema_arrow
        for name in CONTAINER_COLUMNS:
            schema = schema.remove(schema.get_field_index(name))
        metadata = {METADATA_KEY: parquet.metadata.metadata[METADATA_KEY]}
        with pq.ParquetWriter(file.path, schema) as writer:
            writer.add_key_value_metadata(metadata)
            for group in old:
                writer.write_table(group.cast(schema))
    windows = {record[:2]: record.window for record in read_windows(tmp_path)}
    assert windows.keys() == {record[:2] for record in records}
    assert not any(window.rows.listing.container_ids for window in windows.values())
    table = read_table(tmp_path)
    assert {name: table[name] for name in expected} == expected
    assert table["container_ids"].null_count == len(table)


def test_a_file_of_a_newer_release_is_named_and_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_writer, "encode_metadata", _encode_newer)
    write(tmp_path, log_of(1), segments=1)
    for read in (newest_segment, lambda directory: [*read_windows(directory)]):
        with pytest.raises(UnsupportedVersionError, match=r"version 2.*the release that wrote it"):
            read(tmp_path)


def _encode_newer(metadata: SegmentMetadata) -> dict[bytes, bytes]:
    return encode_metadata(msgspec.structs.replace(metadata, version=2))


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no file of an archive"):
        [*read_windows(tmp_path)]
    with pytest.raises(UsageError, match="cannot read"):
        [*read_windows(tmp_path / "missing")]
    folder = tmp_path / "date=2025-11-30"
    folder.mkdir()
    (folder / file_name(0)).write_bytes(b"PAR1 and something else")
    for read in (read_windows, read_table):
        with pytest.raises(InvalidRecordError, match="not a file of an archive"):
            list(read(tmp_path))


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:2000])


def without_a_column(path: Path) -> None:
    table, metadata = pq.read_table(path), pq.ParquetFile(path).metadata.metadata
    pq.write_table(table.drop_columns(["kind"]).replace_schema_metadata(dict(metadata)), path)


def with_text_for_a_number(path: Path) -> None:
    table, metadata = pq.read_table(path), pq.ParquetFile(path).metadata.metadata
    place = table.column_names.index("cpu_cores_avg")
    table = table.set_column(place, "cpu_cores_avg", pa.array(["x"] * len(table)))
    pq.write_table(table.replace_schema_metadata(dict(metadata)), path)


def with_nothing_for_an_offset(path: Path) -> None:
    table, metadata = pq.read_table(path), pq.ParquetFile(path).metadata.metadata
    place = table.column_names.index("log_offset")
    table = table.set_column(place, "log_offset", pa.nulls(len(table), pa.int64()))
    pq.write_table(table.replace_schema_metadata(dict(metadata)), path)


def with_nothing_in_a_row(path: Path, column: str, group: int) -> None:
    """Make a value of the first row of a row group null."""
    parquet = pq.ParquetFile(path)
    tables = [parquet.read_row_group(number) for number in range(parquet.num_row_groups)]
    table, place = tables[group], parquet.schema_arrow.names.index(column)
    values = table[column].to_pylist()
    changed = pa.array([None, *values[1:]], table.schema.field(column).type)
    tables[group] = table.set_column(place, column, changed)
    metadata = dict(parquet.metadata.metadata)
    schema = tables[0].schema.with_metadata(metadata)
    with pq.ParquetWriter(path, schema) as writer:
        for each in tables:
            writer.write_table(each.replace_schema_metadata(metadata))


def as_a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def read_history(directory: Path) -> None:
    read_files(directory, USAGE_COLUMNS, UsageHistory().add)


def read_log(directory: Path) -> None:
    read_row_groups(directory, COLUMNS, WindowLog("p90").add)


@pytest.mark.parametrize(
    "damage",
    [
        truncated, without_a_column, with_text_for_a_number, with_nothing_for_an_offset,
        as_a_directory,
    ],
)  # fmt: skip
def test_a_damaged_file_is_named(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """By every reader that needs what is damaged: an offset is none in a table of all rows."""
    write(tmp_path, log_of(3, 60), 2)
    damage(archive_files(tmp_path)[0].path)
    readers: list[Callable[[Path], Any]] = [
        lambda directory: [*read_windows(directory)], read_history, read_log,
    ]  # fmt: skip
    if damage is not with_nothing_for_an_offset:
        readers.append(read_table)
    for read in readers:
        with pytest.raises(InvalidRecordError, match=r"date=.*/windows-00000000\.parquet"):
            read(tmp_path)


@pytest.mark.usefixtures("small_row_groups")
def test_an_error_about_a_row_names_its_row_group(tmp_path: Path) -> None:
    write(tmp_path, log_of(3, 60), 1)
    path = max(archive_files(tmp_path), key=lambda file: file.path.stat().st_size).path
    groups = pq.ParquetFile(path).num_row_groups
    assert groups > 2
    with_nothing_in_a_row(path, "log_offset", groups - 2)
    for read in (lambda directory: [*read_windows(directory)], read_log):
        with pytest.raises(InvalidRecordError, match=rf"\.parquet, row group {groups - 2}: "):
            read(tmp_path)


def test_the_newest_segment_has_the_position(tmp_path: Path) -> None:
    assert newest_segment(tmp_path) is None
    records = log_of(4)
    write(tmp_path, records)
    newest = newest_segment(tmp_path)
    assert newest is not None
    ends = [max(r.offset + 1 for r in records if r.partition == p) for p in (0, 1)]
    assert [end for _, end in newest.offsets] == ends
    assert newest.segment == 2


def test_a_segment_without_windows_has_a_file_and_a_position(tmp_path: Path) -> None:
    SegmentWriter(tmp_path, 7).commit(metadata_of(7, [3, 4], [5, 4]), TODAY)
    newest = newest_segment(tmp_path)
    assert newest is not None
    assert (newest.segment, newest.days, newest.offsets) == (7, ("2025-11-30",), ((3, 5), (4, 4)))
    assert [*read_windows(tmp_path)] == []


def test_an_interrupted_segment_is_removed_or_completed(tmp_path: Path) -> None:
    records = log_of(5)
    whole = tmp_path / "whole"
    whole.mkdir()
    write(whole, records)
    complete = {file.path.relative_to(whole) for file in archive_files(whole)}
    last = sorted(path for path in complete if path.name == file_name(2))
    assert len(last) > 1
    for renamed in range(len(last) + 1):
        directory = tmp_path / f"renamed-{renamed}"
        shutil.copytree(whole, directory)
        for path in last[renamed:]:
            day = date.fromisoformat(path.parent.name.removeprefix("date="))
            (directory / path).rename(partial_path(directory, day, 2))
        recover(directory)
        left = {file.path.relative_to(directory) for file in archive_files(directory)}
        assert left == (complete if renamed else complete - {*last})
        assert [path for path in directory.rglob(".*") if path.is_file()] == []


def test_a_failed_segment_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> None:
        raise OSError(28, "No space left on device")

    write(tmp_path, log_of(6))
    before = [file.path for file in archive_files(tmp_path)]
    writer = SegmentWriter(tmp_path, 3)
    for record in log_of(7):
        writer.add(record)
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space"):
        writer.commit(metadata_of(3, [0, 0], [1, 1]), TODAY)
    monkeypatch.undo()
    writer.abandon()
    recover(tmp_path)
    assert [file.path for file in archive_files(tmp_path)] == before


def test_old_days_are_removed_but_not_the_position(tmp_path: Path) -> None:
    records = log_of(8)
    write(tmp_path, records)
    newest = max(file.segment for file in archive_files(tmp_path))
    assert remove_before(tmp_path, date(2030, 1, 1)) > 0
    assert {file.segment for file in archive_files(tmp_path)} == {newest}
    assert remove_before(tmp_path, date(2030, 1, 1)) == 0
    assert set(tmp_path.iterdir()) == {file.path.parent for file in archive_files(tmp_path)}


def test_two_archivers_cannot_have_one_directory(tmp_path: Path) -> None:
    other = locked(tmp_path / "archive")
    with locked(tmp_path / "archive"), pytest.raises(ArchiveError, match="another archiver writes"):
        other.__enter__()
    with locked(tmp_path / "archive"):
        pass


def test_a_flood_of_days_ends_a_segment_early(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, 0)
    records = log_of(9, count=200, days=400)
    added = 0
    while not writer.is_full:
        writer.add(records[added])
        added += 1
    assert added < len(records)
    assert len(writer.commit(metadata_of(0, [0, 0], [0, 0]), TODAY)) == segment_writer.MOST_DAYS


def test_metadata_say_what_a_file_holds(tmp_path: Path) -> None:
    records = log_of(10)
    write(tmp_path, records, segments=1)
    days = {day_of(record).isoformat() for record in records}
    for file in archive_files(tmp_path):
        metadata = read_metadata(file.path)
        assert {*metadata.days} == days
        assert {*metadata.row_groups} == {r.partition for r in records if day_of(r) == file.day}


def test_the_day_of_a_window_is_that_of_its_start() -> None:
    for record in log_of(11):
        window = record.window
        start = window.header.window_start_ms if window.type == "window" else window.appended_ms
        assert day_of(record) == datetime.fromtimestamp(start / 1000, UTC).date()


def test_a_day_that_is_removed_while_files_are_listed_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, log_of(1))
    files = archive_files(tmp_path)
    removed = tmp_path / "date=2020-01-01"
    removed.mkdir()
    listed = Path.iterdir

    def iterdir(folder: Path) -> Iterator[Path]:
        if folder == removed:
            removed.rmdir()
        return listed(folder)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    assert archive_files(tmp_path) == files
    assert not removed.exists()
