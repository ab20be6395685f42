import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.processors.loadaware.usage_thresholds import (
    age_text,
    filter_by_usage,
    is_fresh,
    over_threshold,
    usage_percent,
)

DEFAULTS = {"cpu": 65.0, "memory": 95.0}
STALE = 180.0
NAN = math.nan


def judge(
    cpu: float, memory: float, *, age: float = 10.0, allocatable: float = 96_000.0,
    thresholds: dict[str, float] = DEFAULTS,
) -> tuple[bool, bool]:  # fmt: skip
    verdict = filter_by_usage(
        {"cpu": np.array([cpu]), "memory": np.array([memory])},
        {"cpu": np.array([allocatable]), "memory": np.array([549_755_813_888.0])},
        is_fresh(np.array([age]), STALE),
        thresholds_percent=thresholds,
    )
    return bool(verdict.refused[0]), bool(verdict.known[0])


# Cases of Koordinator's filter without estimates of pods, in millicores and bytes.
@pytest.mark.parametrize(
    ("cpu", "memory", "refused"),
    [
        (60_000, 274_877_906_944, False),  # usage below thresholds
        (70_000, 274_877_906_944, True),  # cpu above default 65
        (30_000, 536_870_912_000, True),  # memory above default 95 (97.7 %)
        (62_630 + 250, 0, True),  # 65.5 percent rounds to 66 and fails
        (62_879, 0, False),  # 65.499 percent rounds to 65 and passes
    ],
)
def test_koordinators_cases_without_estimates(cpu: float, memory: float, refused: bool) -> None:
    assert judge(cpu, memory) == (refused, True)


def test_a_resource_missing_on_the_node_is_skipped() -> None:
    assert judge(90_000, 107_374_182_400, allocatable=NAN) == (False, True)
    assert judge(90_000, 107_374_182_400, allocatable=0.0) == (False, True)
    assert judge(90_000, 540_000_000_000, allocatable=0.0) == (True, True)


def test_a_window_expires_at_180_seconds() -> None:
    assert judge(70_000, 0, age=179.0) == (True, True)
    assert judge(70_000, 0, age=180.0) == (False, False)
    assert judge(70_000, 0, age=NAN) == (False, False)
    assert judge(70_000, 0, age=-179.0) == (True, True)
    assert judge(70_000, 0, age=-180.0) == (False, False)


def test_zero_switches_a_threshold_off() -> None:
    assert judge(96_000, 0, thresholds={"cpu": 0.0, "memory": 95.0}) == (False, True)
    assert judge(96_000, 0, thresholds={"cpu": 0.0, "memory": 0.0}) == (False, False)


@pytest.mark.parametrize("bad", [NAN, math.inf, -1.0])
def test_bad_values_are_unknown(bad: float) -> None:
    assert np.isnan(usage_percent(np.array([bad]), np.array([4.0]))).all()
    assert np.isnan(usage_percent(np.array([1.0]), np.array([bad]))).all()
    assert judge(bad, NAN) == (False, False)


@pytest.mark.parametrize(
    ("age", "text"),
    [(0.0, "0 s ago"), (-0.3, "0 s ago"), (-4.0, "4 s in the future"), (599.4, "599 s ago"),
     (600.0, "10 min ago")],
)  # fmt: skip
def test_ages_read_well(age: float, text: str) -> None:
    assert age_text(age) == text


amounts = st.one_of(
    st.floats(0, 1e12), st.sampled_from([NAN, math.inf, -1.0, 0.0, 4.0]), st.integers(0, 200)
)
nodes = st.tuples(amounts, amounts, amounts, amounts, amounts)


@given(
    st.lists(nodes, max_size=30),
    st.sampled_from([0.0, 1.0, 65.0, 95.0, 100.0, 33.3]),
    st.sampled_from([0.0, 50.0, 95.0]),
)
@example([(1.0, 1e-308, NAN, NAN, 0.0)], 65.0, 95.0)
def test_the_vectorised_filter_equals_a_plain_loop(
    rows: list[tuple[float, ...]], cpu_threshold: float, memory_threshold: float
) -> None:
    thresholds = {"cpu": cpu_threshold, "memory": memory_threshold}

    def unknown(used: float, room: float) -> bool:
        return not (math.isfinite(used) and math.isfinite(room) and used >= 0 and room > 0)

    def plain(row: tuple[float, ...]) -> bool:
        cpu, cpu_room, memory, memory_room, age = row
        if math.isnan(age) or abs(age) >= STALE:
            return False
        for used, room, threshold in (
            (cpu, cpu_room, cpu_threshold),
            (memory, memory_room, memory_threshold),
        ):
            if threshold == 0 or unknown(used, room):
                continue
            if np.floor(used / room * 100 + 0.5) > threshold:
                return True
        return False

    columns = np.array(rows, dtype=float).reshape(-1, 5).T
    verdict = filter_by_usage(
        {"cpu": columns[0], "memory": columns[2]},
        {"cpu": columns[1], "memory": columns[3]},
        is_fresh(columns[4], STALE),
        thresholds_percent=thresholds,
    )
    assert verdict.refused.tolist() == [plain(row) for row in rows]
    assert not (verdict.refused & ~verdict.known).any()
    assert not (verdict.known & ~verdict.fresh).any()


def test_thresholds_and_freshness_have_exact_limits() -> None:
    assert over_threshold(np.array([65.4, 65.5, NAN]), 65.0).tolist() == [False, True, False]
    assert is_fresh(np.array([0.0, 179.9, 180.0, NAN]), STALE).tolist() == [
        True,
        True,
        False,
        False,
    ]
