"""A name index finds the rows that a dictionary finds."""

from hypothesis import given
from hypothesis import strategies as st

from pipeline.table import UNKNOWN_ROW, Table
from pipeline.table.name_index import NameIndex
from tests.table.records import node_state, table_of

alike = st.builds("node-{:03d}.{}".format, st.integers(0, 40), st.sampled_from(["a", "bb", ""]))
names = st.text(max_size=70) | alike


@given(st.dictionaries(names, st.integers(0, 100)), st.lists(names, max_size=60))
def test_rows_are_those_of_a_dictionary(rows: dict[str, int], unknown: list[str]) -> None:
    # A row has one name.
    rows = {name: row for row, name in {row: name for name, row in rows.items()}.items()}
    asked = [*unknown, *rows, *unknown]
    found = NameIndex(rows).lookup(asked).tolist()
    assert found == [rows.get(name, UNKNOWN_ROW) for name in asked]


def test_many_names_that_share_slots_are_found() -> None:
    rows = {f"node-{row:05d}.fleet.example": row for row in range(20_000)}
    asked = [*reversed(rows), *(name + "x" for name in rows)]
    expected = [*range(19_999, -1, -1), *[UNKNOWN_ROW] * 20_000]
    assert NameIndex(rows).lookup(asked).tolist() == expected


def test_an_empty_index_knows_no_name() -> None:
    assert NameIndex({}).lookup(["a", ""]).tolist() == [UNKNOWN_ROW] * 2
    assert NameIndex({"a": 0}).lookup([]).tolist() == []


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
