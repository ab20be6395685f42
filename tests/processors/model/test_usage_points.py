"""The last half hour: every statistic against plain numpy, and what is no point or too old."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.processors.model import usage_points
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.column_store import Columns
from pipeline.processors.model.model_config import MAX_USAGE
from pipeline.processors.model.training_batch import NodeWindow
from pipeline.processors.model.usage_points import SECONDS, RecentUsage, fractions
from pipeline.settings.base import MemoryCollectPolicy
from pipeline.topics.node_state import AGGREGATED, AGGREGATIONS, DEVIATION
from tests.processors.joined import NODE_ROW, header, joined, training
from tests.processors.windows import BAD, GIB

START_MS = 1_700_000_040_000
Point = tuple[float, float, float]


def window(
    end: float, *found: Point, seconds: float = 30.0, coverage: float = 1.0, **more: str
) -> NodeWindow:
    """A window that ends `end` seconds after the beginning of the test."""
    end_ms = START_MS + round(end * 1000)
    return NodeWindow(
        node=more.get("node", "a"),
        machine_id=more.get("machine", "m1"),
        epoch=1,
        start_ms=end_ms - round(seconds * 1000),
        end_ms=end_ms,
        coverage=coverage,
        node_usage=np.array([1.0, GIB]),
        points=np.array(found, float).reshape(-1, 3),
    )


def every(step: float, first: float, end: float, cpu: float = 1.0) -> list[NodeWindow]:
    """Windows of 30 s between two moments with a point at every step, its cpu rising by 1."""
    windows = []
    for last in np.arange(first + 30.0, end + 0.5, 30.0):
        offsets = np.arange(step, 30.0 + step / 2, step)
        found = [(o, cpu + i, GIB) for i, o in enumerate(offsets.tolist())]
        cpu += len(found)
        windows.append(window(float(last), *found))
    return windows


def recent(windows: Sequence[NodeWindow]) -> RecentUsage:
    bank = Bank()
    bank.apply(windows)
    return by_node(bank.recent_usage(["a"]))[0]


def by_node(recent: RecentUsage) -> list[RecentUsage]:
    """The statistics of each node, its arrays without the axis of nodes."""
    both = zip(recent.aggregated, recent.deviation, strict=True)
    return [RecentUsage(aggregated, deviation) for aggregated, deviation in both]


def cpu(found: RecentUsage, span: str, statistic: str) -> float:
    return float(found.aggregated[list(AGGREGATED).index(span), AGGREGATIONS.index(statistic), 0])


def mean_and_stdev(found: RecentUsage, span: str) -> list[float]:
    values: list[float] = found.deviation[list(DEVIATION).index(span), :, 0].tolist()
    return values


def bits(found: RecentUsage) -> bytes:
    return found.aggregated.tobytes() + found.deviation.tobytes()


# -- against a slow and plain reference


@dataclass
class Seconds:
    """One resource of one node as a dictionary of seconds."""

    largest: float
    values: dict[int, float] = field(default_factory=dict)
    last: int = 0

    def see(self, seen: NodeWindow, column: int) -> None:
        self.last = math.ceil(seen.end_ms / 1000)
        for offset, value in zip(seen.points[:, 0], seen.points[:, column], strict=True):
            if not (abs(offset) < 1e9 and 0 <= round(offset * 1000) <= seen.end_ms - seen.start_ms):
                continue
            second = math.ceil((seen.start_ms + round(offset * 1000)) / 1000)
            if second > self.last - SECONDS and 0 <= value <= self.largest:
                self.values[second] = value

    def span(self, seconds: int) -> list[float]:
        """What is known of the last seconds, nothing if it does not reach over half of them."""
        known = sorted(s for s in self.values if self.last - seconds < s <= self.last)
        if not known or known[-1] - known[0] < seconds / 2:
            return []
        return [self.values[second] for second in known]

    def aggregated(self, seconds: int) -> list[float]:
        values = sorted(self.span(seconds))
        if not values:
            return [np.nan] * len(AGGREGATIONS)
        ranks = (max(len(values) * p // 100 - 1, 0) for p in (50, 90, 95, 99))
        return [float(np.mean(values)), *(values[rank] for rank in ranks)]

    def deviation(self, seconds: int) -> list[float]:
        values = self.span(seconds)
        return [float(np.mean(values)), float(np.std(values))] if values else [np.nan, np.nan]


CPU = st.floats(0, 64) | BAD
MEMORY = st.floats(0, 2**45) | BAD | st.just(-0.0)
OFFSETS = st.sampled_from([-1.0, 0.0, np.nan, 1e300]) | st.floats(0, 200)


@st.composite
def histories(draw: st.DrawFn) -> list[NodeWindow]:
    """Windows of one node in order of time, of any length, with gaps and overlaps."""
    windows: list[NodeWindow] = []
    end = 0.0
    for _ in range(draw(st.integers(1, 6))):
        end += draw(st.sampled_from([0.5, 5.0, 30.0, 150.0, 601.0, 1799.0, 1800.0, 9000.0]))
        seconds = draw(st.sampled_from([0.5, 1.0, 30.0, 120.5, 700.0, 4000.0]))
        seed = draw(st.integers(0, 2**32 - 1))
        numbers = np.random.default_rng(seed)
        count = draw(st.sampled_from([0, 0, 30, 300, 3000]))
        found = np.sort(numbers.random(count)) * seconds
        dense = np.column_stack([found, numbers.random(count) * 9, numbers.random(count) * GIB])
        few = draw(st.lists(st.tuples(OFFSETS, CPU, MEMORY), max_size=5))
        seen = window(end, *few, seconds=seconds)
        windows.append(replace(seen, points=np.concatenate([dense, seen.points])))
    return windows


def columns_of(rows: int) -> Columns:
    columns = Columns(usage_points.COLUMNS)
    columns.grow(rows)
    return columns


def observe(columns: Columns, seen: dict[int, NodeWindow]) -> None:
    usage_points.observe(
        columns["points"],
        columns["points_second"],
        np.array(list(seen), np.int64),
        np.array([w.start_ms for w in seen.values()], np.int64),
        np.array([w.end_ms for w in seen.values()], np.int64),
        [w.points for w in seen.values()],
    )


def read(columns: Columns, rows: Sequence[int]) -> list[RecentUsage]:
    return by_node(
        usage_points.read(columns["points"], columns["points_second"], np.array(rows, np.int64))
    )


@given(st.lists(histories(), min_size=1, max_size=3), st.integers(0, 2))
@settings(deadline=None, max_examples=60)
def test_statistics_equal_a_plain_reference_in_any_batch(
    nodes: list[list[NodeWindow]], other: int
) -> None:
    columns = columns_of(5)
    slow = [[Seconds(float(most)) for most in MAX_USAGE] for _ in nodes]
    for turn in range(max(map(len, nodes))):
        observe(columns, {i: own[turn] for i, own in enumerate(nodes) if turn < len(own)})
        for i, own in enumerate(nodes):
            for r in range(2):
                if turn < len(own):
                    slow[i][r].see(own[turn], r + 1)
    for i, found in enumerate(read(columns, range(len(nodes)))):
        aggregated = [
            [slow[i][r].aggregated(span) for r in range(2)] for span in AGGREGATED.values()
        ]
        deviation = [[slow[i][r].deviation(span) for r in range(2)] for span in DEVIATION.values()]
        expected = np.swapaxes(np.array(aggregated), 1, 2)
        np.testing.assert_array_equal(found.aggregated[:, 1:], expected[:, 1:])
        np.testing.assert_allclose(found.aggregated[:, 0], expected[:, 0], rtol=1e-12)
        for j, (means, stdevs) in enumerate(np.swapaxes(np.array(deviation), 1, 2)):
            np.testing.assert_allclose(found.deviation[j, 0], means, rtol=1e-12)
            # Nothing is more exact than the mean that is taken off.
            np.testing.assert_allclose(
                found.deviation[j, 1], stdevs, rtol=1e-9, atol=1e-12 * np.nan_to_num(means).max()
            )
        assert bits(read(columns, [i])[0]) == bits(found)
        alone = columns_of(4)
        for seen in nodes[i]:
            observe(alone, {other: seen})
        assert bits(read(alone, [other, other])[1]) == bits(found)


@given(histories(), st.integers(1, 100_000))
@settings(deadline=None, max_examples=30)
def test_a_shift_of_all_windows_by_whole_seconds_changes_no_bit(
    windows: list[NodeWindow], seconds: int
) -> None:
    later = [
        replace(w, start_ms=w.start_ms + 1000 * seconds, end_ms=w.end_ms + 1000 * seconds)
        for w in windows
    ]
    assert bits(recent(later)) == bits(recent(windows))


@given(histories(), st.data())
@settings(deadline=None, max_examples=30)
def test_restored_bank_continues_bit_by_bit(windows: list[NodeWindow], data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, len(windows)))
    first, second = Bank(), Bank()
    first.apply(windows[:cut])
    second.apply([window(30.0, (3.0, 7.0, 7.0), node="x")])
    second.restore("a", first.encode_state("a"))
    for bank in (first, second):
        bank.apply(windows[cut:])
    assert first.encode_state("a") == second.encode_state("a")
    assert bits(by_node(first.recent_usage(["a"]))[0]) == bits(
        by_node(second.recent_usage(["x", "a"]))[1]
    )


# -- spans


def test_statistics_of_a_full_half_hour() -> None:
    found = recent(every(1.0, 0.0, 1800.0))
    assert found.aggregated[:, :, 0].tolist() == [
        [1650.5, 1650.0, 1770.0, 1785.0, 1797.0],
        [1500.5, 1500.0, 1740.0, 1770.0, 1794.0],
        [900.5, 900.0, 1620.0, 1710.0, 1782.0],
    ]
    for span, seconds in DEVIATION.items():
        stdev = math.sqrt((seconds**2 - 1) / 12)
        assert mean_and_stdev(found, span) == pytest.approx([1800.5 - seconds / 2, stdev])


def test_a_span_is_known_once_its_points_are_half_of_it_apart() -> None:
    assert np.isnan(cpu(recent(every(1.0, 0.0, 150.0)), "5m", "avg"))  # 149 s apart
    found = recent([*every(1.0, 0.0, 150.0), window(180.0, (1.0, 151.0, GIB))])
    assert [cpu(found, "5m", s) for s in AGGREGATIONS] == [76.0, 75.0, 135.0, 143.0, 149.0]
    assert mean_and_stdev(found, "5m")[0] == 76.0
    assert np.isnan(mean_and_stdev(found, "10m")).all()
    assert np.isnan(found.aggregated[1:]).all()
    assert np.isnan(found.deviation[1:]).all()


def test_each_resource_is_judged_by_its_own_points() -> None:
    rows = [(float(o), np.nan if o < 30 else 2.0, GIB) for o in range(1, 181)]
    found = recent([window(180.0, *rows, seconds=180.0)])
    assert found.aggregated[0, 0].tolist() == [2.0, GIB]
    found = recent([window(180.0, *rows[:179], seconds=180.0)])
    assert np.isnan(found.aggregated[0, 0, 0])
    assert found.aggregated[0, 0, 1] == GIB


@pytest.mark.parametrize(
    ("step", "statistics"),
    [
        (5.0, [30.5, 30.0, 54.0, 57.0, 59.0]),
        (0.1, [1505.0, 1500.0, 2700.0, 2850.0, 2970.0]),
    ],
)
def test_each_point_counts_once_and_of_a_second_only_the_last(
    step: float, statistics: list[float]
) -> None:
    assert recent(every(step, 0.0, 300.0)).aggregated[0, :, 0].tolist() == statistics


def test_windows_near_the_epoch_have_no_invented_points() -> None:
    seen = every(1.0, 0.0, 180.0)
    early = [replace(w, start_ms=w.start_ms - START_MS, end_ms=w.end_ms - START_MS) for w in seen]
    assert bits(recent(early)) == bits(recent(seen))
    assert np.isnan(cpu(recent(early), "30m", "avg"))


# -- which points count


def test_late_and_doubled_windows_change_no_bit() -> None:
    windows = every(1.0, 0.0, 300.0)
    others = [window(w.end_ms / 1000 - START_MS / 1000, (7.0, 64.0, GIB)) for w in windows]
    assert bits(recent([*windows, *windows, *others])) == bits(recent(windows))


def test_a_clock_set_back_is_waited_for() -> None:
    windows = every(1.0, 0.0, 300.0)
    again = every(1.0, 200.0, 320.0, cpu=900.0)  # the last of these ends later than all before
    found = recent([*windows, *again])
    assert bits(found) == bits(recent([*windows, again[-1]]))
    assert cpu(found, "5m", "p99") > 900.0


@pytest.mark.parametrize(
    "invalid",
    [
        *(
            [(float(o), v, v) for o in range(1, 181)]
            for v in (np.nan, -1.0, np.inf, -np.inf, 1e300)
        ),
        *(
            [(offset, 64.0, 0.0)]
            for offset in (np.nan, -0.001, -1.0, 180.001, 1.7e308, np.inf, -np.inf)
        ),
    ],
)
def test_invalid_values_and_points_outside_the_window_are_ignored(invalid: list[Point]) -> None:
    rows = [(float(o), float(o), GIB) for o in range(1, 181)]
    found = recent([window(180.0, *rows, *invalid, seconds=180.0)])
    assert bits(found) == bits(recent([window(180.0, *rows, seconds=180.0)]))


def test_points_count_at_any_coverage() -> None:
    poor = [replace(w, coverage=0.1) for w in every(1.0, 0.0, 300.0)]
    assert bits(recent(poor)) == bits(recent(every(1.0, 0.0, 300.0)))


def test_points_of_another_machine_under_the_name_are_forgotten() -> None:
    windows = every(1.0, 0.0, 300.0)
    other = [replace(w, machine_id="m2") for w in every(1.0, 330.0, 510.0, cpu=9.0)]
    assert bits(recent([*windows, *other])) == bits(recent(other))


def test_new_node_in_a_freed_slot_starts_empty() -> None:
    bank = Bank()
    bank.apply(every(1.0, 0.0, 300.0))
    bank.forget("a")
    bank.apply([replace(w, node="b") for w in every(1.0, 300.0, 330.0)])
    assert np.isnan(bank.recent_usage(["b"]).aggregated).all()
    with pytest.raises(KeyError):
        bank.recent_usage(["a"])
    assert len(bank.recent_usage([]).aggregated) == 0


def test_weakness_of_short_floats_0_7_cores_are_700_millicores() -> None:
    rows = [(float(o), 0.7, 3 * 2.0**40 + 1.0) for o in range(1, 301)]
    found = recent([window(300.0, *rows, seconds=300.0)])
    for statistic in AGGREGATIONS[1:]:
        assert int(cpu(found, "5m", statistic) * 1000) == 700
    assert found.aggregated[0, 1:, 1].tolist() == [3 * 2.0**40 + 1.0] * 4


# -- fractions of allocatable


def test_fractions_are_unknown_where_there_is_no_room() -> None:
    usage = np.array([[1.0, GIB], [np.nan, 0.0]])
    parts = fractions(usage, np.array([4.0, 2 * GIB]))
    np.testing.assert_array_equal(parts, [[0.25, 0.5], [np.nan, 0.0]])
    for none in (np.nan, 0.0, -1.0):
        assert np.isnan(fractions(usage, np.array([none, none]))).all()


# -- from the rows of a window

WITH: MemoryCollectPolicy = "usageWithPageCache"
POINTS = {
    "points_offset_seconds": [1.0, 2.0, 3.0],
    "points_cpu_cores": [None, 0.5, -1.0],
    "points_memory_bytes": [1.0, 2.0, 3.0],
}


@pytest.mark.parametrize(
    ("changes", "points"),
    [
        ({}, [[1.0, np.nan, 1.0], [2.0, 0.5, 2.0], [3.0, np.nan, 3.0]]),
        # Models ignore points without a time.
        (
            {"points_offset_seconds": None},
            [[np.nan, np.nan, 1.0], [np.nan, 0.5, 2.0], [np.nan, np.nan, 3.0]],
        ),
        (
            {"points_cpu_cores": None},
            [[1.0, np.nan, 1.0], [2.0, np.nan, 2.0], [3.0, np.nan, 3.0]],
        ),
        (
            {"points_memory_bytes": [1.0, 2.0]},
            [[1.0, np.nan, 1.0], [2.0, 0.5, 2.0], [3.0, np.nan, np.nan]],
        ),
        (dict.fromkeys(POINTS), np.zeros((0, 3))),
    ],
)
def test_points_are_read_from_the_row_of_the_node_where_missing_values_are_unknown(
    changes: dict[str, list[float] | None], points: list[list[float]]
) -> None:
    row = {name: v for name, v in {**NODE_ROW, **POINTS, **changes}.items() if v is not None}
    pod = {"kind": "pod", "id": "a", "points_offset_seconds": [9.0]}
    np.testing.assert_array_equal(training(joined(pod, row)).heads[0].points, points)


def test_points_have_no_memory_where_the_window_reports_another_statistic() -> None:
    """They are without page cache; beside a figure with it they would look like a drop."""
    row = {**NODE_ROW, **POINTS}
    assert training(joined(row), memory_policy=WITH).heads[0].points[:, 2].tolist() == [
        1.0,
        2.0,
        3.0,
    ]
    row["memory_with_page_cache_bytes_avg"] = 20 * GIB
    seen = training(joined(row), memory_policy=WITH).heads[0].points
    assert np.isnan(seen[:, 2]).all()
    assert seen[1, 1] == 0.5
    assert training(joined(row, of=header())).heads[0].points[2, 2] == 3.0
