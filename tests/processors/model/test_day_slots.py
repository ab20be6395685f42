"""The recent past of rows against a dictionary of slots."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.processors.model import day_slots
from pipeline.processors.model.column_store import Columns
from pipeline.processors.model.day_slots import SLOT_MS, SLOTS

ROWS = 6
USAGE = st.sampled_from([np.nan, 0.0, 1e-9, 0.3, 2.0, 7.0, 1e5]) | st.floats(0, 1e6)


def _columns(rows: int = ROWS) -> Columns:
    columns = Columns(day_slots.COLUMNS)
    columns.grow(rows)
    return columns


def _observe(columns: Columns, at: list[int], values: list[float], end_ms: list[int]) -> None:
    both = np.array([values, values], np.float64).T
    day_slots.observe(
        columns["recent"],
        columns["recent_slot"],
        np.array(at, np.int64),
        both,
        np.array(end_ms, np.int64),
    )


def _read(columns: Columns, row: int, slots: int = SLOTS) -> list[float]:
    """The last slots of a row, oldest first, NaN where there is none."""
    order = (columns["recent_slot"][row] - np.arange(slots - 1, -1, -1)) % SLOTS
    return day_slots.CODE_VALUES[0][columns["recent"][row, 0, order]].tolist()


@st.composite
def _steps(draw: st.DrawFn) -> list[tuple[int, list[int], list[float]]]:
    """Milliseconds since the last window, the rows it teaches, their samples."""
    steps = []
    for _ in range(draw(st.integers(1, 20))):
        passed = draw(st.sampled_from([30_000, 30_000, 150_000, SLOT_MS, 7 * SLOT_MS, 10**8]))
        rows = draw(st.lists(st.integers(0, ROWS - 1), unique=True, max_size=ROWS))
        values = draw(st.lists(USAGE, min_size=len(rows), max_size=len(rows)))
        steps.append((passed, rows, values))
    return steps


@given(_steps(), st.integers(0, 400_000))
@example([(SLOT_MS, [0], [1.0]), (30_000, [0], [3.0])], 0)  # the first ends on a boundary
@settings(deadline=None, max_examples=60)
def test_each_slot_keeps_its_highest_sample(
    steps: list[tuple[int, list[int], list[float]]], lag_ms: int
) -> None:
    columns = _columns()
    expected: list[dict[int, float]] = [{} for _ in range(ROWS)]
    newest = [-1] * ROWS
    end_ms = 10 * SLOT_MS
    for passed, rows, values in steps:
        end_ms += passed
        # Rows of one call may be of nodes whose windows end at other times.
        ends = [end_ms + lag_ms * (row % 2) for row in rows]
        _observe(columns, rows, values, ends)
        for row, value, end in zip(rows, values, ends, strict=True):
            newest[row] = slot = (end - 1) // SLOT_MS
            if not np.isnan(value):
                expected[row][slot] = max(value, expected[row].get(slot, 0.0))
    for row in range(ROWS):
        span = range(newest[row] - SLOTS + 1, newest[row] + 1)
        wanted = [expected[row].get(slot, np.nan) for slot in span]
        np.testing.assert_allclose(_read(columns, row), wanted, rtol=0.0012, atol=1e-4)


@given(st.floats(0, 1e6), st.sampled_from([0, 1]))
def test_a_code_never_understates_and_hardly_overstates(value: float, resource: int) -> None:
    (code,) = day_slots.encode(np.array([value]), resource)
    found = day_slots.CODE_VALUES[resource][code]
    lowest = day_slots.LOWEST[resource]
    assert value <= found <= max(value * 1.0012, lowest if value else 0.0)
    assert code <= 2 or day_slots.CODE_VALUES[resource][code - 1] < value


@pytest.mark.parametrize("resource", [0, 1])
def test_code_is_the_lowest_that_does_not_understate(resource: int) -> None:
    """A search tells the same of each value that has a code, and of its neighbours."""
    coded = day_slots.CODE_VALUES[resource][2:]
    for values in (coded, np.nextafter(coded, 0.0), np.nextafter(coded[:-1], np.inf)):
        expected = 2 + np.searchsorted(coded, values)
        np.testing.assert_array_equal(day_slots.encode(values, resource), expected)


def test_no_rows_are_no_work() -> None:
    columns = _columns()
    _observe(columns, [], [], [])
    assert not columns["recent"].any()


def test_a_row_begins_empty_again() -> None:
    columns = _columns()
    _observe(columns, [1, 2], [1.0, 2.0], [1000 * SLOT_MS] * 2)
    columns.clear(np.array([1]))
    assert np.isnan(_read(columns, 1)).all()
    assert _read(columns, 2, 1) == pytest.approx([2.0], rel=0.0012)


def test_bytes_are_those_of_each_row_and_come_back() -> None:
    columns, other = _columns(), _columns(40)
    for number in range(5):
        _observe(columns, [1, 3], [1.0 + number, 2.0], [(1000 + number) * SLOT_MS] * 2)
    packed = columns.pack(np.array([3, 1]))
    assert len(packed["recent"]) == 2 * 2 * SLOTS * 2
    other.write(np.array([30, 10]), other.unpack(packed, 2))
    assert _read(other, 10) == pytest.approx(_read(columns, 1), nan_ok=True)
    assert other.pack(np.array([30, 10])) == packed
