"""`springtide archive` on a real broker: every record of the log is in the archive once, whatever
ends the archiver, and what the topic has lost is a gap that the archive states."""

import asyncio
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from aiokafka.admin import NewTopic, RecordsToDelete
from aiokafka.structs import TopicPartition

from pipeline.archive.archive_files import archive_files, newest_segment, read_metadata
from pipeline.archive.archive_reader import read_windows
from pipeline.kafka.client import client_options
from pipeline.processors.join.sample_join import NodeObjects, join
from pipeline.settings import KafkaSettings
from pipeline.sources.simulated_nodes import SimulatedNode
from pipeline.topics.nodes import Strategy
from pipeline.topics.registry import WINDOWS
from pipeline.topics.sample_rows import read_rows
from pipeline.topics.samples import encode_samples
from pipeline.topics.windows import decode_window, departure, encode_window
from tests.broker import admin_client, flags_of, messages, send
from tests.processes import environment, eventually, springtide
from tests.processors.archive.window_equality import parts

START = 1_764_374_400 - 600  # ten minutes before midnight, 29 November 2025


def records_of(windows: int, nodes: int = 4, first: int = 0) -> Iterator[tuple[str, bytes]]:
    """Nodes and their windows of a minute, across midnight, as the join writes them."""
    simulated = [SimulatedNode(7, number, 5) for number in range(nodes)]
    for sequence in range(first, first + windows):
        start = START + 60 * sequence
        for node in simulated:
            sample = node.sample(start, start + 60, epoch=1, sequence=sequence)
            window = join(
                read_rows(encode_samples(sample)), NodeObjects(None, {}), Strategy(),
                sample_offset=sequence, appended_ms=1000 * (start + 61),
            )  # fmt: skip
            yield node.name, encode_window(window)


async def create_topic(kafka: KafkaSettings) -> None:
    """Create the topic of windows."""
    name = WINDOWS.full_name(kafka.topic_prefix)
    config = {**WINDOWS.config(), "segment.ms": "3600000"}
    async with admin_client(client_options(kafka)) as admin:
        await admin.create_topics([NewTopic(name, kafka.partitions, 1, topic_configs=config)])


def command(kafka: KafkaSettings, directory: Path, *more: str) -> list[str]:
    flags = [*flags_of(kafka), "--directory", str(directory), *more]
    return springtide("archive", *flags, "--log-format", "json")


def run(
    kafka: KafkaSettings, directory: Path, limit: Callable[[], None] | None = None
) -> subprocess.CompletedProcess[str]:
    """Archive until the end of the topic; `limit` runs in the process first."""
    return subprocess.run(
        command(kafka, directory, "--until-end"), env=environment(), capture_output=True, text=True,
        timeout=120, check=False, preexec_fn=limit,
    )  # fmt: skip


