"""Rounds of windows: no node twice in one, and none out of its order."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.model.bank import split_into_rounds


def test_each_window_of_a_node_has_its_own_round() -> None:
    assert split_into_rounds(["a", "a", "b", "a", "b"]) == [[0, 2], [1, 4], [3]]


@given(st.lists(st.sampled_from("abc")))
def test_rounds_have_every_window_once_and_in_order_per_node(nodes: list[str]) -> None:
    groups = split_into_rounds(nodes)
    order = [position for group in groups for position in group]
    assert sorted(order) == list(range(len(nodes)))
    for group in groups:
        assert len({nodes[position] for position in group}) == len(group)
    for node in set(nodes):
        own = [position for position in order if nodes[position] == node]
        assert own == sorted(own)
    # In as few rounds as can be: the work is done a round at a time.
    assert len(groups) == max(Counter(nodes).values(), default=0)
