"""Views never get older, and waiting clients are woken."""

import asyncio
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InvalidRecordError, KeyMismatchError
from pipeline.table import Table
from pipeline.table.apply_records import apply
from pipeline.table.compressed_views import NodeViewStore
from pipeline.topics.codec import encode_json
from pipeline.topics.node_views import NodeViewRecord
from pipeline.topics.registry import NODE_VIEWS

steps = st.lists(st.tuples(st.sampled_from("ab"), st.none() | st.integers(0, 9)), max_size=30)


@given(steps)
def test_a_view_is_only_replaced_by_a_newer_one(changes: list[tuple[str, int | None]]) -> None:
    views, newest, there = NodeViewStore(), {"a": -1, "b": -1}, dict[str, int]()
    for node, generation in changes:
        if generation is None:
            views.drop(node)
            there.pop(node, None)
        elif views.put(node, generation, b"%d" % generation):
            assert generation > newest[node]
            newest[node] = there[node] = generation
        else:
            assert generation <= newest[node]
    assert len(views) == len(there)
    for node in "ab":
        view = views.get(node)
        assert (view and view.generation) == there.get(node)
        assert view is None or view.data() == b"%d" % view.generation


async def test_a_waiting_client_is_woken_by_its_own_node_alone() -> None:
    views = NodeViewStore()
    with views.waiting("a") as change, views.waiting("a") as other:
        views.put("b", 1, b"")
        assert not change.done()
        views.put("a", 1, b"")
        assert change.done()
        assert other.done()
    drop, adopt = partial(views.drop, "a"), partial(views.adopt, NodeViewStore())
    for wake in (drop, views.wake_all, adopt):
        with views.waiting("a") as change:
            wake()
            assert change.done()
    assert views.waiters == {}


async def test_a_cancelled_wait_leaves_no_future_behind() -> None:
    views = NodeViewStore()
    with pytest.raises(TimeoutError), views.waiting("a") as change:
        async with asyncio.timeout(0.01):
            await change
    assert views.waiters == {}
    views.put("a", 1, b"")


def test_a_view_is_stored_as_it_came_and_removed_by_a_tombstone() -> None:
    table, record = Table(), encode_json(NodeViewRecord(node="a", generation=3))
    assert apply(table, NODE_VIEWS, b"a", record)
    view = table.views.get("a")
    assert view is not None
    assert (view.generation, view.data()) == (3, record)
    assert not apply(table, NODE_VIEWS, b"a", record)
    other = Table()
    other.adopt(table)
    assert other.views.get("a") == view
    assert apply(other, NODE_VIEWS, b"a", None)
    assert other.views.get("a") is None
    assert len(other) == 0


def test_an_invalid_view_or_one_of_another_node_is_refused() -> None:
    table = Table()
    with pytest.raises(KeyMismatchError):
        apply(table, NODE_VIEWS, b"b", encode_json(NodeViewRecord(node="a", generation=3)))
    with pytest.raises(InvalidRecordError):
        apply(table, NODE_VIEWS, b"a", b'{"version": 1, "node": "a"}')
    assert len(table.views) == 0
