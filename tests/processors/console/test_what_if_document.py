"""Published results of what-if, whatever a topic has."""

from typing import Any

import msgspec
import pytest

from pipeline.errors import UnreadableRecordError
from pipeline.processors.console import limits
from pipeline.processors.console.what_if_document import PublishedResults
from pipeline.topics.codec import encode_json
from pipeline.topics.registry import MAX_WHAT_IF_BYTES
from pipeline.topics.registry import WHAT_IF as TOPIC
from tests.table.records import NOW
from tests.topics.golden import WHAT_IF


def named(name: str, **more: Any) -> tuple[bytes, bytes]:
    return name.encode(), encode_json(msgspec.structs.replace(WHAT_IF, name=name, **more))


def test_the_newest_of_a_name_counts_until_it_is_withdrawn() -> None:
    results = PublishedResults()
    results.take(*named("a"), NOW)
    results.take(*named("b"), NOW + 1)
    results.take(*named("a", policy="newer.yaml"), NOW + 2)
    document = results.document()
    assert [(of.name, of.policy) for of in document.items] == [
        ("a", "newer.yaml"), ("b", "new.yaml"),
    ]  # fmt: skip
    assert document.items[0].traces == WHAT_IF.traces
    results.take(b"a", None, NOW + 3)
    assert [of.name for of in results.document().items] == ["b"]


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (b"a", b"\xff{", "cannot be decoded"),
        (b"a", b'{"version": 2}', "version 2"),
        (b"a", b'{"version": 1, "name": "a"}', "breaks its schema"),
        (b"b", named("a")[1], "payload is about 'a'"),
        (None, named("a")[1], "payload is about 'a'"),
        (b"a b", named("a b")[1], "'a b' is no name of a result"),
        (b"a", named("a", policy="x" * MAX_WHAT_IF_BYTES)[1], "more than 131072"),
        (b"a", named("a", traces=(
            msgspec.structs.replace(WHAT_IF.traces[0], measures=(
                msgspec.structs.replace(
                    WHAT_IF.traces[0].measures[0], old_by_node=(0.0,) * 102
                ),
            )),
        ))[1], "more than 101 values"),
        (b"a", named("a", traces=51 * WHAT_IF.traces)[1], "51 traces, more than 50"),
    ],
)  # fmt: skip
def test_what_is_no_result_is_refused_with_the_reason(
    key: bytes | None, value: bytes, reason: str
) -> None:
    results = PublishedResults()
    results.take(*named("good"), NOW)
    results.take(key, value, NOW)
    document = results.document()
    assert [of.name for of in document.items] == ["good"]
    (refused,) = document.refused
    assert (refused.name, reason in refused.reason) == ((key or b"").decode(), True), refused
    # A valid record of the name replaces it.
    results.take(key, None, NOW)
    assert results.document().refused == []


def test_results_names_and_reasons_are_bounded() -> None:
    results = PublishedResults()
    for number in range(limits.RESULTS + 3):
        results.take(*named(f"n{number}"), NOW + number)
    document = results.document()
    assert (len(document.items), document.more) == (limits.RESULTS, 3)
    assert document.items[0].name == f"n{limits.RESULTS + 2}"
    for number in range(40):
        results.take(*named(f"large{number}", policy="x" * 100_000), NOW + 100 + number)
    kept = results.document()
    assert sum(len(of.policy) for of in kept.items) <= limits.RESULT_BYTES
    assert kept.items[0].name == "large39"
    for number in range(100):
        results.take(b"%d" % number * 100, b"{" * 1000, NOW)
    refused = results.document().refused
    assert len(refused) == limits.REFUSED_RESULTS
    assert max(len(of.name) for of in refused) == limits.RESULT_NAME_BYTES
    assert max(len(of.reason) for of in refused) <= 300


def test_results_are_listed_again_when_newer_ones_are_withdrawn() -> None:
    results = PublishedResults()
    names = [f"n{number}" for number in range(limits.RESULTS + 10)]
    for number, name in enumerate(names):
        results.take(*named(name), NOW + number)
    for name in names[5:]:
        results.take(name.encode(), None, NOW + 1000)
    document = results.document()
    assert [of.name for of in document.items] == names[4::-1]
    assert document.more == 0


def test_a_newer_record_that_cannot_be_read_replaces_a_result() -> None:
    results = PublishedResults()
    results.take(*named("a"), NOW)
    results.refuse(b"a", UnreadableRecordError("corrupt"))
    document = results.document()
    assert (document.items, [of.name for of in document.refused]) == ([], ["a"])


def test_memory_for_results_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "READ_RESULTS", 4)
    monkeypatch.setattr(limits, "READ_RESULT_BYTES", 250_000)
    results = PublishedResults()
    for number in range(6):
        results.take(*named(f"n{number}"), NOW + number)
    assert [of.name for of in results.document().items] == ["n5", "n4", "n3", "n2"]
    assert results.document().more == 2
    for number in range(3):
        results.take(*named(f"large{number}", policy="x" * 100_000), NOW + 100 + number)
    assert [of.name for of in results.document().items] == ["large2", "large1"]
    assert results.document().more == 7


def test_the_topic_accepts_the_largest_result() -> None:
    assert TOPIC.max_bytes > MAX_WHAT_IF_BYTES + 1000
