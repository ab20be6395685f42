"""Usage as percent, freshness and ages in words; thresholds by the cases of Koordinator."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.loadaware.filter_score import over_thresholds
from pipeline.processors.loadaware.usage_readings import age_text, is_fresh, usage_percent
from pipeline.topics.resource_amounts import Usage

NAN = math.nan


def is_over(usage: Usage, allocatable: Usage, cpu: int = 65, memory: int = 95) -> bool:
    used, room = (np.array([[each.cpu_cores, each.memory_bytes]], float) for each in
                  (usage, allocatable))  # fmt: skip
    return bool(over_thresholds(usage_percent(used, room), np.array([cpu, memory])).any())


@pytest.mark.parametrize(
    ("cpu", "memory", "cores", "over"),
    [
        (60_000, 274_877_906_944, 96.0, False),  # usage below thresholds
        (70_000, 274_877_906_944, 96.0, True),  # cpu above default 65
        (30_000, 536_870_912_000, 96.0, True),  # memory above default 95 (97.7%)
        (62_630 + 250, 0, 96.0, True),  # 65.5 percent rounds to 66 and fails
        (62_879, 0, 96.0, False),  # 65.499 percent rounds to 65 and passes
        (90_000, 107_374_182_400, None, False),  # a resource that the node lacks is skipped
        (90_000, 107_374_182_400, 0.0, False),
        (90_000, 540_000_000_000, 0.0, True),
    ],
)
def test_koordinators_cases_without_estimates(
    cpu: float, memory: float, cores: float | None, over: bool
) -> None:
    allocatable = Usage(cpu_cores=cores, memory_bytes=549_755_813_888.0)
    assert is_over(Usage(cpu_cores=cpu / 1000, memory_bytes=memory), allocatable) is over


AMOUNTS = st.none() | st.floats(1e-9, 1e12) | st.sampled_from([0.0, 4.0]) | st.integers(0, 200)
PERCENTS = st.sampled_from([0, 1, 65, 95, 100])


@given(AMOUNTS, AMOUNTS, AMOUNTS, AMOUNTS, PERCENTS, PERCENTS)
def test_usage_is_over_where_a_rounded_percentage_exceeds_its_threshold(
    cpu: float | None, cores: float | None, memory: float | None, size: float | None,
    cpu_threshold: int, memory_threshold: int,
) -> None:  # fmt: skip
    expected = any(
        used is not None and room and threshold and math.floor(used / room * 100 + 0.5) > threshold
        for used, room, threshold in (
            (cpu, cores, cpu_threshold), (memory, size, memory_threshold)
        )
    )  # fmt: skip
    usage, allocatable = (
        Usage(cpu_cores=c, memory_bytes=m) for c, m in ((cpu, memory), (cores, size))
    )
    assert is_over(usage, allocatable, cpu=cpu_threshold, memory=memory_threshold) == expected


@pytest.mark.parametrize("bad", [NAN, math.inf, -1.0])
def test_bad_values_are_unknown(bad: float) -> None:
    assert np.isnan(usage_percent(np.array([bad]), np.array([4.0]))).all()
    assert np.isnan(usage_percent(np.array([1.0]), np.array([bad]))).all()


def test_a_window_expires_after_180_seconds_in_either_direction() -> None:
    ages = np.array([0.0, 179.9, 180.0, NAN, -179.0, -180.0])
    assert is_fresh(ages, 180.0).tolist() == [True, True, False, False, True, False]


@pytest.mark.parametrize(
    ("age", "text"),
    [(0.0, "0 s ago"), (-0.3, "0 s ago"), (-4.0, "4 s in the future"), (599.4, "599 s ago"),
     (600.0, "10 min ago"), (NAN, "never")],
)  # fmt: skip
def test_ages_are_written_in_words(age: float, text: str) -> None:
    assert age_text(age) == text
