"""Resources beside cpu and memory: columns equal a dictionary, and names cost no columns."""

import tracemalloc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.table import Table, limits
from pipeline.table.node_columns import TableNode

GPU = "nvidia.com/gpu"


def test_names_of_one_record_cost_no_columns() -> None:
    table = Table()
    for number in range(1000):
        table.put_node(TableNode(node=f"n{number}", scalars={GPU: number}))
    invented = {f"example.com/r{number}": 1 for number in range(5000)}
    tracemalloc.start()
    try:
        table.put_node(TableNode(node="n0", scalars=invented | {GPU: 7}))
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < 1_000_000  # once 41 MB
    assert len(table.snapshot("n0").node.scalars) == limits.MAX_NODE_RESOURCES  # type: ignore[union-attr, arg-type]
    assert len(table.scalars) <= limits.MAX_RESOURCES
    assert GPU in table.scalars
    rows = table.lookup(["n0", "n5"])
    assert table.scalar("example.com/r0", rows).tolist() == [1, 0]
    assert table.scalar(GPU, rows).tolist() == [0, 5]


Change = tuple[str, dict[str, int] | None]


@given(
    st.lists(
        st.tuples(
            st.sampled_from([f"n{number}" for number in range(100)]),
            st.none() | st.dictionaries(st.sampled_from("abc"), st.integers(-1, 3)),
            st.sampled_from("abc"),
        ),
        max_size=150,
    )
)
def test_amounts_equal_a_plain_dictionary(
    changes: list[tuple[str, dict[str, int] | None, str]],
) -> None:
    table, expected = Table(), dict[str, dict[str, int]]()
    for node, scalars, asked in changes:
        if scalars is None:
            table.drop_node(node)
            expected.pop(node, None)
        else:
            table.put_node(TableNode(node=node, scalars=scalars))
            expected[node] = scalars
        names = [*expected, "stranger"]
        amounts = [max(expected.get(name, {}).get(asked, 0), 0) for name in names]
        np.testing.assert_equal(table.scalar(asked, table.lookup(names)), amounts)
    assert set(table.scalars) == {name for scalars in expected.values() for name in scalars}
