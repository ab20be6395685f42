"""The predictor `autopilot`."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.model.histogram import CPU_LAYOUT, VPA_CPU_LAYOUT
from pipeline.processors.model.model_config import ENTITIES, NODE, VPA, Profile
from tests.processors.predictors.answers import LAWS, answer
from tests.processors.reference import bucket_of
from tests.processors.windows import GIB, Pod, window

# One half-life a window: all weights are powers of two.
HALVING = Profile(half_life_seconds=(120.0, 120.0))


@given(
    st.lists(st.integers(0, 512).map(lambda n: n / 8), min_size=1, max_size=30),
    st.sampled_from([0.001, 0.5, 0.9, 0.95, 1.0]),
)
@LAWS
def test_cpu_is_the_load_weighted_quantile(series: list[float], fraction: float) -> None:
    """Against a list of samples: the bucket up to which lies the share of weight times value."""
    windows = [window(i, usage=(usage, GIB)) for i, usage in enumerate(series)]
    options = {"autopilot": {"cpu": fraction}}
    result = answer(windows, "autopilot", options=options, profile=HALVING)
    starts = CPU_LAYOUT.starts.tolist()
    loads: dict[float, float] = {}
    for age, usage in enumerate(reversed(series)):
        end = starts[min(bucket_of(starts, usage) + 1, len(starts) - 1)]
        loads[end] = loads.get(end, 0.0) + 2.0**-age * end
    running, total = 0.0, sum(loads[end] for end in sorted(loads))
    near = set()
    for end in sorted(loads):
        before, running = running, running + loads[end]
        if before <= fraction * total * (1 + 1e-12) and running >= fraction * total * (1 - 1e-12):
            near.add(end)
    expected = near if any(series) else {0.0}
    assert result.predictors["autopilot"].raw[NODE, 0] in expected


@pytest.mark.parametrize(
    ("seconds", "expected"), [(300, 1.0), (301, 2.0), (7200, 3.0), (86_400, 7.0)]
)
def test_memory_is_the_highest_of_its_window(seconds: int, expected: float) -> None:
    past = {0: 7.0, 300: 3.0, 344: 2.0, 346: 1.0}
    windows = [window(i, usage=(1.0, past.get(i, 0.5) * GIB)) for i in range(347)]
    options = {"autopilot": {"memory_window_seconds": seconds}}
    own = answer(windows, "autopilot", options=options).predictors["autopilot"]
    assert expected * GIB <= own.raw[NODE, 1] <= expected * GIB * 1.0012
    terms = [own.terms["fraction"][NODE, 0], *own.terms["window_seconds"][NODE]]
    np.testing.assert_array_equal(terms, [0.95, np.nan, seconds])


def test_each_class_uses_its_own_buckets() -> None:
    result = answer(
        [window(1, [Pod("a", (2.0, GIB)), Pod("b", (2.0, GIB), "batch")])],
        "autopilot", class_profiles={"batch": VPA},
    )  # fmt: skip
    for pod, layout in enumerate((CPU_LAYOUT, VPA_CPU_LAYOUT)):
        end = layout.ends[layout.digitize(np.array([2.0]))[0]]
        assert result.predictors["autopilot"].pod_raw[pod, 0] == end


def test_an_idle_class_has_peak_zero_and_an_unseen_class_an_unknown_peak() -> None:
    own = answer([window(1)], "autopilot").predictors["autopilot"]
    assert own.raw[ENTITIES.index("prod")].tolist() == [0.0, 0.0]
    assert np.isnan(own.raw[ENTITIES.index("unknown")]).all()
