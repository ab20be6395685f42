"""A name index finds the rows that a dictionary finds, and lists of names are read as JSON."""

import json
import re

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.table import UNKNOWN_ROW, Table
from pipeline.table.node_names import NameIndex, joined
from tests.table.records import node_state, table_of

alike = st.builds("node-{:03d}.{}".format, st.integers(0, 40), st.sampled_from(["a", "bb", ""]))
names = st.text(max_size=70) | alike


texts = st.sampled_from(["", "a", "b-1", 'c"', "d\\", "\n", "é", "\ud800", "E", ","]) | alike


@given(st.sets(alike, max_size=30), st.lists(texts, max_size=30), st.booleans())
@example({"node-000.a"}, ["node-000.a"], False)
def test_an_array_is_read_as_by_json_or_not_at_all(
    known: set[str], asked: list[str], escapes: bool
) -> None:
    rows = {name: row for row, name in enumerate(known)}
    text = json.dumps(asked, separators=(",", ":"), ensure_ascii=escapes)
    names = NameIndex(rows).read(text.encode(errors="surrogatepass"))
    is_plain = all(re.fullmatch("[a-z0-9.-]*", name) for name in asked)
    may_read = is_plain and len(set(asked)) == len(asked) and 8 * len(asked) >= len(known)
    assert (names is not None) == (may_read and asked != [])
    if names is not None:
        assert [names[index] for index in range(len(names))] == [*names] == asked
        assert names.rows.tolist() == [rows.get(name, UNKNOWN_ROW) for name in asked]
        assert json.loads(names.json()) == asked
        is_taken = np.array([name.endswith("a") for name in asked])
        taken = names.take(is_taken)
        assert json.loads(taken.json()) == [*taken] == [name for name in asked if name[-1:] == "a"]
        codes = np.arange(len(asked)) % 3 - 1
        expected = "".join(f"{n}{'xy'[c]}" for n, c in zip(asked, codes, strict=True) if c >= 0)
        assert bytes(names.followed_by([b"x", b"y"], codes)) == expected.encode()
        assert NameIndex({"a": 7}).lookup(taken).tolist() == [7 if n == "a" else -1 for n in taken]


@pytest.mark.parametrize(
    "text",
    [
        '["a","a"]',
        '["a", "b"]',
        '["a"',
        '["a"b"]',
        '["]',
        "[]",
        '["a",,"b"]',
        '["a","b",]',
        '["a"]"]',
        "null",
        '["a":"b"]',
        '["a",["b"]]',
    ],
)
def test_any_other_json_is_left_to_a_decoder(text: str) -> None:
    assert NameIndex({"a": 0, "b": 1}).read(text.encode()) is None


@given(st.dictionaries(names, st.integers(0, 100)), st.lists(names, max_size=60))
@example({}, ["a", ""])
@example({"a": 0}, [])
def test_rows_are_those_of_a_dictionary(rows: dict[str, int], unknown: list[str]) -> None:
    # A row has one name.
    rows = {name: row for row, name in {row: name for name, row in rows.items()}.items()}
    asked = [*unknown, *rows, *unknown]
    result = NameIndex(rows).lookup(asked).tolist()
    assert result == [rows.get(name, UNKNOWN_ROW) for name in asked]


@given(st.lists(st.tuples(alike, st.booleans()), max_size=30))
def test_a_table_finds_nodes_that_came_and_departed(changes: list[tuple[str, bool]]) -> None:
    table = table_of()
    for offset, (name, is_present) in enumerate(changes, start=1):
        if is_present:
            table.put_state(node_state(name, offset=offset))
        else:
            table.drop_state(name)
        asked = [name for name, _ in changes]
        records = [table.snapshot(name).state for name in asked]
        rows = table.lookup(asked).tolist()
        assert [row == UNKNOWN_ROW for row in rows] == [record is None for record in records]
        assert len({row for row in rows if row != UNKNOWN_ROW}) == len(table)
    assert Table().lookup(["a"]).tolist() == [UNKNOWN_ROW]


def test_joined_names_are_those_of_both() -> None:
    index = NameIndex({"node-1": 5, "node-2": 6, "node-3": 7, "node-4": 8})
    first, other = (
        index.read(b'["node-1","node-2","x-1","x-2"]'), index.read(b'["node-3","node-4"]')
    )  # fmt: skip
    assert first is not None
    assert other is not None
    both = joined(first, other)
    assert [*both] == ["node-1", "node-2", "x-1", "x-2", "node-3", "node-4"]
    assert index.lookup(both).tolist() == [5, 6, UNKNOWN_ROW, UNKNOWN_ROW, 7, 8]
    assert joined(["a"], first) == ["a", *first]
