"""Publish results of `springtide what-if` for the console, and withdraw them."""

import difflib
from collections.abc import Sequence

from pipeline.cli.kafka_requests import run_requests
from pipeline.cli.safe_output import printable
from pipeline.errors import RecordError, UsageError
from pipeline.kafka.client import client_options
from pipeline.kafka.producer import Producer
from pipeline.kafka.topic_admin import existing_partitions
from pipeline.settings import KafkaSettings
from pipeline.topics.codec import encode_json
from pipeline.topics.registry import WHAT_IF
from pipeline.topics.what_if import NAME, WhatIfRecord, WhatIfTrace, read_what_if


def check_name(name: str, option: str) -> None:
    """Raise `UsageError` if this is no name of a result."""
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{option}: {printable(name[:80])!r} is no name of a result",
            hint="give 1 to 63 letters, digits, '.', '_' and '-', a letter or digit first",
        )


def check_topic(kafka: KafkaSettings) -> None:
    """Raise `TopicDriftError` without the topic, before a replay that may take long."""
    names = [WHAT_IF.full_name(kafka.topic_prefix)]
    run_requests(kafka, existing_partitions(client_options(kafka), names))


def difference(old: bytes, new: bytes, old_name: str, new_name: str) -> tuple[str, ...]:
    """The lines that differ between two files, as `diff -u` prints them."""
    before, after = (text.decode(errors="replace").splitlines() for text in (old, new))
    return tuple(difflib.unified_diff(before, after, old_name, new_name, lineterm=""))


def publish(
    kafka: KafkaSettings, name: str, policy: str, against: str, lines: Sequence[str],
    traces: tuple[WhatIfTrace, ...],
) -> None:  # fmt: skip
    """Write a result in place of the last one of this name. Raises `UsageError` if readers would
    refuse it, such as one that is too large."""
    record = WhatIfRecord(
        name=name, policy=policy, against=against, difference=tuple(lines), traces=traces
    )
    value = encode_json(record)
    try:
        read_what_if(name.encode(), value)
    except RecordError as error:
        raise UsageError(
            f"--publish: {error.message}",
            hint="choose fewer traces by --dataset and --scenario, or shorten the policy files",
        ) from error
    run_requests(kafka, _write(kafka, name, value))


def withdraw(kafka: KafkaSettings, name: str) -> None:
    """Remove a published result, if there is one."""
    run_requests(kafka, _write(kafka, name, None))


async def _write(kafka: KafkaSettings, name: str, value: bytes | None) -> None:
    async with Producer(client_options(kafka)) as producer:
        topic = WHAT_IF.full_name(kafka.topic_prefix)
        await producer.deliver(topic, key=name.encode(), value=value)
