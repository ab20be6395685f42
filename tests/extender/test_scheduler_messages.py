"""Requests and replies of the extender protocol, as plain readers of JSON see them."""

import json
import tracemalloc
from collections.abc import Sequence, Set
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import BadRequestError
from pipeline.extender.refusals import PASSES, Refusal, Refusals
from pipeline.extender.scheduler_messages import filter_reply, prioritize_reply, read_question
from pipeline.table import NodeNames, Table
from tests.table.records import node_state, table_of

NODES = st.lists(st.sampled_from(["a", "b", "c]", 'd"', "e\\", "ä", "f}", "]}", "", "\x7f"]))
SPACES = st.sampled_from([(",", ":"), (", ", ": "), (" , ", " : ")])


@given(st.lists(st.tuples(st.text(max_size=40), st.integers(0, 100)), max_size=30))
def test_scores_are_whole_numbers_by_host(scores: list[tuple[str, int]]) -> None:
    reply = prioritize_reply([host for host, _ in scores], np.array([s for _, s in scores], int))
    assert json.loads(reply) == [{"Host": host, "Score": score} for host, score in scores]


@given(
    NODES, st.sampled_from(["NodeNames", "nodenames", "nodeNames", "NODENAMES"]),
    st.dictionaries(st.sampled_from(["More", 'x"NodeNames', "Nodes "]), st.just(["a"])),
    st.booleans(), SPACES,
)  # fmt: skip
def test_names_are_read_once_each_whatever_surrounds_them(
    names: list[str], key: str, others: dict[str, Any], pod_last: bool, spaces: tuple[str, str]
) -> None:
    pod: dict[str, Any] = {"metadata": {"name": '"NodeNames":["p"]}'}, "NodeNames": ["of the pod"]}
    parts = [("pod" if pod_last else "Pod", pod), *others.items(), (key, names)]
    body = json.dumps(dict(reversed(parts) if pod_last else parts), separators=spaces)
    question = read_question(body.encode())
    assert (question.names, question.nodes) == (tuple(dict.fromkeys(names)), None)
    assert question.pod.metadata.name == pod["metadata"]["name"]


WHY = Refusal("why")


def refusals_of(names: Sequence[str], refused: Set[str], kind: Refusal = WHY) -> Refusals:
    codes = np.array([0 if name in refused else PASSES for name in names], np.int64)
    return Refusals(codes, (kind,))


KNOWN = table_of(*(node_state(name) for name in "abcdef"))


@pytest.mark.parametrize("table", [None, KNOWN], ids=["by a decoder", "by the table"])
@given(refused=st.sets(st.sampled_from("abcdef")))
def test_a_filter_reply_has_each_node_once(table: Table | None, refused: set[str]) -> None:
    question = read_question(b'{"Pod":{},"NodeNames":["f","b","d","a","c","e"]}', table)
    assert isinstance(question.names, NodeNames) == (table is not None)
    passed: Any = [name for name in question.names if name not in refused]
    if isinstance(question.names, NodeNames):
        passed = question.names.take(np.array([name not in refused for name in question.names]))
    refusals = refusals_of(question.names, refused)
    reply = json.loads(filter_reply(question, passed, refusals).body)
    passed = [*passed]
    assert reply == {
        "Nodes": None, "NodeNames": passed, "FailedNodes": {},
        "FailedAndUnresolvableNodes": dict.fromkeys(refused, "why"), "Error": "",
    }  # fmt: skip


def test_whole_nodes_are_passed_back_as_they_came() -> None:
    nodes = b'{"metadata":{"name":"a"}, "x":1.50},{"metadata": {"name":"b"}}'
    question = read_question(b'{"Pod":{},"Nodes":{"items":[%s]}}' % nodes)
    assert question.names == ("a", "b")
    assert b'"items":[%s]' % nodes in filter_reply(question, ["a", "b"], Refusals.none(2)).body
    part = filter_reply(question, ["b"], refusals_of(question.names, {"a"})).body
    assert b'"items":[{"metadata": {"name":"b"}}]' in part


@pytest.mark.parametrize("rubbish", ["x", "}", "]", "\x00", "]}", ",", '"'])
def test_rubbish_after_a_request_is_refused(rubbish: str) -> None:
    body = '{"Pod":{"metadata":{"name":"p"}},"NodeNames":["a","b"]}'
    assert read_question(body.encode()).names == ("a", "b")
    for invalid in (body + rubbish, body[:-1] + rubbish.removeprefix("}")):
        with pytest.raises(BadRequestError, match="JSON"):
            read_question(invalid.encode())


MILLION = 1_000_000


@pytest.mark.parametrize(
    "parts",
    [
        b'"Pod":{},"NodeNames":[' + b'"",' * MILLION + b'""]',
        b'"Pod":{},"Nodes":{"items":[' + b"1," * MILLION + b"1]}",
        b'"Pod":{},"Nodes":{"items":[' + b"{}," * MILLION + b"{}]}",
        b'"NodeNames":[],"Pod":{"metadata":{"ownerReferences":[' + b"{}," * 2 * MILLION + b"{}]}}",
    ],
    ids=["names", "numbers", "objects", "owners"],
)
def test_millions_of_values_are_refused_before_they_fill_the_memory(parts: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(BadRequestError):
            read_question(b"{" + parts + b"}", Table())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * len(parts)


@pytest.mark.parametrize("text", ["a\x01", "\x1f", "a\n"])
def test_control_characters_in_names_are_refused(text: str) -> None:
    with pytest.raises(BadRequestError):
        read_question(b'{"Pod":{},"NodeNames":["%s","b"]}' % text.encode())


def test_names_that_filter_passed_are_recognized_with_their_pod_alone() -> None:
    question = read_question(b'{"Pod":{"metadata":{"uid":"p"}},"NodeNames":["a","b"]}')
    reply = filter_reply(question, ["b"], refusals_of(question.names, {"a"}))
    replies = {question.pod_json: reply}
    assert reply.next.names == ["b"]
    body = b'{"NodeNames":["b"],"pod":%s,"Nodes":null}' % question.pod_json
    assert read_question(body, replies=replies) is reply.next
    for body in (
        b'{"Pod":{"metadata":{"uid":"q"}},"NodeNames":["b"]}',
        b'{"Pod":%s,"NodeNames":["a"]}' % question.pod_json,
    ):
        assert read_question(body, replies=replies) == read_question(body) != reply.next
