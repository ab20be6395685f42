"""The ring columns of predicted peaks equal plain dictionaries, within their budget of memory."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.console.peak_history import (
    MOST_PREDICTORS,
    STEP_SECONDS,
    STEPS,
    PeakHistory,
)
from pipeline.topics.resource_amounts import Usage

BEGIN = 1_700_000_100.0
"""The begin of a step."""

windows = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.none() | st.sampled_from([-30, 0, 30, 290, 900, 5000]),
        st.sampled_from([None, 0.5, 2.0, -1.0, math.inf]),
        st.dictionaries(st.sampled_from("pqr"), st.sampled_from([None, 1.0, 3.0, math.nan])),
    ),
    max_size=60,
)


def amount(value: float | None) -> float:
    return math.nan if value is None or not 0.0 <= value < math.inf else value


@given(windows)
def test_steps_are_those_of_plain_dictionaries(
    changes: list[tuple[str, int | None, float | None, dict[str, float | None]]],
) -> None:
    history, ends = PeakHistory(steps=7), dict[str, float]()
    plain: dict[tuple[str, str, int], float] = {}
    for node, wait, used, peaks in changes:
        if wait is None:
            history.drop(node)
            ends.pop(node, None)
            plain = {key: value for key, value in plain.items() if key[0] != node}
            continue
        end = ends.get(node, BEGIN) + wait
        is_newer = node not in ends or wait > 0
        said = {name: Usage(cpu_cores=peak) for name, peak in peaks.items()}
        assert history.put(node, end, Usage(cpu_cores=used), said) == is_newer
        if not is_newer:
            continue
        ends[node], step = end, int(end // STEP_SECONDS)
        key = (node, "usage", step)
        plain[key] = float(np.fmax(plain.get(key, math.nan), amount(used)))
        for name, peak in peaks.items():
            if math.isnan(plain.get((node, name, step), math.nan)):
                plain[node, name, step] = amount(peak)
    assert len(history) == len(ends)
    assert history.get("z") is None
    for node, end in ends.items():
        steps = history.get(node)
        assert steps is not None
        newest = int(end // STEP_SECONDS)
        held = range(newest - 6, newest + 1)
        known = [
            step for (of, _, step), value in plain.items()
            if of == node and step in held and not math.isnan(value)
        ]  # fmt: skip
        expected = range(min(known), newest + 1) if known else range(0)
        assert steps.begin_seconds.tolist() == [step * STEP_SECONDS for step in expected]
        for name, values in {"usage": steps.usage, **steps.peaks}.items():
            shown = [plain.get((node, name, step), math.nan) for step in expected]
            np.testing.assert_array_equal(values[0], shown)
            assert np.isnan(values[1]).all()


def test_a_step_has_the_first_prediction_and_the_highest_usage() -> None:
    history = PeakHistory()
    for i, (used, peak) in enumerate([(1.0, None), (3.0, 5.0), (2.0, 9.0)]):
        history.put("a", BEGIN + 30 * i, Usage(cpu_cores=used), {"p": Usage(cpu_cores=peak)})
    history.put("a", BEGIN + 3 * STEP_SECONDS, Usage(), {"p": Usage(cpu_cores=4.0)})
    steps = history.get("a")
    assert steps is not None
    np.testing.assert_array_equal(steps.usage[0], [3.0, np.nan, np.nan, np.nan])
    np.testing.assert_array_equal(steps.peaks["p"][0], [5.0, np.nan, np.nan, 4.0])
    # A range has every step that has a part in it.
    inside = steps.between(BEGIN + STEP_SECONDS + 1, BEGIN + 2 * STEP_SECONDS)
    assert (inside.begin_seconds - BEGIN).tolist() == [STEP_SECONDS, 2 * STEP_SECONDS]
    assert inside.peaks["p"].shape == (2, 2)


@pytest.mark.parametrize("end", [BEGIN, BEGIN - 1.0, math.nan, math.inf, 1e300])
def test_late_repeated_and_absurd_windows_are_refused(end: float) -> None:
    history = PeakHistory()
    assert history.put("a", BEGIN, Usage(cpu_cores=1.0), {})
    assert not history.put("a", end, Usage(cpu_cores=9.0), {"p": Usage(cpu_cores=9.0)})
    steps = history.get("a")
    assert steps is not None
    assert (steps.usage[0].tolist(), steps.peaks) == ([1.0], {})


def test_predictors_are_bounded_and_those_of_yesterday_make_room() -> None:
    history = PeakHistory()
    names = [f"p{i:02}" for i in range(2 * MOST_PREDICTORS)]
    peaks = {name: Usage(cpu_cores=1.0) for name in ["n" * 1000, *names]}
    history.put("a", BEGIN, Usage(), peaks)
    steps = history.get("a")
    assert steps is not None
    assert [*steps.peaks] == names[:MOST_PREDICTORS]
    size = history.nbytes
    later = BEGIN + STEPS * STEP_SECONDS
    history.put("a", later, Usage(), {"new": Usage(cpu_cores=2.0)})
    steps = history.get("a")
    assert steps is not None
    assert [*steps.peaks] == ["new"]
    assert history.nbytes == size


def test_predictors_of_former_settings_make_room_after_an_hour() -> None:
    history = PeakHistory()
    names = [f"p{i}" for i in range(MOST_PREDICTORS)]
    history.put("a", BEGIN, Usage(), {name: Usage(cpu_cores=1.0) for name in names})
    new = {"new": Usage(cpu_cores=2.0)}
    for minutes in (30, 59, 60, 90):
        history.put("b", BEGIN + 60.0 * minutes, Usage(cpu_cores=1.0), new)
    steps = history.get("b")
    assert steps is not None
    assert np.flatnonzero(steps.peaks["new"][0] == 2.0).tolist() == [6, 12]
    kept = history.get("a")
    assert kept is not None
    assert len(kept.peaks) == MOST_PREDICTORS - 1


def test_rows_of_departed_nodes_are_used_again_and_empty() -> None:
    history = PeakHistory()
    for i in range(1000):
        history.put(f"n{i}", BEGIN, Usage(cpu_cores=1.0), {"p": Usage(cpu_cores=2.0)})
        history.drop(f"n{i}")
    assert len(history) == 0
    size = history.nbytes
    history.put("new", BEGIN + 9000, Usage(memory_bytes=5.0), {})
    steps = history.get("new")
    assert steps is not None
    assert (len(steps.begin_seconds), steps.peaks) == (1, {})
    assert history.nbytes == size


def test_ten_thousand_nodes_keep_the_stated_budget() -> None:
    history = PeakHistory()
    peaks = {"percentile": Usage(cpu_cores=1.0), "nsigma-v1": Usage(cpu_cores=2.0)}
    for i in range(10_000):
        history.put(f"node-{i}", BEGIN, Usage(cpu_cores=1.0), peaks)
    assert history.nbytes / 10_000 == pytest.approx(3 * 2304, rel=0.03)
    assert history.nbytes <= 72e6
    fresh = PeakHistory()
    fresh.adopt(history)
    assert (len(fresh), len(history)) == (10_000, 0)
    assert history.nbytes < 10_000
