"""Roles without a Lease or a table say at /readyz whether they can work, with a real broker."""

import asyncio
import json
import resource
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pipeline.kafka.topic_admin import apply_topics
from pipeline.local.port_probe import free_port
from pipeline.settings import KafkaSettings
from pipeline.topics.registry import WINDOWS
from tests.broker import flags_of, send
from tests.integration.test_archive import records_of
from tests.processes import environment, springtide, until


@contextmanager
def running(
    role: str, *flags: str, limit: Callable[[], None] | None = None
) -> Iterator[tuple[int, int]]:
    """Run a role, in whose process `limit` runs first; yields the port of its page and its pid."""
    port = free_port()
    arguments = springtide(role, *flags, "--metrics-port", str(port))
    process = subprocess.Popen(
        arguments, env=environment(), stderr=subprocess.DEVNULL, preexec_fn=limit
    )
    try:
        yield port, process.pid
    finally:
        process.terminate()
        assert process.wait(60) == 0


def ready(port: int) -> tuple[int, str]:
    """Status and message of /readyz; status 0 if nobody listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10) as answer:
            return answer.status, json.load(answer)["message"]
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["message"]
    except OSError:
        return 0, ""


def failed_writes(port: int) -> float:
    """How often the archive could not be written."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    name = "springtide_archive_failed_writes_total"
    return sum(each.value for family in families for each in family.samples if each.name == name)


@pytest.mark.parametrize("role", ["exporter", "notifier"])
async def test_exporter_and_notifier_are_ready_once_their_topics_are_there(
    kafka: KafkaSettings, role: str
) -> None:
    flags = flags_of(kafka)[:4]
    if role == "exporter":
        flags = [*flags_of(kafka), "--node-name", kafka.topic_prefix, "--socket-path", "null"]
        flags += ["--window-seconds", "1"]
    missing = {"exporter": "samples does not exist", "notifier": "waiting for topic"}[role]
    with running(role, *flags) as (port, _):
        await until(
            lambda: ready(port)[0] == 503 and missing in ready(port)[1], 60, lambda: ready(port)
        )
        await apply_topics(kafka)
        await until(lambda: ready(port) == (200, "working"), 60, lambda: ready(port))


async def test_an_archive_is_ready_once_it_follows_the_log(
    kafka: KafkaSettings, tmp_path: Path
) -> None:
    await apply_topics(kafka)
    with running("archive", *flags_of(kafka), "--directory", str(tmp_path)) as (port, _):
        await until(lambda: ready(port) == (200, "working"), 60, lambda: ready(port))


async def test_an_archive_whose_disk_is_full_is_not_ready_before_it_has_written_a_file(
    kafka: KafkaSettings, tmp_path: Path
) -> None:
    """It connects again after each failure; a limit of file size stands for the full disk."""
    await apply_topics(kafka)
    await send(kafka, WINDOWS, *records_of(10))

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))

    flags = [*flags_of(kafka), "--directory", str(tmp_path), "--file-seconds", "1"]
    with running("archive", *flags, limit=limit) as (port, pid):
        reason = "cannot be written"
        await until(lambda: reason in ready(port)[1], 60, lambda: ready(port))
        answers, failures = [], failed_writes(port)
        while failed_writes(port) < failures + 2:
            answers.append(ready(port))
            await asyncio.sleep(0.1)
        assert [answer for answer in answers if reason not in answer[1]] == []
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, unlimited)
        await until(lambda: ready(port) == (200, "working"), 60, lambda: ready(port))
