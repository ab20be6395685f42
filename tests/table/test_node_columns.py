import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.errors import InvalidRecordError
from pipeline.table import COLUMNS, UNKNOWN_ROW, NodeRecords, Table
from pipeline.table.node_columns import TableNode
from pipeline.topics.node_state import AggregatedUsage, NodeStateRecord, UsageDeviation
from pipeline.topics.pods import CountedPod
from pipeline.topics.resource_amounts import Resources, Usage
from tests.table.records import GIB, NOW, any_pod, node_state, running, table_of
from tests.topics.records import records


def value(table: Table, node: str, column: str) -> float:
    return float(table[column][table.lookup([node])][0])


def test_unknown_names_have_the_missing_value_in_every_column() -> None:
    table = table_of(*(node_state(f"n{i}", simulated=True) for i in range(200)))
    rows = table.lookup(["stranger", "n3", ""])
    assert rows[0] == rows[2] == UNKNOWN_ROW
    for column in COLUMNS:
        np.testing.assert_equal(table[column.name][rows][0], column.missing)
    assert table.snapshot("stranger") == NodeRecords()


def test_values_land_in_the_row_of_their_node_whatever_the_number_of_nodes() -> None:
    table = table_of(*(node_state(f"n{i}", cpu=float(i)) for i in range(1000)))
    names = [f"n{i}" for i in (999, 0, 63, 64, 127, 500)]
    assert table["usage_cpu_cores"][table.lookup(names)].tolist() == [999, 0, 63, 64, 127, 500]
    assert list(table) == sorted(f"n{i}" for i in range(1000))


@pytest.mark.parametrize(
    ("first", "second", "wins"),
    [((1, 5), (1, 6), True), ((1, 5), (1, 5), True), ((1, 5), (1, 4), False),
     ((1, 5), (2, 0), True), ((2, 0), (1, 9), False)],
)  # fmt: skip
def test_only_a_later_position_in_the_log_replaces_a_result(
    first: tuple[int, int], second: tuple[int, int], wins: bool
) -> None:
    table = table_of(node_state("a", generation=first[0], offset=first[1], cpu=1.0))
    assert table.put_state(node_state("a", generation=second[0], offset=second[1], cpu=2.0)) == wins
    assert value(table, "a", "usage_cpu_cores") == (2.0 if wins else 1.0)


def test_rows_of_departed_nodes_are_reused_and_start_empty() -> None:
    table = table_of(node_state("a", cpu=3.0, simulated=True), node_state("b"))
    row = table.lookup(["a"])[0]
    table.drop_state("a")
    table.put_node(TableNode(node="c"))
    assert table.lookup(["c"])[0] == row
    assert np.isnan(value(table, "c", "usage_cpu_cores"))
    assert not value(table, "c", "simulated")


def test_allocatable_comes_from_the_node_then_the_window_then_capacity() -> None:
    capacity = Usage(cpu_cores=8.0, memory_bytes=32 * GIB)
    table = table_of(node_state("a", cores=None, room=16 * GIB, capacity=capacity))
    assert value(table, "a", "allocatable_cpu_cores") == 8.0
    assert value(table, "a", "allocatable_memory_bytes") == 16 * GIB
    table.put_node(TableNode(node="a", allocatable=Resources(cpu_millicores=3500)))
    assert value(table, "a", "allocatable_cpu_cores") == 3.5
    assert value(table, "a", "allocatable_memory_bytes") == 16 * GIB
    table.drop_node("a")
    assert value(table, "a", "allocatable_cpu_cores") == 8.0


def test_the_peak_is_that_of_the_deciding_predictor() -> None:
    peaks = {"percentile": Usage(cpu_cores=1.5), "made-by-us": Usage(memory_bytes=9.0)}
    table = table_of(
        node_state("a", peaks=peaks, predictor="percentile"),
        node_state("b", peaks=peaks, predictor="made-by-us"),
        node_state("c", peaks=peaks, predictor="gone"),
        node_state("d", peaks=peaks),
    )
    rows = table.lookup(list("abcd"))
    nan = np.nan
    np.testing.assert_equal(table["peak_cpu_cores"][rows], [1.5, nan, nan, nan])
    np.testing.assert_equal(table["peak_memory_bytes"][rows], [nan, 9.0, nan, nan])


def test_the_last_half_hour_has_a_column_for_each_span_and_statistic() -> None:
    number = iter(range(100))

    def usage() -> Usage:
        return Usage(cpu_cores=float(next(number)), memory_bytes=float(next(number)))

    statistics = ("avg", "p50", "p90", "p95", "p99")
    aggregated = {
        span: AggregatedUsage(**{name: usage() for name in statistics})
        for span in ("5m", "10m", "30m")
    }
    deviation = {span: UsageDeviation(mean=usage(), stdev=usage()) for span in ("5m", "10m", "15m")}
    table = table_of(
        node_state("a", aggregated=aggregated, deviation=deviation),
        node_state("b", aggregated={"5m": AggregatedUsage()}, deviation={}),
    )
    names = [
        *(f"usage_{name}_{span}" for span in aggregated for name in statistics),
        *(f"usage_{name}_{span}" for span in deviation for name in ("mean", "stdev")),
    ]
    columns = [f"{name}_{unit}" for name in names for unit in ("cpu_cores", "memory_bytes")]
    assert [value(table, "a", column) for column in columns] == [float(i) for i in range(42)]
    for column in columns:
        assert np.isnan(value(table, "b", column))
        assert np.isnan(value(table, "nowhere", column))


