import bisect
import itertools
import math
from collections.abc import Iterable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.errors import CheckpointError
from pipeline.processors.arrays import FloatArray
from pipeline.processors.model import histogram
from pipeline.processors.model.histogram import CPU_LAYOUT, MEMORY_LAYOUT, Layout
from pipeline.processors.model.sparse_histograms import Histograms
from tests.processors.reference import SlowHistogram

HALF_LIFE_MS = 43_200_000
START_MS = 1_700_000_000_000
LAYOUTS = [CPU_LAYOUT, MEMORY_LAYOUT]
FRACTIONS = (-0.5, 0.0, 0.1, 0.5, 0.9, 0.95, 0.98, 1.0, 1.5)

cores = st.floats(min_value=0, max_value=2000)
weights_above_epsilon = st.integers(1, 1000).map(lambda n: n / 64)


ROW, PROFILE = np.zeros(1, np.int64), np.zeros(1, np.int8)


def _filled(layout: Layout, samples: Iterable[tuple[float, float]]) -> Histograms:
    """A single row that has learned these values and weights."""
    buckets = Histograms([layout])
    buckets.grow(1)
    for value, weight in samples:
        buckets.add(ROW, np.array([value]), np.array([weight]), PROFILE)
    return buckets


def _weights(layout: Layout, samples: Iterable[tuple[float, float]]) -> FloatArray:
    return _filled(layout, samples).dense(ROW)


def test_the_models_layouts_are_koordinators() -> None:
    assert [(layout.num_buckets, layout.epsilon, layout.starts[1]) for layout in LAYOUTS] == [
        (158, 1e-4, 0.025), (205, 1e-4, 5 << 20),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("layout", "first", "ratio"), [(CPU_LAYOUT, 0.025, 1.05), (MEMORY_LAYOUT, 5 << 20, 1.05)]
)
def test_stored_edges_agree_with_the_logarithm_formula(
    layout: Layout, first: float, ratio: float
) -> None:
    """find() looks edges up; away from an edge that is trunc(log_r(v*(r-1)/f + 1)), clamped. On an
    edge the formula's own rounding decides either way, ours always begins the next bucket."""
    rng = np.random.default_rng(7)
    values = np.concatenate(
        [rng.uniform(0, 3 * first, 500), np.exp(rng.uniform(0, 25, 2000)) * first / 100]
    )
    away = np.abs(values[:, None] / np.maximum(layout.starts, 1e-9) - 1).min(axis=1) > 1e-9
    values = np.concatenate([values[away], [0.0, -1.0, 1e300]])
    for value, found in zip(values.tolist(), layout.digitize(values).tolist(), strict=True):
        index = 0
        if value >= first:
            index = math.trunc(math.log(value * (ratio - 1) / first + 1) / math.log(ratio))
        assert found == min(index, layout.num_buckets - 1), value
    assert layout.digitize(layout.starts).tolist() == list(range(layout.num_buckets))


ODD_LAYOUTS = [
    histogram.VPA_CPU_LAYOUT,
    histogram.VPA_MEMORY_LAYOUT,
    histogram.exponential_layout(max_value=10.0, first_bucket_size=1e-5, ratio=1.01, epsilon=1e-4),
    histogram.exponential_layout(max_value=1e9, first_bucket_size=3.0, ratio=40.0, epsilon=1e-4),
]


@given(st.sampled_from(LAYOUTS + ODD_LAYOUTS), st.lists(st.floats(allow_nan=False), max_size=30))
@settings(deadline=None)
def test_a_value_belongs_to_the_last_bucket_that_starts_at_or_below_it(
    layout: Layout, values: list[float]
) -> None:
    edges = np.concatenate([np.nextafter(layout.starts, to) for to in (-np.inf, np.inf)])
    odd = [-0.0, 5e-324, -5e-324, np.inf, -np.inf]
    every = np.concatenate([values, odd, edges, layout.starts])
    starts = layout.starts.tolist()
    expected = [max(bisect.bisect_right(starts, value) - 1, 0) for value in every.tolist()]
    assert layout.digitize(every).tolist() == expected


def test_edges_are_the_geometric_sums() -> None:
    size, edge = Fraction(5 << 20), Fraction(0)
    for start in MEMORY_LAYOUT.starts.tolist():
        assert start == pytest.approx(float(edge), rel=1e-12)
        edge += size
        size *= Fraction(105, 100)


