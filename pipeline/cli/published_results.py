"""Publish results of `springtide what-if` for the console, and withdraw them."""

import difflib
import re
from collections.abc import Sequence
from itertools import takewhile
from operator import eq
from typing import Final

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

MOST_COMPARED_LINES: Final = 5_000
"""Of a file, from its first line that differs to the last: difflib takes seconds for these, and its
time grows with their square."""
_CONTEXT_LINES: Final = 3
_HUNK: Final = re.compile(r"^@@ -(\d+)(.*) \+(\d+)(.*) @@")


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
    """The lines that differ between two files, as `diff -u` prints them. Where these are too many
    to compare, all from the first to the last differ."""
    before, after = (text.decode(errors="replace").splitlines() for text in (old, new))
    start = _equal_lines(before, after)
    end = _equal_lines(before[start:][::-1], after[start:][::-1])
    removed, added = (lines[start : len(lines) - end] for lines in (before, after))
    if len(removed) * len(added) > MOST_COMPARED_LINES**2:
        return (
            f"--- {old_name}", f"+++ {new_name}",
            f"@@ -{start + 1},{len(removed)} +{start + 1},{len(added)} @@",
            *(f"-{line}" for line in removed), *(f"+{line}" for line in added),
        )  # fmt: skip
    start, end = (max(lines - _CONTEXT_LINES, 0) for lines in (start, end))
    before, after = (lines[start : len(lines) - end] for lines in (before, after))
    lines = difflib.unified_diff(before, after, old_name, new_name, lineterm="", n=_CONTEXT_LINES)
    return tuple(_HUNK.sub(lambda hunk: _moved(hunk, start), line) for line in lines)


def _equal_lines(left: Sequence[str], right: Sequence[str]) -> int:
    """The number of equal lines at the begin of both."""
    return sum(1 for _ in takewhile(bool, map(eq, left, right)))


def _moved(hunk: re.Match[str], lines: int) -> str:
    """The head of a hunk that begins so many lines later."""
    return f"@@ -{int(hunk[1]) + lines}{hunk[2]} +{int(hunk[3]) + lines}{hunk[4]} @@"


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
