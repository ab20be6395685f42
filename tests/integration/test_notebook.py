"""`notebook.read_topic` on a real broker: the records of a span, no more and no less."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from aiokafka.admin import RecordsToDelete
from aiokafka.structs import TopicPartition

from pipeline import notebook
from pipeline.errors import TopicDriftError, UsageError
from pipeline.kafka.client import client_options
from pipeline.notebook import usage_tables
from pipeline.settings import KafkaSettings, Settings
from pipeline.topics.registry import WINDOWS
from pipeline.topics.windows import departure, encode_window
from tests.broker import admin_client, send
from tests.integration.test_archive import START, create_topic, records_of, run

pytestmark = pytest.mark.filterwarnings("error::UserWarning")

YESTERDAY = datetime.now(UTC) - timedelta(days=1)


def texts(table: pa.Table) -> list[str]:
    """Rows in an order of their own, in a form in which NaN equals NaN."""
    return sorted(map(str, table.to_pylist()))


def names(table: pa.Table, columns: Sequence[str] = ("node", "sequence")) -> set[tuple[str, int]]:
    rows = table.filter(pa.compute.equal(table["kind"], "node")).select(columns).to_pylist()
    return {(row["node"], row["sequence"]) for row in rows}


async def test_a_topic_is_read_as_its_archive_from_a_running_loop(
    kafka: KafkaSettings, tmp_path: Path
) -> None:
    await create_topic(kafka)
    await send(kafka, WINDOWS, *records_of(20))
    await send(kafka, WINDOWS, ("sim-00001", encode_window(departure("sim-00001", 1000 * START))))
    table = notebook.read_topic(Settings(kafka=kafka), since=YESTERDAY)
    assert run(kafka, tmp_path).returncode == 0
    archived = notebook.read_archive(tmp_path)
    assert table.schema == archived.schema
    assert texts(table) == texts(archived)
    places = [
        *zip(table["log_partition"].to_pylist(), table["log_offset"].to_pylist(), strict=True)
    ]
    assert places == sorted(places)
    assert notebook.predict(table).num_rows == notebook.predict(tmp_path).num_rows > 0


async def test_a_span_begins_and_ends_at_append_times(kafka: KafkaSettings) -> None:
    await create_topic(kafka)
    times = []
    for batch in range(3):
        await send(kafka, WINDOWS, *records_of(4, first=4 * batch))
        await asyncio.sleep(0.1)
        times.append(datetime.now(UTC))
        await asyncio.sleep(0.1)
    settings = Settings(kafka=kafka)
    everything = names(notebook.read_topic(settings, since=YESTERDAY))
    assert len(everything) == 4 * 12
    middle = names(notebook.read_topic(settings, since=times[0], until=times[1]))
    assert middle == {(node, sequence) for node, sequence in everything if 4 <= sequence < 8}
    last = names(notebook.read_topic(settings, since=times[1]))
    assert last == {(node, sequence) for node, sequence in everything if sequence >= 8}
    none = notebook.read_topic(settings, since=times[2])
    assert none.equals(notebook.ARCHIVE_SCHEMA.empty_table())


async def test_nodes_and_columns_are_selected(kafka: KafkaSettings) -> None:
    await create_topic(kafka)
    await send(kafka, WINDOWS, *records_of(4))
    settings, columns = Settings(kafka=kafka), ["kind", "sequence", "node"]
    table = notebook.read_topic(settings, since=YESTERDAY, nodes=["sim-00002"], columns=columns)
    assert table.column_names == columns
    assert names(table) == {("sim-00002", sequence) for sequence in range(4)}


async def test_unreadable_records_are_counted(kafka: KafkaSettings) -> None:
    await create_topic(kafka)
    name = WINDOWS.full_name(kafka.topic_prefix)
    await send(kafka, WINDOWS, *records_of(4), ("sim-00001", b"damaged"), ("sim-00001", None))
    with pytest.warns(UserWarning, match=rf"2 records of {name} cannot be read; the first: part"):
        table = notebook.read_topic(Settings(kafka=kafka), since=YESTERDAY)
    assert len(names(table)) == 16


async def test_a_span_whose_beginning_was_deleted_is_warned_of(kafka: KafkaSettings) -> None:
    await create_topic(kafka)
    settings, name = Settings(kafka=kafka), WINDOWS.full_name(kafka.topic_prefix)
    await send(kafka, WINDOWS, *records_of(4))
    table = notebook.read_topic(settings, since=YESTERDAY)
    partition = table["log_partition"][0].as_py()
    async with admin_client(client_options(kafka)) as admin:
        await admin.delete_records({TopicPartition(name, partition): RecordsToDelete(2)})
    with pytest.warns(UserWarning, match=rf"{name} begins later .* partitions \[{partition}\]"):
        rest = notebook.read_topic(settings, since=YESTERDAY)
    deleted = table.filter(
        (pa.compute.field("log_partition") == partition) & (pa.compute.field("log_offset") < 2)
    )
    assert names(rest) == names(table) - names(deleted)
    assert len(names(deleted)) == 2


async def test_too_many_rows_and_a_missing_topic_are_refused(
    kafka: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(kafka=kafka)
    with pytest.raises(TopicDriftError, match="missing"):
        notebook.read_topic(settings, since=YESTERDAY)
    await create_topic(kafka)
    await send(kafka, WINDOWS, *records_of(4))
    monkeypatch.setattr(usage_tables, "MOST_ROWS", 20)
    with pytest.raises(UsageError, match="more than 20 rows"):
        notebook.read_topic(settings, since=YESTERDAY)
