"""Roles without a Lease or a table say at /readyz whether they can work, with a real broker."""

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline.kafka.topic_admin import apply_topics
from pipeline.local.port_probe import free_port
from pipeline.settings import KafkaSettings
from tests.broker import flags_of
from tests.processes import environment, springtide, until


@contextmanager
def running(role: str, *flags: str) -> Iterator[int]:
    """Run a role; yields the port of its page."""
    port = free_port()
    arguments = springtide(role, *flags, "--metrics-port", str(port))
    process = subprocess.Popen(arguments, env=environment(), stderr=subprocess.DEVNULL)
    try:
        yield port
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


@pytest.mark.parametrize("role", ["exporter", "notifier"])
async def test_exporter_and_notifier_are_ready_once_their_topics_are_there(
    kafka: KafkaSettings, role: str
) -> None:
    flags = flags_of(kafka)[:4]
    if role == "exporter":
        flags = [*flags_of(kafka), "--node-name", kafka.topic_prefix, "--socket-path", "null"]
    missing = {"exporter": "samples does not exist", "notifier": "waiting for topic"}[role]
    with running(role, *flags) as port:
        await until(
            lambda: ready(port)[0] == 503 and missing in ready(port)[1], 60, lambda: ready(port)
        )
        await apply_topics(kafka)
        await until(lambda: ready(port) == (200, "working"), 60, lambda: ready(port))


async def test_an_archive_is_ready_once_it_follows_the_log(
    kafka: KafkaSettings, tmp_path: Path
) -> None:
    await apply_topics(kafka)
    with running("archive", *flags_of(kafka), "--directory", str(tmp_path)) as port:
        await until(lambda: ready(port) == (200, "working"), 60, lambda: ready(port))