@contextmanager
def following(
    kafka: KafkaSettings, directory: Path, *more: str, log: Path | None = None, **options: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """An archiver that follows the topic."""
    arguments = command(kafka, directory, "--metrics-port", "null", *more)
    with (log or Path("/dev/null")).open("ab") as output:
        process = subprocess.Popen(arguments, env=environment(), stderr=output, **options)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def partial_files(directory: Path) -> list[Path]:
    return [*directory.rglob("*.partial")]


async def archived_as_logged(kafka: KafkaSettings, directory: Path) -> int:
    """Assert that the archive has each record of the topic once, and the same; returns how many."""
    logged = {(m.partition, m.offset): m.value for m in await messages(kafka, WINDOWS)}
    archived = [*read_windows(directory)]
    assert sorted(record[:2] for record in archived) == sorted(logged)
    for partition, offset, window in archived:
        assert parts(window) == parts(decode_window(logged[partition, offset]))
    assert partial_files(directory) == []
    return len(archived)


async def test_the_archive_is_the_log(kafka: KafkaSettings, tmp_path: Path) -> None:
    await create_topic(kafka)
    await send(kafka, WINDOWS, *records_of(20))
    await send(kafka, WINDOWS, ("node-1", encode_window(departure("node-1", 1000 * START))))
    done = run(kafka, tmp_path)
    assert done.returncode == 0, done.stderr
    assert await archived_as_logged(kafka, tmp_path) == 81
    assert {str(file.day) for file in archive_files(tmp_path)} == {"2025-11-28", "2025-11-29"}
    # A second run has nothing to do, a third one gets what is new.
    files = archive_files(tmp_path)
    assert run(kafka, tmp_path).returncode == 0
    assert archive_files(tmp_path) == files
    await send(kafka, WINDOWS, *records_of(3, first=20))
    assert run(kafka, tmp_path).returncode == 0
    assert await archived_as_logged(kafka, tmp_path) == 93
    assert set(files) < set(archive_files(tmp_path))


@pytest.mark.slow
async def test_nothing_is_lost_or_archived_twice_when_it_is_killed_at_any_moment(
    kafka: KafkaSettings, tmp_path: Path
) -> None:
    await create_topic(kafka)
    random = Random(25)

    async def produce() -> None:
        for batch in range(200):
            await send(kafka, WINDOWS, *records_of(2, first=2 * batch))
            await asyncio.sleep(0.05)

    producing = asyncio.create_task(produce())
    kills = 0
    while not producing.done() or kills < 8:
        before = len(archive_files(tmp_path))
        with following(kafka, tmp_path, "--file-seconds", "1") as process:
            # Not before it has written something, so that each life begins from files.
            for _ in range(600):
                if len(archive_files(tmp_path)) > before or producing.done():
                    break
                await asyncio.sleep(0.05)
            await asyncio.sleep(random.random() * 1.2)
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
    await producing
    assert run(kafka, tmp_path).returncode == 0
    assert await archived_as_logged(kafka, tmp_path) == 1600
    assert kills >= 8


async def test_a_signal_completes_the_files(kafka: KafkaSettings, tmp_path: Path) -> None:
    await create_topic(kafka)
    log = tmp_path / "log"
    archive = tmp_path / "archive"
    await send(kafka, WINDOWS, *records_of(5))
    with following(kafka, archive, log=log) as process:
        begins = partial(eventually, lambda: b'"archiving"' in log.read_bytes())
        assert await asyncio.to_thread(begins)
        second = run(kafka, archive)
        assert second.returncode == 1
        assert "another archiver writes to" in second.stderr
        await asyncio.sleep(2)
        process.terminate()
        assert await asyncio.to_thread(process.wait, 60) == 0
    assert await archived_as_logged(kafka, archive) == 20


async def test_what_retention_removed_is_a_gap(kafka: KafkaSettings, tmp_path: Path) -> None:
    await create_topic(kafka)
    name = WINDOWS.full_name(kafka.topic_prefix)
    await send(kafka, WINDOWS, *records_of(5))
    assert run(kafka, tmp_path).returncode == 0
    newest = newest_segment(tmp_path)
    assert newest is not None
    (_, archived), _ = newest.offsets
    await send(kafka, WINDOWS, *records_of(5, first=5))
    async with admin_client(client_options(kafka)) as admin:
        place = TopicPartition(name, 0)
        await admin.delete_records({place: RecordsToDelete(archived + 2)})
    done = run(kafka, tmp_path)
    assert done.returncode == 0
    assert '"records are missing in the archive"' in done.stderr
    newest = newest_segment(tmp_path)
    assert newest is not None
    (gap,) = newest.gaps
    assert (gap.partition, gap.first, gap.next, gap.reason) == (
        0, archived, archived + 2, "retention",
    )  # fmt: skip
    got = sorted(offset for partition, offset, _ in read_windows(tmp_path) if partition == 0)
    assert [*range(archived), *range(archived + 2, got[-1] + 1)] == got
    # The gap is stated once.
    await send(kafka, WINDOWS, *records_of(1, first=10))
    assert run(kafka, tmp_path).returncode == 0
    newest = newest_segment(tmp_path)
    assert newest is not None
    assert newest.gaps == ()


@pytest.mark.parametrize("is_missed", [False, True])
async def test_a_recreated_topic_is_archived_from_its_beginning(
    kafka: KafkaSettings, tmp_path: Path, is_missed: bool
) -> None:
    """A broker tells no id of a topic that it does not have: while it is missing nothing may be
    taken for the topic of before."""
    await create_topic(kafka)
    log = tmp_path / "log"
    archive = tmp_path / "archive"
    topic = WINDOWS.full_name(kafka.topic_prefix)
    await send(kafka, WINDOWS, *records_of(5))
    with following(kafka, archive, "--file-seconds", "1", log=log) as process:
        assert await asyncio.to_thread(
            eventually, lambda: archive.exists() and archive_files(archive)
        )
        async with admin_client(client_options(kafka)) as admin:
            await admin.delete_topics([topic])
        await asyncio.sleep(1)
        if is_missed:
            assert await asyncio.to_thread(
                eventually, lambda: f"topic {topic} is missing" in log.read_text(), 60
            )
        await create_topic(kafka)
        await send(kafka, WINDOWS, *records_of(3, first=100))
        assert await asyncio.to_thread(
            eventually,
            lambda: (
                sum(record.window.header.sequence >= 100 for record in read_windows(archive)) >= 12
            ),
            180,
        )
        process.terminate()
        assert await asyncio.to_thread(process.wait, 60) == 0
    sequences = sorted(record.window.header.sequence for record in read_windows(archive))
    assert sequences == sorted([*range(5), *range(100, 103)] * 4)
    gaps = [gap for file in archive_files(archive) for gap in read_metadata(file.path).gaps]
    assert {gap.reason for gap in gaps} == {"recreated"}


async def test_an_archive_of_another_topic_is_refused(kafka: KafkaSettings, tmp_path: Path) -> None:
    await create_topic(kafka)
    await send(kafka, WINDOWS, *records_of(1))
    assert run(kafka, tmp_path).returncode == 0
    other = KafkaSettings(
        bootstrap_servers=kafka.bootstrap_servers, topic_prefix=f"{kafka.topic_prefix}-other",
        partitions=kafka.partitions,
    )  # fmt: skip
    await create_topic(other)
    done = run(other, tmp_path)
    assert done.returncode == 1
    assert f"the archive is of {kafka.topic_prefix}.windows" in done.stderr


async def test_an_unreadable_record_is_stated_and_costs_no_other(
    kafka: KafkaSettings, tmp_path: Path
) -> None:
    await create_topic(kafka)
    good = [*records_of(2, nodes=1)]
    await send(kafka, WINDOWS, good[0], (good[0][0], b"junk"), (good[0][0], None), good[1])
    assert run(kafka, tmp_path).returncode == 0
    assert [record.offset for record in read_windows(tmp_path)] == [0, 3]
    newest = newest_segment(tmp_path)
    assert newest is not None
    assert [record.offset for record in newest.unreadable] == [1, 2]
    assert newest.unreadable_count == 2
    assert run(kafka, tmp_path).returncode == 0
    assert newest_segment(tmp_path) == newest


async def test_a_full_disk_imitated_by_a_limit_of_file_size_delays_and_loses_nothing(
    kafka: KafkaSettings, tmp_path: Path
) -> None:
    await create_topic(kafka)
    await send(kafka, WINDOWS, *records_of(10))
    log, archive = tmp_path / "log", tmp_path / "archive"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))

    failed = run(kafka, archive, limit)
    assert failed.returncode == 1
    assert "the archive cannot be written" in failed.stderr
    with following(kafka, archive, "--file-seconds", "1", log=log, preexec_fn=limit) as process:
        assert await asyncio.to_thread(eventually, lambda: b"not archived" in log.read_bytes())
        assert archive_files(archive) == []
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, unlimited)
        assert await asyncio.to_thread(eventually, lambda: archive_files(archive))
        process.terminate()
        assert await asyncio.to_thread(process.wait, 60) == 0
    assert await archived_as_logged(kafka, archive) == 40
