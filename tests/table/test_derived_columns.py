"""Columns that requests ask for follow names and records of nodes."""

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from pipeline.extender.candidate_nodes import CandidateNodes
from pipeline.processors.arrays import FloatArray
from pipeline.table import Table
from pipeline.table.node_columns import TableNode
from tests.table.records import NOW, ROOM, any_pod, node_state, running


class Size(msgspec.Struct, frozen=True):
    width: float
    height: float


SIZES = {"a": Size(1.0, 2.0), "b": Size(3.0, 4.0), "elsewhere": Size(5.0, 6.0)}


def node(name: str, **more: Any) -> TableNode:
    return TableNode(node=name, allocatable=ROOM, **more)


def zones(table: Table, *names: str) -> list[str | None]:
    codes, texts = CandidateNodes(table, names, NOW).metadata("Label", "zone")
    by_row = [texts[code] for code in codes.tolist()]
    # Candidates are in the order of the table.
    order = CandidateNodes(table, names, NOW).order
    return [by_row[order.tolist().index(position)] for position in range(len(names))]


def test_texts_follow_the_records_of_nodes() -> None:
    table = Table()
    for name, zone in (("a", "north"), ("b", "south"), ("c", "north")):
        table.put_node(node(name, labels={"zone": zone}))
    assert zones(table, "c", "b", "a", "stranger") == ["north", "south", "north", None]
    table.put_node(node("a", labels={"zone": "east"}))
    table.put_node(node("b"))
    table.drop_node("c")
    assert zones(table, "a", "b", "c") == ["east", None, None]
    # The row of c gets another node, and the table grows.
    for number in range(200):
        table.put_node(node(f"n{number}", labels={"zone": f"z{number}"}))
    assert zones(table, "n0", "a", "n199") == ["z0", "east", "z199"]


def test_texts_that_no_node_has_any_more_are_forgotten() -> None:
    table = Table()
    for number in range(1000):
        table.put_node(node("a", labels={"zone": f"z{number}"}))
        assert zones(table, "a") == [f"z{number}"]
    _, texts = table.texts("Label", "zone", slice(0, 1))
    assert len(texts) < 200


def test_values_by_name_follow_names() -> None:
    table = Table()
    for name in ("a", "x"):
        table.put_node(node(name))

    def heights(*names: str) -> list[float]:
        nodes = CandidateNodes(table, names, NOW)
        values = nodes.by_name(SIZES, ("width", "height"))
        assert values.shape == (2, len(names))
        return [-1.0 if math.isnan(each) else each for each in values[1].tolist()]

    assert heights("a", "x") == [2.0, -1.0]
    table.drop_node("x")
    table.put_node(node("b"))
    assert heights("a", "b") == [2.0, 4.0]
    # A node that is not in the table has no row.
    assert heights("elsewhere") == [-1.0]


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_remembered_values_are_those_of_their_inputs(share: float) -> None:
    random, table, names = np.random.default_rng(7), Table(), [f"n{i}" for i in range(50)]
    for name in names[:40]:
        table.put_node(node(name))
    computed = 0

    def add(inputs: FloatArray) -> FloatArray:
        nonlocal computed
        computed += inputs.shape[1]
        return inputs[0] + 2 * inputs[1]

    inputs = {name: (random.random(), math.nan) for name in names}
    for _ in range(100):
        changed = names[int(random.integers(50))]
        inputs[changed] = (random.random(), float(random.choice([0.0, -0.0, 1.0, math.nan])))
        asked = [name for name in names if random.random() < share]
        nodes = CandidateNodes(table, asked, NOW)
        values = np.array([inputs[name] for name in nodes.names]).reshape(-1, 2).T
        np.testing.assert_array_equal(
            nodes.remembered("sum", values, add), values[0] + 2 * values[1]
        )
    # At first all; later those that changed, and nodes without a row, which share one.
    assert computed < 50 + 100 * (2 + 10)


def test_an_adopted_table_has_its_own_columns() -> None:
    table, other = Table(), Table()
    table.put_node(node("a", labels={"zone": "north"}))
    other.put_node(node("b", labels={"zone": "south"}))
    assert zones(table, "a") == ["north"]
    table.adopt(other)
    assert zones(table, "a", "b") == [None, "south"]


def test_lower_sums_hold_in_parts_and_add_up() -> None:
    table = Table()
    for name in ("a", "b", "c"):
        table.put_node(node(name))
        for number in range(5):
            table.put_pod(running(any_pod(f"{name}{number}"), name))
    whole = CandidateNodes(table, ("c", "a", "b"), NOW)
    column = whole.counted_names.index("pods")
    fewer = np.zeros((3, len(whole.counted_names)), np.int64)
    fewer[:, column] = [1, 2, 3]
    once = whole.reduced(fewer, {})
    assert whole.counted("pods").tolist() == [5, 5, 5]
    # Also where the sums were read before.
    assert once.counted("pods").tolist() == [4, 3, 2]
    assert once.reduced(fewer, {}).counted("pods").tolist() == [3, 1, -1]
    part = once.among(np.array([0, 2]))
    assert part.counted("pods").tolist() == [4, 2]
    fresh = whole.reduced(fewer, {}).among(np.array([1]))
    assert fresh.counted("pods").tolist() == [3]
    assert fresh.reduced(fewer[:1], {}).counted("pods").tolist() == [2]


def test_lower_usage_is_not_that_of_the_whole_whenever_it_is_read() -> None:
    table = Table()
    for name, cores in (("a", 1.0), ("b", 2.0)):
        table.put_node(node(name))
        table.put_state(node_state(name, cpu=cores))
    whole = CandidateNodes(table, ("b", "a"), NOW)
    part = whole.in_order(np.array([0]))
    fewer = np.zeros((1, len(whole.counted_names)), np.int64)
    less = part.reduced(fewer, {"cpu": np.array([250.0])})
    assert whole.usage("usage", ["cpu"]).T.tolist() == [[1000.0, 2000.0]]
    assert part.usage("usage", ["cpu"]).T.tolist() == [[1000.0]]
    assert less.usage("usage", ["cpu"]).T.tolist() == [[750.0]]
    assert less.among(np.array([0])).usage("usage", ["cpu"]).T.tolist() == [[750.0]]


def test_nodes_can_be_asked_for_in_another_order() -> None:
    table = Table()
    for name in ("a", "b", "c", "d"):
        table.put_node(node(name))
    whole = CandidateNodes(table, ("d", "b", "c", "a"), NOW)
    part = whole.in_order(whole.positions[[2, 0, 1]])
    assert [*part.requested] == ["c", "d", "b"]
    assert [*part.names] == ["c", "d", "b"]
    assert part.in_requested_order(np.array([*part.names])).tolist() == ["c", "d", "b"]
