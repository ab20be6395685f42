"""The ring buffers of the usage history equal plain lists."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InvalidRecordError
from pipeline.processors.console.peak_history import MOST_PREDICTORS
from pipeline.table import Table
from pipeline.table.apply_records import apply_point
from pipeline.table.limits import POINTS
from pipeline.table.usage_history import History
from pipeline.times import format_time
from pipeline.topics.codec import encode_json
from pipeline.topics.registry import NODE_STATE
from pipeline.topics.resource_amounts import Usage
from pipeline.topics.result_header import position_headers
from tests.table.records import NOW, node_state

steps = st.lists(
    st.tuples(st.sampled_from("abc"), st.none() | st.integers(-1, 5)), max_size=3 * POINTS
)


@given(steps, st.integers(1, 3))
def test_the_history_holds_the_last_windows_in_order(
    changes: list[tuple[str, int | None]], scale: int
) -> None:
    history, plain = History(), dict[str, list[int]]()
    for node, step in changes:
        if step is None:
            history.drop(node)
            plain.pop(node, None)
            continue
        points = plain.setdefault(node, [])
        end = (points[-1] if points else 1000) + step * scale
        assert history.put(node, end, Usage(cpu_cores=end / 8)) == (not points or step > 0)
        if not points or step > 0:
            points.append(end)
    assert len(history) == len(plain)
    for node, points in plain.items():
        series = history.get(node)
        assert series is not None
        assert series.end_seconds.tolist() == points[-POINTS:]
        assert series.cpu_cores.tolist() == [end / 8 for end in points[-POINTS:]]
        assert np.isnan(series.memory_bytes).all()
    assert history.get("z") is None


def test_the_length_of_the_history_is_chosen_and_survives_a_reread() -> None:
    table = Table(node_windows=3, pod_windows=2)
    fresh = table.emptied()
    for end in range(5):
        fresh.history.put("a", 1000.0 + end, Usage(cpu_cores=1.0))
    table.adopt(fresh)
    series = table.history.get("a")
    assert series is not None
    assert series.end_seconds.tolist() == [1002.0, 1003.0, 1004.0]
    again = table.emptied()
    assert (again.history.windows, again.pod_history.windows, len(again.history)) == (3, 2, 0)


def test_a_full_ring_overwrites_its_oldest_window() -> None:
    history = History()
    for end in range(3 * POINTS + 7):
        assert history.put("a", end, Usage(cpu_cores=end, memory_bytes=2.0 * end))
    series = history.get("a")
    assert series is not None
    assert series.end_seconds.tolist() == list(range(2 * POINTS + 7, 3 * POINTS + 7))
    assert series.between(360, 1e9)._asdict()["cpu_cores"].tolist()[-1] == 3 * POINTS + 6
    assert series.between(300, 302).memory_bytes.tolist() == [600.0, 602.0, 604.0]


def test_rows_grow_and_are_reused() -> None:
    history = History()
    for node in range(300):
        history.put(str(node), 1.0, Usage(cpu_cores=node))
    for node in range(0, 300, 2):
        history.drop(str(node))
    for node in range(300, 400):
        history.put(str(node), 2.0, Usage(cpu_cores=node))
    for node in [*range(1, 300, 2), *range(300, 400)]:
        series = history.get(str(node))
        assert series is not None
        assert series.cpu_cores.tolist() == [float(node)]
    other = History()
    other.adopt(history)
    assert (len(other), len(history)) == (250, 0)
    assert history.put("1", 1.0, Usage())


def test_a_tombstone_before_the_newest_window_is_ignored() -> None:
    """A worker that was paused withdraws what it knew of the node back then."""
    table, state = Table(), encode_json(node_state("a", offset=7))
    assert apply_point(table, NODE_STATE, b"a", state)
    assert not apply_point(table, NODE_STATE, b"a", None, position_headers((1, 6)))
    assert table.history.get("a") is not None
    assert apply_point(table, NODE_STATE, b"a", None, position_headers((1, 7)))
    assert table.history.get("a") is None


def test_an_impossible_amount_is_unknown() -> None:
    history = History()
    usages = (None, -1.0, float("inf"), float("nan"), 0.0)
    for end, cpu in enumerate(usages):
        history.put("a", end, Usage(cpu_cores=cpu))
    series = history.get("a")
    assert series is not None
    assert np.isnan(series.cpu_cores).tolist() == [True] * 4 + [False]


def test_a_node_state_adds_a_point_and_its_tombstone_removes_the_series() -> None:
    table, state = Table(), encode_json(node_state("a", cpu=2.5, age=10.0))
    assert apply_point(table, NODE_STATE, b"a", state)
    assert not apply_point(table, NODE_STATE, b"a", state)
    series = table.history.get("a")
    assert series is not None
    assert [values.tolist() for values in series] == [[NOW - 10], [2.5], [4 * 2.0**30]]
    assert len(table) == 0
    other = Table()
    other.adopt(table)
    assert other.history.get("a") is not None
    assert apply_point(other, NODE_STATE, b"a", None)
    assert other.history.get("a") is None
    late = state.replace(format_time(NOW - 10).encode(), b"yesterday")
    with pytest.raises(InvalidRecordError, match="as_of is not readable"):
        apply_point(other, NODE_STATE, b"a", late)
    assert len(other.history) == 0


def test_node_states_bring_their_predicted_peaks_and_tombstones_take_them() -> None:
    table = Table()
    states = [
        node_state("a", age=age, offset=offset, peaks={"p": Usage(cpu_cores=peak)})
        for offset, (age, peak) in enumerate([(600.0, 1.5), (10.0, 2.5), (10.0, 9.0)])
    ]
    applied = [apply_point(table, NODE_STATE, b"a", encode_json(state)) for state in states]
    assert applied == [True, True, False]
    steps = table.history.peaks.get("a")
    assert steps is not None
    assert steps.peaks["p"][0].tolist() == pytest.approx([1.5, np.nan, 2.5], nan_ok=True)
    fresh = table.emptied()
    assert fresh.history.peaks.get("a") is None
    assert apply_point(table, NODE_STATE, b"a", None, position_headers((1, 9)))
    assert table.history.peaks.get("a") is None


def test_a_state_from_the_future_keeps_no_later_one_out() -> None:
    table = Table()
    ahead = encode_json(node_state("a", age=-7200.0))
    with pytest.raises(InvalidRecordError, match="in the future of this process's clock"):
        apply_point(table, NODE_STATE, b"a", ahead, now=lambda: NOW)
    usual = encode_json(node_state("a", age=-1800.0, offset=1))
    assert apply_point(table, NODE_STATE, b"a", usual, now=lambda: NOW)


def test_of_too_many_predictors_the_deciding_one_has_a_history() -> None:
    table, peaks = Table(), {f"p{i:02}": Usage(cpu_cores=1.0 + i) for i in range(13)}
    state = encode_json(node_state("a", predictor="p12", peaks=peaks))
    assert apply_point(table, NODE_STATE, b"a", state)
    steps = table.history.peaks.get("a")
    assert steps is not None
    assert (len(steps.peaks), steps.peaks["p12"][0].tolist()) == (MOST_PREDICTORS, [13.0])
