"""Records are applied one at a time; tests/integration has the feed with a broker."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InvalidRecordError, KeyMismatchError, RecordError
from pipeline.table import Table
from pipeline.table.apply_records import apply
from pipeline.table.table_feed import NODE_TOPICS
from pipeline.topics.codec import encode_json
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.registry import NODE_STATE, NODES, Topic
from tests.table.records import node_state, table_of


def test_each_topic_fills_its_part_of_the_row_and_its_tombstone_empties_it() -> None:
    table = Table()
    assert apply(table, NODE_STATE, b"a", encode_json(node_state("a")))
    assert apply(table, NODES, b"a", encode_json(NodeRecord(node="a", annotations={"zone": "1"})))
    row = table.snapshot("a")
    assert (row.state, row.node and row.node.annotations) == (node_state("a"), {"zone": "1"})
    assert apply(table, NODE_STATE, b"a", None)
    assert table.snapshot("a").state is None
    assert table.snapshot("a").node is not None
    assert apply(table, NODES, b"a", None)
    assert len(table) == 0


def test_an_older_result_is_reported_as_older() -> None:
    table = table_of(node_state("a", offset=3))
    assert not apply(table, NODE_STATE, b"a", encode_json(node_state("a", offset=2)))


@pytest.mark.parametrize("key", [None, b"", b"\xff"])
@pytest.mark.parametrize("value", [None, encode_json(node_state("a"))])
def test_a_record_without_a_readable_key_is_refused(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(InvalidRecordError, match="key"):
        apply(Table(), NODE_STATE, key, value)


@pytest.mark.parametrize(
    ("topic", "value"),
    [(NODE_STATE, encode_json(node_state("b"))), (NODES, encode_json(NodeRecord(node="b")))],
)
def test_a_payload_of_another_node_is_refused(topic: Topic, value: bytes) -> None:
    table = Table()
    with pytest.raises(KeyMismatchError, match="payload is about 'b', key about 'a'"):
        apply(table, topic, b"a", value)
    assert len(table) == 0


good = encode_json(node_state("a", offset=1))
damaged = st.one_of(
    st.binary(max_size=100),
    st.integers(0, len(good) - 1).map(lambda end: good[:end]),
    st.tuples(st.integers(0, len(good) - 1), st.binary(min_size=1, max_size=3)).map(
        lambda change: good[: change[0]] + change[1] + good[change[0] + 1 :]
    ),
)


@given(st.sampled_from(NODE_TOPICS), damaged)
def test_any_bytes_are_applied_or_raise_a_record_error(topic: Topic, value: bytes) -> None:
    table = table_of(node_state("a"))
    try:
        apply(table, topic, b"a", value)
    except RecordError as error:
        assert error.reason
        assert table.snapshot("a").state == node_state("a")
    assert list(table) == ["a"]