def test_ages_count_from_the_end_of_the_window() -> None:
    table = table_of(node_state("a", age=12.5))
    np.testing.assert_equal(table.ages(table.lookup(["a", "b"]), NOW), [12.5, np.nan])


def test_an_invalid_record_leaves_the_table_as_it_was() -> None:
    bad = {"pods": 10**400}
    table = table_of(node_state("a", cpu=1.0))
    for state in (node_state("a", offset=9, cpu=2.0), node_state("b")):
        with pytest.raises(InvalidRecordError):
            table.put_state(msgspec.structs.replace(state, **bad))
    assert list(table) == ["a"]
    assert value(table, "a", "usage_cpu_cores") == 1.0
    assert table.put_state(node_state("b"))


def test_copied_values_do_not_change_with_the_table() -> None:
    table = table_of(node_state("a", cpu=1.0))
    taken = table["usage_cpu_cores"][table.lookup(["a"])]
    table.put_state(node_state("a", offset=1, cpu=2.0))
    assert taken.tolist() == [1.0]


def test_adopting_replaces_everything_in_one_step() -> None:
    table = table_of(node_state("old", offset=1_000_000), node_state("both", offset=1_000_000))
    other = table_of(node_state("both", offset=5, cpu=0.5), node_state("new"))
    for each, pods in ((table, 3), (other, 2)):
        for uid in range(pods):
            each.put_pod(CountedPod(node="both", uid=str(uid), cgroup_uid=str(uid)))
        each.bring_up_to_date(NOW)
    table.adopt(other)
    # What was counted only grows.
    assert (table.pod_events, table.recomputed_rows) == (5, 2)
    assert (list(table), list(other)) == (["both", "new"], [])
    assert value(table, "both", "usage_cpu_cores") == 0.5
    other.put_state(node_state("x"))
    assert "x" not in table


Change = tuple[str, str, int]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "drop", "node", "gone"]),
            st.sampled_from("abcd"),
            st.integers(0, 6),
        ),
        max_size=40,
    )
)
@example([("put", "a", 0), ("node", "a", 0), ("drop", "a", 0)])
@example([("put", "a", 3), ("drop", "a", 0), ("put", "a", 3), ("put", "a", 2), ("put", "a", 4)])
def test_the_table_equals_a_plain_dictionary(changes: list[Change]) -> None:
    table = Table()
    states: dict[str, int] = {}
    nodes: set[str] = set()
    buried: dict[str, int] = {}
    for what, name, offset in changes:
        if what == "put":
            newer = offset >= states.get(name, 0) and offset > buried.get(name, -1)
            assert table.put_state(node_state(name, offset=offset, cpu=float(offset))) == newer
            if newer:
                states[name] = offset
                buried.pop(name, None)
        elif what == "drop":
            table.drop_state(name)
            if name in states:
                buried[name] = states.pop(name)
        elif what == "node":
            table.put_node(TableNode(node=name))
            nodes.add(name)
        else:
            table.drop_node(name)
            nodes.discard(name)
    assert list(table) == sorted(nodes | set(states))
    shown = table["usage_cpu_cores"][table.lookup(list("abcd"))]
    np.testing.assert_equal(shown, [float(states.get(name, np.nan)) for name in "abcd"])


@given(st.lists(records(NodeStateRecord), max_size=5))
def test_any_record_is_taken_or_raises_a_record_error(states: list[NodeStateRecord]) -> None:
    table = Table()
    for state in states:
        try:
            table.put_state(state)
        except InvalidRecordError:
            continue
        for column in COLUMNS:
            assert not np.isinf(table[column.name].astype(float)).any()


def test_long_windows_are_stale_after_twice_their_length() -> None:
    ages = {"short": 179.0, "old": 180.0, "long": 479.0, "late": 480.0}
    table = Table()
    for name, age in ages.items():
        length = 30.0 if name in ("short", "old") else 240.0
        state = msgspec.structs.replace(node_state(name, age=age), window_seconds=length)
        assert table.put_state(state)
    rows = table.lookup([*ages, "stranger"])
    assert table.fresh(rows, NOW, 180.0).tolist() == [True, False, True, False, False]
    # A limit below the length of a usual window applies.
    assert table.fresh(rows, NOW, 1.0).tolist() == [False, False, True, False, False]


def test_pods_of_a_node_whose_state_comes_back_are_counted_once() -> None:
    """The arrays of pods have grown: they have places without a pod."""
    table = table_of(node_state("a"))
    for number in range(65):
        table.put_pod(running(any_pod(str(number)), "a"))
    table.bring_up_to_date(NOW)
    assert table.pods.in_flight == 0
    table.drop_state("a")
    table.bring_up_to_date(NOW)
    assert table.pods.in_flight == 65
    table.put_state(node_state("a", generation=2))
    table.bring_up_to_date(NOW)
    assert table.pods.in_flight == 0
