"""Names as columns find what a dictionary finds."""

import json
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.table import UNKNOWN_ROW, Table
from pipeline.table.name_index import NameIndex, Names
from tests.table.records import node_state, table_of

plain = st.text(st.characters(min_codepoint=32, max_codepoint=126, exclude_characters='"\\'), max_size=70)  # noqa: E501  # fmt: skip
alike = st.builds("node-{:03d}.{}".format, st.integers(0, 40), st.sampled_from(["a", "bb", ""]))
names = st.lists(plain | alike, unique=True, max_size=60)


def compact(names: Sequence[str]) -> bytes:
    return json.dumps(names, separators=(",", ":"), ensure_ascii=False).encode()


@given(names)
def test_an_array_is_read_and_written_as_it_is(found: list[str]) -> None:
    read = Names.read(compact(found))
    if not found:
        assert read is None
        return
    assert read is not None
    assert list(read) == [read[at] for at in range(len(read))] == found
    assert read.json() == compact(found)
    assert not read.may_repeat()


@given(names, st.data())
def test_some_of_them(found: list[str], data: st.DataObject) -> None:
    read = Names.read(compact(found))
    places = data.draw(st.lists(st.integers(0, max(len(found) - 1, 0)), unique=True))
    if read is None:
        return
    part = read.take(np.array(places, np.intp))
    assert list(part) == [found[at] for at in places]
    assert part.json() == compact(list(part))
    assert (part == read) == (list(part) == found)


@given(names, st.lists(plain | alike, max_size=60), st.randoms())
def test_rows_are_those_of_a_dictionary(known: list[str], asked: list[str], rng: object) -> None:
    asked += known[::2]
    index = NameIndex(known)
    rows = dict(zip(known, range(len(known)), strict=True)) if known else {}
    question = Names.read(compact(asked))
    if question is None:
        return
    expected = [rows.get(name, -1) if name else -1 for name in asked]
    assert index.rows(question).tolist() == expected
    assert question.may_repeat() >= (len(set(asked)) < len(asked))


@given(st.binary(max_size=40))
def test_what_is_not_plain_is_left_to_others(body: bytes) -> None:
    for text in (body, b'["' + body + b'"]', b'["a","' + body + b'","b"]'):
        read = Names.read(text)
        if read is not None:
            assert json.loads(text) == list(read)


@pytest.mark.parametrize(
    "text",
    ["[]", "null", '["a" ,"b"]', '["a", "b"]', '["a","b"] ', '["a""b"]', '["a";"b"]', '["ä"]',
     '["a\\u0041"]', '["a","b]', '["a","b"', '["a\n"]', '[["a"]]', '["a",1]', '["a",null,"b"]',
     '{"a":"b"}', '"a"', "", '["', '"]', '["]'],
)  # fmt: skip
def test_forms_that_are_read_by_others(text: str) -> None:
    assert Names.read(text.encode()) is None


def test_many_names_that_differ_in_one_byte() -> None:
    known = [f"node-{at:05d}.fleet.example" for at in range(20_000)]
    index = NameIndex(known)
    asked = Names.read(compact(known[::-1] + [name + "x" for name in known[:5]] + ["node"]))
    assert asked is not None
    assert index.rows(asked).tolist() == [*range(len(known))[::-1], *[-1] * 6]


def test_long_names_and_a_name_that_is_not_plain() -> None:
    known = ["a" * 253, "a" * 252, "ä", "b", "c" * 257]
    index = NameIndex(known)
    asked = Names.read(compact(["b", "a" * 252, "a" * 253, "a" * 254, "", "a" * 256]))
    assert asked is not None
    assert index.rows(asked).tolist() == [3, 1, 0, -1, -1, -1]
    short = Names.read(compact(["b", "a", "c"]))
    assert short is not None
    assert index.rows(short).tolist() == [3, -1, -1]
    assert Names.read(compact(["b", "c" * 257])) is None


def test_no_names() -> None:
    some = Names.of(["a", "node"])
    assert some is not None
    none = some.take(np.array([], np.intp))
    assert [*none] == none.texts() == none.words() == []
    assert none.json() == b"[]"
    assert not none.may_repeat()
    assert len(none.mixed()) == len(none.ended()) == len(none.lengths()) == 0
    for index in (NameIndex([]), NameIndex(["a", "b"])):
        assert index.rows(none).tolist() == []
    assert NameIndex([]).rows(some).tolist() == [-1, -1]


def test_names_of_one_number_are_told_apart() -> None:
    """Of two words, the second such that the number of both is that of another name."""
    odd, bits = 0x9E3779B97F4A7C15, (1 << 64) - 1
    wanted, found = 0x1234567890ABCDEF, list[str]()
    undo = pow(pow(odd, 2, 1 << 64), -1, 1 << 64)
    for number in range(40_000):
        first = f"n-{number:06d}"
        word = int.from_bytes(first.encode(), "little")
        left = (wanted - (word ^ word >> 32) * odd) * undo & bits
        second = (left ^ left >> 32).to_bytes(8, "little")
        if all(32 <= byte < 127 and byte not in b'"\\' for byte in second):
            found.append(first + second.decode())
    assert len(found) > 4
    known, *unknown = found
    names = Names.of(found)
    assert names is not None
    assert len(set(names.mixed().tolist())) == 1
    few = NameIndex([known, "other", unknown[0], unknown[1]])
    assert few.rows(names).tolist() == [0, 2, 3, *[-1] * (len(found) - 3)]
    assert NameIndex(found).rows(names).tolist() == [*range(len(found))]


def test_one_of_many_is_there_twice() -> None:
    known = [f"node-{at:05d}.fleet.example" for at in range(20_000)]
    once, twice = Names.of(known), Names.of([*known, known[4711]])
    assert once is not None
    assert twice is not None
    assert not once.may_repeat()
    assert twice.may_repeat()


@given(st.lists(alike, min_size=1, max_size=30), st.lists(alike, max_size=20, unique=True))
def test_a_table_knows_whether_one_is_there_twice(asked: list[str], known: list[str]) -> None:
    table = table_of(*(node_state(name) for name in known if name))
    question = Names.of(asked)
    assert question is not None
    assert table.may_repeat(question) == (len(set(asked)) < len(asked))
    rows = dict(zip(table.rows()[0], range(len(known)), strict=False))
    assert table.lookup(question).tolist() == [rows.get(name, UNKNOWN_ROW) for name in asked]
    # Whoever asks another table finds its rows.
    assert Table().lookup(question).tolist() == [UNKNOWN_ROW] * len(asked)
