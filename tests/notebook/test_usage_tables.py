"""Tables of past usage are those of the archive and of the topic."""

import asyncio
import signal
import threading
import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline import notebook
from pipeline.archive.archive_reader import read_table
from pipeline.errors import SettingsError, UsageError
from pipeline.notebook.usage_tables import _result_of
from tests.archive.archives import log_of, write

NOW = datetime(2025, 11, 29, tzinfo=UTC)


def texts(table: pa.Table) -> list[str]:
    """Columns and rows in a form in which NaN equals NaN, and differs from null."""
    return [str(table.schema), *map(str, table.to_pylist())]


@pytest.mark.parametrize("seed", range(3))
def test_an_archive_is_read_as_by_its_reader(tmp_path: Path, seed: int) -> None:
    write(tmp_path, log_of(seed))
    assert texts(notebook.read_archive(tmp_path)) == texts(read_table(tmp_path))
    some: dict[str, Any] = {
        "since": date(2025, 11, 29), "until": date(2025, 11, 30), "nodes": ["a"],
        "columns": ["node", "kind", "cpu_cores_avg"],
    }  # fmt: skip
    table = notebook.read_archive(str(tmp_path), **some)
    assert texts(table) == texts(read_table(tmp_path, **some))
    assert 0 < len(table) < len(read_table(tmp_path))


def test_a_time_is_no_day_of_an_archive(tmp_path: Path) -> None:
    write(tmp_path, log_of(0))
    with pytest.raises(UsageError, match=r"since, 2025-11-29 00:00:00\+00:00, is no date"):
        notebook.read_archive(tmp_path, since=NOW)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"since": NOW.replace(tzinfo=None)}, "since, 2025-11-29 00:00:00, has no time zone"),
        ({"since": NOW, "until": NOW}, "until, .*, is not after since"),
        ({"since": NOW, "until": NOW - timedelta(hours=1)}, "is not after since"),
        ({"since": NOW, "columns": ["cpu"]}, "no column 'cpu'"),
        ({"since": NOW, "nodes": "node-1"}, "nodes is the text 'node-1'"),
    ],
)
def test_a_bad_span_is_refused_before_a_connection(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        notebook.read_topic(**arguments)


def test_settings_are_those_of_file_environment_and_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "springtide.yaml"
    file.write_text("kafka: {bootstrap_servers: 'file:1', topic_prefix: file, partitions: 3}\n")
    monkeypatch.setenv("SPRINGTIDE_CONFIG", str(file))
    monkeypatch.setenv("SPRINGTIDE_KAFKA_TOPIC_PREFIX", "environment")
    monkeypatch.setenv("SPRINGTIDE_KAFKA_PARTITIONS", "4")
    kafka = notebook.read_settings({"kafka": {"partitions": 5}}).kafka
    assert (kafka.bootstrap_servers, kafka.topic_prefix, kafka.partitions) == (
        "file:1", "environment", 5,
    )  # fmt: skip
    with pytest.raises(SettingsError, match=r"kafka.partitions: 0 is not allowed.*argument values"):
        notebook.read_settings({"kafka": {"partitions": 0}})


async def test_work_runs_beside_a_running_loop() -> None:
    async def loop() -> asyncio.AbstractEventLoop:
        await asyncio.sleep(0)
        return asyncio.get_running_loop()

    assert _result_of(loop()) is not asyncio.get_running_loop()


def test_an_interrupt_ends_the_work() -> None:
    ended = []

    async def wait() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    caller = threading.get_ident()
    threading.Timer(0.3, lambda: signal.pthread_kill(caller, signal.SIGINT)).start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        _result_of(wait())
    assert ended == [True]
    assert time.monotonic() - start < 30