def test_layouts_cannot_be_changed() -> None:
    for edges in (CPU_LAYOUT.starts, CPU_LAYOUT.ends):
        with pytest.raises(ValueError, match="read-only"):
            edges[0] = 1.0


@pytest.mark.parametrize(
    ("key", "bad"),
    [
        ("ratio", 1.0),
        *itertools.product(
            ["max_value", "first_bucket_size", "ratio", "epsilon"], [0.0, -1.0, math.nan, math.inf]
        ),
    ],
)
def test_bad_exponential_layouts_are_refused(key: str, bad: float) -> None:
    good = {"max_value": 10.0, "first_bucket_size": 1.0, "ratio": 2.0, "epsilon": 0.1}
    with pytest.raises(ValueError, match=key):
        histogram.exponential_layout(**(good | {key: bad}))


@given(st.lists(st.tuples(cores, weights_above_epsilon), max_size=25), st.sampled_from(FRACTIONS))
@example([(1024.0, 1.0)], 1.0)
def test_quantiles_are_those_of_the_slow_reference(
    samples: list[tuple[float, float]], fraction: float
) -> None:
    slow = SlowHistogram(CPU_LAYOUT.starts.tolist())
    for value, weight in samples:
        slow.add(value, Fraction(weight))
    found = histogram.quantiles(_weights(CPU_LAYOUT, samples), CPU_LAYOUT, (fraction,))[0, 0]
    expected = slow.quantile(Fraction(fraction))
    if expected is None:
        assert np.isnan(found)
    else:
        # Weights are multiples of 1/64, so sums are exact and no threshold can be missed; only
        # fraction * total is rounded, and then by less than a weight.
        total = sum(weight for _, weight in samples)
        assert found == expected or (fraction * total * 64) % 1 == pytest.approx(0, abs=1e-9)


@given(st.lists(st.tuples(cores, weights_above_epsilon), min_size=1, max_size=30))
def test_quantiles_rise_with_the_fraction(samples: list[tuple[float, float]]) -> None:
    found = histogram.quantiles(_weights(CPU_LAYOUT, samples), CPU_LAYOUT, FRACTIONS)[:, 0]
    assert (np.diff(found) >= 0).all()


# -- decay


@given(st.integers(-(10**14), 10**14), st.integers(1, 10**9))
def test_the_reference_is_the_nearest_multiple_from_year_one(time_ms: int, half: int) -> None:
    reference = histogram.nearest_reference_ms(time_ms, half)
    assert (reference + histogram.YEAR_ONE_MS) % half == 0
    distance = Fraction(time_ms - reference)
    assert -Fraction(half, 2) <= distance < Fraction(half, 2)  # a tie is the later one


