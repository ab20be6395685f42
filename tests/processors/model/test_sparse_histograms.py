"""The slabs against a dense array, bit by bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.processors.model import histogram
from pipeline.processors.model.histogram import CPU_LAYOUT
from pipeline.processors.model.sparse_histograms import Histograms

ROWS = 12
ONE = np.zeros(1000, np.int8)


@st.composite
def _steps(draw: st.DrawFn) -> list[tuple[str, int, np.ndarray]]:
    steps = []
    for _ in range(draw(st.integers(1, 15))):
        what = draw(st.sampled_from(["add", "add", "add", "add", "scale", "clear"]))
        rows = draw(st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=ROWS, unique=True))
        steps.append((what, draw(st.integers(0, 2**32 - 1)), np.array(rows)))
    return steps


@given(_steps(), st.sampled_from([0.3, 2.0, 8.0]))
@settings(deadline=None, max_examples=80)
def test_sparse_buckets_equal_a_dense_array(
    steps: list[tuple[str, int, np.ndarray]], spread: float
) -> None:
    slabs = Histograms([CPU_LAYOUT])
    slabs.grow(ROWS)
    dense = np.zeros((ROWS, CPU_LAYOUT.num_buckets))
    for what, seed, rows in steps:
        rng = np.random.default_rng(seed)
        if what == "add":
            values = rng.lognormal(0, spread, len(rows))
            weights = rng.exponential(size=len(rows)) + 1e-4
            slabs.add(rows, values, weights, ONE[rows])
            dense[rows, CPU_LAYOUT.digitize(values)] += weights
        elif what == "scale":
            factor = 2.0 ** -int(rng.integers(0, 12))
            filled = slabs.scale(rows, factor, ONE[rows])
            part = dense[rows] * factor
            part[part < CPU_LAYOUT.epsilon] = 0.0
            dense[rows] = part
            assert filled.tolist() == part.any(axis=1).tolist()
        else:
            slabs.clear(rows)
            dense[rows] = 0.0
    everything = np.arange(ROWS)
    assert slabs.dense(everything).tobytes() == dense.tobytes()
    for fraction in (0.0, 0.5, 0.95, 1.0):
        found = slabs.ends(
            slabs.quantile_buckets(everything, np.full(ROWS, fraction)), ONE[everything]
        )
        expected = histogram.quantiles(dense, CPU_LAYOUT, (fraction,))[0]
        assert found.tobytes() == expected.tobytes()


def test_narrow_rows_stay_small_and_wide_ones_move() -> None:
    slabs = Histograms([CPU_LAYOUT])
    slabs.grow(1000)
    rows = np.arange(1000)
    slabs.add(rows, np.full(1000, 1.0), np.ones(1000), ONE)
    assert slabs.nbytes < 1000 * 200
    slabs.add(rows, np.full(1000, 1000.0), np.ones(1000), ONE)
    assert (slabs.dense(rows).sum(axis=1) == 2.0).all()
    assert slabs.nbytes > 1000 * CPU_LAYOUT.num_buckets * 8


def test_the_bytes_are_those_of_all_arrays() -> None:
    slabs = Histograms([CPU_LAYOUT])
    slabs.grow(100)
    slabs.add(np.arange(100), np.linspace(0, 900, 100), np.ones(100), ONE[:100])
    slabs.add(np.arange(100), np.full(100, 3.0), np.ones(100), ONE[:100])
    arrays = [a for a in vars(slabs).values() if isinstance(a, np.ndarray) and len(a) == 100]
    arrays.append(slabs.cells.units)
    assert len(arrays) == 4
    assert slabs.nbytes == sum(array.nbytes for array in arrays)


def test_slots_are_used_again() -> None:
    slabs = Histograms([CPU_LAYOUT])
    slabs.grow(500)
    rows = np.arange(500)
    for _ in range(10):
        slabs.add(rows, np.full(500, 1.0), np.ones(500), ONE[:500])
        size = slabs.nbytes
        slabs.clear(rows)
        assert not slabs.dense(rows).any()
    assert slabs.nbytes == size


@pytest.mark.parametrize("rows", [511, 512, 2000])
def test_both_ways_to_a_running_sum_give_the_same_bits(rows: int) -> None:
    weights = np.random.default_rng(3).exponential(size=(rows, 158))
    expected = np.cumsum(weights, axis=1)
    assert histogram.cumulative_weights(weights).T.tobytes() == expected.tobytes()
