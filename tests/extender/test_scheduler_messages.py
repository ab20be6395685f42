"""Questions and answers by fewer passes are what plain readers of JSON make of them."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import BadRequestError
from pipeline.extender.scheduler_messages import Question, prioritize_answer, read_question
from pipeline.table.name_index import Names

plain = st.text(
    st.characters(min_codepoint=32, max_codepoint=126, exclude_characters='"\\'), max_size=40
)
alike = st.builds("node-{:03d}.{}".format, st.integers(0, 12), st.sampled_from(["a", "bb"]))
scored = st.lists(st.tuples(plain | alike, st.integers(0, 100)), min_size=1, max_size=30)


@given(scored)
def test_scores_are_written_as_they_are(found: list[tuple[str, int]]) -> None:
    hosts, scores = zip(*found, strict=True)
    names = Names.of(hosts)
    assert names is not None
    answer = json.loads(prioritize_answer(names, np.array(scores)))
    assert answer == [{"Host": host, "Score": score} for host, score in found]
    assert answer == json.loads(prioritize_answer(hosts, np.array(scores)))


def test_one_long_name_does_not_make_all_others_as_long() -> None:
    hosts = ["a" * 253, *(f"node-{at}" for at in range(1000))]
    names = Names.of(hosts)
    assert names is not None
    answer = prioritize_answer(names, np.arange(1001) % 11)
    assert [one["Host"] for one in json.loads(answer)] == hosts
    assert len(answer) < 40 * 1001


def test_no_names_and_no_scores() -> None:
    names = Names.of(["a"])
    assert names is not None
    assert prioritize_answer(names.take(np.array([], np.intp)), np.array([], np.int64)) == b"[]"


# What could be taken for the names of a question, or for their end.
TRICKY: list[Any] = [
    "x", 1, None, {}, [], ["a"], {"NodeNames": ["inner"]}, [{"NodeNames": ["inner"]}],
    {"NodeNames": ["inner"], "more": 1}, 'a "NodeNames":["quoted"]}', ["]}"], "]}", '["a"]}',
]  # fmt: skip
names_of_nodes = st.lists(
    st.sampled_from(["a", "b", "c]", 'd"', "e\\", "ä", "f}", "]}", "", "\x7f"])
)
values = st.sampled_from(TRICKY)
keys = st.sampled_from(
    [
        "Pod",
        "pod",
        "Nodes",
        "NodeNames",
        "nodenames",
        "More",
        "NodeNames ",
        'x"NodeNames',
        ',"NodeNames',
        '\\"NodeNames',
    ]
)
pods = st.fixed_dictionaries(
    {"metadata": st.fixed_dictionaries({"name": st.sampled_from(["p", '"NodeNames":["p"]}'])})},
    optional={"NodeNames": st.just(["of the pod"]), "status": values},
)


def answered(body: bytes) -> Question | str:
    try:
        return read_question(body)
    except BadRequestError as error:
        return f"refused: {error.message[:12]}"


@given(
    pods,
    names_of_nodes,
    st.lists(st.tuples(keys, values), max_size=2),
    st.lists(st.tuples(keys, values), max_size=1),
    st.sampled_from(["", "}", "]", "]}", " ", "x", '"', ',"More":1}', "\x00"]),
    st.just("NodeNames") | keys,
)
def test_a_question_is_read_as_if_it_were_read_whole(
    pod: dict[str, Any],
    names: list[str],
    before: list[tuple[str, Any]],
    behind: list[tuple[str, Any]],
    rubbish: str,
    key: str,
) -> None:
    parts = [("Pod", pod), *before, (key, names), *behind]
    pieces = [
        f"{json.dumps(key)}:{json.dumps(value, separators=(',', ':'))}" for key, value in parts
    ]
    text = "{" + ",".join(pieces) + "}" + rubbish
    # The same, but nobody finds the names without reading all.
    spread = text.replace(',"', ', "')
    found, plainly = answered(text.encode()), answered(spread.encode())
    if isinstance(found, str) or isinstance(plainly, str):
        assert found == plainly
        return
    assert [*found.names] == [*plainly.names]
    assert (found.pod, found.record, found.nodes) == (plainly.pod, plainly.record, plainly.nodes)


@pytest.mark.parametrize("rubbish", ["x", "}", "]", "\x00", "]}", ",", '"'])
def test_rubbish_behind_a_question_is_refused(rubbish: str) -> None:
    body = '{"Pod":{"metadata":{"name":"p"}},"NodeNames":["a","b"]}'
    assert [*read_question(body.encode()).names] == ["a", "b"]
    with pytest.raises(BadRequestError, match="JSON"):
        read_question((body + rubbish).encode())
    with pytest.raises(BadRequestError, match="JSON"):
        read_question((body[:-1] + rubbish).encode() if rubbish != "}" else body[:-1].encode())


def test_control_characters_in_names_are_refused() -> None:
    for text in ("a\x01", "\x1f", "a\n"):
        body = b'{"Pod":{},"NodeNames":["%s","b"]}' % text.encode()
        with pytest.raises(BadRequestError):
            read_question(body)