def test_the_reference_is_counted_from_year_one_not_from_1970() -> None:
    # 0001-01-01 was a Monday and 1970-01-01 a Thursday, so weeks tell the two apart.
    day = 86_400_000
    reference = histogram.nearest_reference_ms(1_700_000_000_000, 7 * day)
    assert reference % day == 0
    assert (reference // day + 3) % 7 == 0


def test_the_reference_moves_only_beyond_100_half_lives() -> None:
    reference = histogram.shifted_reference_ms(None, START_MS, HALF_LIFE_MS)
    edge = reference + 100 * HALF_LIFE_MS
    assert histogram.shifted_reference_ms(reference, edge, HALF_LIFE_MS) == reference
    moved = histogram.shifted_reference_ms(reference, edge + 1, HALF_LIFE_MS)
    assert moved == edge
    assert histogram.shift_factor(reference, moved, HALF_LIFE_MS) == 2.0**-100
    assert histogram.decay_factor(edge, reference, HALF_LIFE_MS) == 2.0**100
    assert histogram.decay_factor(reference - HALF_LIFE_MS, reference, HALF_LIFE_MS) == 0.5


@given(st.lists(st.tuples(cores, st.integers(0, 40)), min_size=1, max_size=20), st.integers(0, 60))
def test_moving_the_reference_changes_no_quantile(
    samples: list[tuple[float, int]], distance: int
) -> None:
    """Scaling by a power of two is exact, so the answer has the same bits."""
    weights = _weights(CPU_LAYOUT, ((value, 2.0**exponent) for value, exponent in samples))
    before = histogram.quantiles(weights, CPU_LAYOUT, FRACTIONS)
    later = ((value, 2.0 ** (exponent + distance)) for value, exponent in samples)
    moved = _filled(CPU_LAYOUT, later)
    assert moved.scale(ROW, 2.0**-distance, PROFILE).all()
    assert (moved.dense(ROW) == weights).all()
    assert (histogram.quantiles(moved.dense(ROW), CPU_LAYOUT, FRACTIONS) == before).all()


# -- bits


@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 40),
    st.sampled_from(["together", "strided", "transposed", "unaligned"]),
)
def test_a_row_has_the_same_bits_in_any_company_and_memory_order(
    seed: int, rows: int, form: str
) -> None:
    rng = np.random.default_rng(seed)
    plain = rng.exponential(size=(rows, 158)) * (rng.random((rows, 158)) < 0.3)
    plain[plain < 1e-4] = 0.0
    alone = [
        histogram.quantiles(plain[i : i + 1].copy(), CPU_LAYOUT, FRACTIONS) for i in range(rows)
    ]
    if form == "strided":
        wide = np.zeros((rows * 2, 158 * 2))
        wide[::2, ::2] = plain
        given_ = wide[::2, ::2]
    elif form == "transposed":
        given_ = np.asfortranarray(plain)
    elif form == "unaligned":
        raw = np.zeros(plain.nbytes + 1, np.uint8)
        given_ = raw[1:].view(np.float64).reshape(plain.shape)
        given_[:] = plain
    else:
        given_ = plain
    together = histogram.quantiles(given_, CPU_LAYOUT, FRACTIONS)
    assert together.tobytes() == np.concatenate(alone, axis=1).tobytes()


# -- rounded checkpoints


def test_checkpoint_round_trip() -> None:
    weights = _weights(CPU_LAYOUT, [(1.0, 3.0), (2.0, 1.0), (900.0, 2.0)])[0]
    stored = histogram.save_checkpoint(weights)
    assert stored["totalWeight"] == 6.0
    assert sorted(stored["bucketWeights"].values()) == [3333, 6667, 10000]
    loaded = histogram.load_checkpoint(CPU_LAYOUT, stored)
    assert loaded == pytest.approx(weights, rel=1e-3)


@pytest.mark.parametrize(
    ("first", "stored"),
    [
        ((20_000.0, 1.0), {"totalWeight": 20_001.0, "bucketWeights": {"0": 10000, "1": 1}}),
        ((0.0, 0.0), {"totalWeight": 0.0, "bucketWeights": {}}),
    ],
)
def test_half_is_rounded_up_and_empty_buckets_are_left_out(
    first: tuple[float, float], stored: dict[str, object]
) -> None:
    assert histogram.save_checkpoint(np.array([*first, *[0.0] * 156])) == stored


@pytest.mark.parametrize(
    "stored",
    [
        None,
        {},
        {"totalWeight": 1},
        {"totalWeight": "x", "bucketWeights": {}},
        {"totalWeight": 1, "bucketWeights": []},
        {"totalWeight": -1, "bucketWeights": {"0": 1}},
        {"totalWeight": math.inf, "bucketWeights": {"0": 1}},
        {"totalWeight": 1, "bucketWeights": {"158": 1}},
        {"totalWeight": 1, "bucketWeights": {"-1": 1}},
        {"totalWeight": 1, "bucketWeights": {"0": -1}},
        {"totalWeight": 1, "bucketWeights": {"zero": 1}},
    ],
)
def test_bad_checkpoints_are_refused(stored: dict[str, object] | None) -> None:
    with pytest.raises(CheckpointError):
        histogram.load_checkpoint(CPU_LAYOUT, stored)


@pytest.mark.parametrize(
    ("total", "weights", "filled"), [(0, {}, []), (5, {}, []), (2, {"3": 0, "4": 5}, [4])]
)
def test_buckets_without_a_stored_weight_are_empty(
    total: int, weights: dict[str, int], filled: list[int]
) -> None:
    stored = {"totalWeight": total, "bucketWeights": weights}
    assert np.flatnonzero(histogram.load_checkpoint(CPU_LAYOUT, stored)).tolist() == filled
