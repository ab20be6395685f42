"""Tombstones with a position: no result before it comes back, none after it is removed."""

from pathlib import Path

import pytest

from pipeline.table import Table, limits
from pipeline.table.apply_records import Headers, apply
from pipeline.table.node_columns import OfferedResources
from pipeline.table.table_snapshot import copied, load, save
from pipeline.times import format_time
from pipeline.topics.codec import encode_json
from pipeline.topics.registry import NODE_STATE, RESOURCES, Topic
from pipeline.topics.result_header import position_headers, position_of
from tests.table.records import NOW, node_state, table_of

KINDS = pytest.mark.parametrize("topic", [NODE_STATE, RESOURCES], ids=lambda topic: topic.name)


def record(topic: Topic, offset: int) -> bytes:
    if topic is NODE_STATE:
        return encode_json(node_state("a", offset=offset))
    offered = OfferedResources(
        node="a", as_of=format_time(NOW), generation=1, offset=offset, epoch=1
    )
    return encode_json(offered)


def offset_in(table: Table, topic: Topic) -> int | None:
    row = table.snapshot("a")
    result = row.state if topic is NODE_STATE else row.resources
    return None if result is None else result.offset


def withdrawn(offset: int) -> Headers:
    return position_headers((1, offset))


@KINDS
def test_a_tombstone_that_is_read_again_removes_no_newer_result(topic: Topic) -> None:
    table = Table()
    log: list[tuple[bytes | None, Headers]] = [
        (record(topic, 5), ()), (None, withdrawn(7)), (record(topic, 9), ()),
    ]  # fmt: skip
    for value, headers in [*log, *log[1:], *log]:
        apply(table, topic, b"a", value, headers)
    assert offset_in(table, topic) == 9


@KINDS
def test_a_paused_worker_does_not_bring_a_deleted_node_back(topic: Topic) -> None:
    """The table has just started: compaction has removed the results before the tombstone."""
    table = Table()
    assert apply(table, topic, b"a", None, withdrawn(7))
    assert not apply(table, topic, b"a", record(topic, 6))
    assert not apply(table, topic, b"a", record(topic, 7))
    assert offset_in(table, topic) is None
    assert apply(table, topic, b"a", record(topic, 8))


@KINDS
def test_a_tombstone_without_a_position_withdraws_the_known_result(topic: Topic) -> None:
    table = Table()
    apply(table, topic, b"a", record(topic, 5))
    assert apply(table, topic, b"a", None)
    assert not apply(table, topic, b"a", record(topic, 5))
    assert apply(table, topic, b"a", record(topic, 6))


@KINDS
def test_withdrawn_results_are_part_of_a_snapshot(topic: Topic, tmp_path: Path) -> None:
    table = table_of(node_state("other"))
    apply(table, topic, b"a", record(topic, 5))
    apply(table, topic, b"a", None, withdrawn(7))
    save(tmp_path / "snapshot", copied(table, (("t", 0, 1),), NOW, {}))
    restored = load(tmp_path / "snapshot", Table())
    assert restored is not None
    assert not apply(restored.table, topic, b"a", record(topic, 6))
    assert apply(restored.table, topic, b"a", record(topic, 8))


def test_the_oldest_withdrawn_results_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_DEPARTED", 2)
    table = Table()
    for node in "abc":
        table.drop_state(node, (1, 5))
    assert [*table.dropped_states.positions] == ["b", "c"]


@pytest.mark.parametrize(
    "headers", [[], [("other", b"1:2")], [("position", b"")], [("position", b"1:-1")],
                [("position", b"1:2:3")], [("position", b"9" * 100)], [("position", None)],
                [("trace-id", None)]]
)  # fmt: skip
def test_other_headers_state_no_position(headers: Headers) -> None:
    assert position_of(headers) is None
    assert position_of([*headers, *position_headers((1, 7))]) in (None, (1, 7))
