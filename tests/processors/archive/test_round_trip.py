"""Windows come back from the rows of an archive as they were in the log."""

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from pipeline.errors import InvalidRecordError
from pipeline.processors.archive.archive_rows import LoggedWindow, archive_rows
from pipeline.processors.archive.archive_schema import ARCHIVE_SCHEMA, COLUMNS, CONTAINER_COLUMNS
from pipeline.processors.archive.archived_windows import archived_windows
from pipeline.processors.model.window_batch import WindowBatch
from pipeline.topics.sample_rows import read_rows
from pipeline.topics.samples import STATISTICS
from pipeline.topics.windows import decode_window, encode_window
from tests.processors.archive.random_windows import random_log
from tests.processors.archive.window_equality import parts, sample_parts
from tests.topics import golden

WINDOW = decode_window(encode_window(golden.window_record()))

_TRAINING_ARRAYS = (
    "allocatable", "node_usage", "host_apps", "system", "window_index", "pod_usage", "pod_coverage",
    "pod_ages",
)  # fmt: skip


def read_back(records: list[LoggedWindow]) -> list[LoggedWindow]:
    return list(archived_windows(archive_rows(records)))


@pytest.mark.parametrize("seed", range(60))
def test_windows_are_the_same_after_the_archive(seed: int) -> None:
    records = random_log(np.random.default_rng(seed))
    back = read_back(records)
    assert [record[:2] for record in back] == [record[:2] for record in records]
    for before, after in zip(records, back, strict=True):
        assert parts(after.window) == parts(before.window)


@pytest.mark.parametrize("seed", range(20))
def test_windows_of_an_archive_can_be_encoded_for_the_log_again(seed: int) -> None:
    records = random_log(np.random.default_rng(seed))
    for before, after in zip(records, read_back(records), strict=True):
        # The records here were encoded by pyarrow, too: equal to the byte, except for what lies
        # under nulls.
        assert sample_parts(read_rows(after.window.rows.sample.data)) == sample_parts(
            before.window.rows.sample
        )
        assert parts(decode_window(encode_window(after.window))) == parts(before.window)


@pytest.mark.parametrize("seed", range(20))
def test_models_and_results_read_the_same_columns(seed: int) -> None:
    records = random_log(np.random.default_rng(seed))
    # The log may have infinities of a foreign writer.
    with np.errstate(all="ignore"):
        before, after = (
            WindowBatch([record.window for record in log]) for log in (records, read_back(records))
        )
        for statistic in STATISTICS:
            expected, columns = before.training(statistic), after.training(statistic)
            for name in _TRAINING_ARRAYS:
                np.testing.assert_array_equal(getattr(columns, name), getattr(expected, name))
            assert [*map(str, columns.heads)] == [*map(str, expected.heads)]


def test_facts_that_repeat_are_one_object_as_in_the_log() -> None:
    # Facts with records of the fleet do not repeat.
    facts = msgspec.structs.replace(WINDOW.node, pool_outcomes=None, workload_histories=())
    window = decode_window(encode_window(msgspec.structs.replace(WINDOW, node=facts)))
    first, second = (
        record.window
        for record in read_back([LoggedWindow(0, 1, window), LoggedWindow(0, 2, window)])
    )
    assert first.rows.pods is second.rows.pods is window.rows.pods
    assert first.rows.listing is second.rows.listing is window.rows.listing
    assert first.node is second.node is window.node
    assert first.rows.sample.statistic_rows is second.rows.sample.statistic_rows


def test_rows_are_flat_and_null_where_unknown() -> None:
    rows = archive_rows([LoggedWindow(3, 7, WINDOW)]).to_pylist()
    assert [row["kind"] for row in rows] == ["node", "pod", "pod", "tier", "host_app"]
    assert {row["log_offset"] for row in rows} == {7}
    assert {row["node"] for row in rows} == {"node-1.example"}
    assert rows[0]["window_end"].isoformat() == "2023-11-14T22:14:00+00:00"
    assert rows[0]["points_cpu_cores"] == [0.0, 1.0, None, 2.5]
    assert rows[0]["allocatable_cpu_millicores"] == 3800
    assert [row["cpu_cores_avg"] for row in rows] == [1.25, 1.25, None, 0.125, None]
    assert [row["pod_name"] for row in rows] == [None, "cart-0", None, None, None]
    assert [row["pod_request_cpu_millicores"] for row in rows] == [None, 500.0, None, None, None]
    assert rows[1]["pod_class"] == "prod"
    assert rows[1]["points_cpu_cores"] is None


def test_every_column_has_a_meaning_and_no_name_of_another() -> None:
    assert ARCHIVE_SCHEMA.names == [*COLUMNS]
    assert all(column.meaning for column in COLUMNS.values())
    assert not any(pa.types.is_nested(field.type) for field in ARCHIVE_SCHEMA if field.name not in (
        "gauges", "points_offset_seconds", "points_cpu_cores", "points_memory_bytes",
        *CONTAINER_COLUMNS,
    ))  # fmt: skip


def test_rows_of_something_else_are_refused() -> None:
    batch = archive_rows([LoggedWindow(0, 1, WINDOW)])
    with pytest.raises(InvalidRecordError, match="columns"):
        list(archived_windows(batch.select(["node"])))
    with pytest.raises(InvalidRecordError, match="rows of nodes"):
        list(archived_windows(batch.slice(1)))


def test_no_rows_are_no_windows() -> None:
    assert list(archived_windows(archive_rows([LoggedWindow(0, 1, WINDOW)]).slice(0, 0))) == []


@pytest.mark.parametrize("column", ["node", "window_end", "node_facts", "statistics"])
def test_a_window_without_what_each_window_has_is_refused(column: str) -> None:
    batch = archive_rows([LoggedWindow(0, 1, WINDOW)])
    place = batch.schema.names.index(column)
    nothing = pa.nulls(len(batch), batch.schema.field(column).type)
    with pytest.raises(InvalidRecordError, match=f"has no {column}"):
        list(archived_windows(batch.set_column(place, batch.schema.field(column), nothing)))


@pytest.mark.parametrize("column", ["statistics", "bad_values"])
def test_text_that_is_no_json_is_refused(column: str) -> None:
    batch = archive_rows([LoggedWindow(0, 1, WINDOW)])
    place = batch.schema.names.index(column)
    text = pa.array(['{"'] * len(batch), pa.string())
    with pytest.raises(InvalidRecordError, match=f"{column} of a window is no JSON"):
        list(archived_windows(batch.set_column(place, batch.schema.field(column), text)))
