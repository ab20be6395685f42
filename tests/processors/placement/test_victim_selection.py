"""Victims are the smallest set that makes room, the cheapest first."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.placement.victim_selection import (
    AT_MOST,
    Cost,
    cost,
    eviction_order,
    fewest_victims,
    shares,
)

pods = st.lists(
    st.tuples(
        st.sampled_from(["free", "batch", "mid"]),
        st.integers(-10, 9000),
        st.floats(0.0, 1.0, allow_nan=False),
    ),
    max_size=9,
)


@given(pods, st.floats(0.0, 4.0), st.integers(0, 9))
def test_victims_are_enough_and_each_is_needed(
    result: list[tuple[str, int, float]], needed: float, fixed: int
) -> None:
    """Also where something else than the sum has to be gone, as one pod that is in the way."""
    order = eviction_order(*map(list, zip(*result, strict=True))) if result else []

    def fits(removed: Sequence[int]) -> bool:
        enough = sum(result[position][2] for position in sorted(removed)) >= needed
        return enough and (fixed >= len(result) or fixed in removed)

    removed = fewest_victims(order, fits)
    if removed is None:
        assert not fits(order) or len(result) > AT_MOST
        return
    assert fits(removed)
    assert all(not fits([other for other in removed if other != victim]) for victim in removed)


@given(pods, st.floats(0.0, 4.0))
def test_no_higher_class_leaves_than_necessary(
    result: list[tuple[str, int, float]], needed: float
) -> None:
    order = eviction_order(*map(list, zip(*result, strict=True))) if result else []

    def fits(removed: Sequence[int]) -> bool:
        return sum(result[position][2] for position in sorted(removed)) >= needed

    removed = fewest_victims(order, fits)
    if removed is None:
        return
    dearest = cost(
        [result[position][0] for position in removed], [result[position][1] for position in removed]
    ).rank
    ways = (c for size in range(len(result) + 1) for c in combinations(range(len(result)), size))
    least = min(
        cost([result[position][0] for position in way], [0] * len(way)).rank
        for way in ways
        if fits(way)
    )
    assert dearest == least


def test_at_most_ten_pods_leave_for_one() -> None:
    assert fewest_victims(range(AT_MOST), lambda removed: len(removed) == AT_MOST) == [
        *range(AT_MOST)
    ]
    assert fewest_victims(range(AT_MOST + 1), lambda removed: len(removed) == AT_MOST + 1) is None
    assert fewest_victims([], lambda removed: True) == []
    assert fewest_victims([], lambda removed: False) is None


def test_a_lower_class_is_always_cheaper() -> None:
    assert cost(["batch"] * 9, [5999] * 9) < cost(["mid"], [7000]) < cost(["mid"], [7001])
    assert cost(["mid"], [7000]) < cost(["mid", "mid"], [7000, 7000])
    assert cost([], []) == Cost(0, 0, 0)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2**40)), min_size=1, max_size=8),
    st.lists(st.floats(0, 1e12, allow_subnormal=False), min_size=3, max_size=3),
)
def test_shares_of_a_group_sum_to_its_usage(pods: list[tuple[int, int]], used: list[float]) -> None:
    groups = np.array([group for group, _ in pods])
    estimates = np.array([[amount, amount] for _, amount in pods])
    result = shares(groups, np.array([[amount, np.nan] for amount in used]), estimates)
    for group in set(groups.tolist()):
        np.testing.assert_allclose(result[groups == group, 0].sum(), used[group], rtol=1e-9)
    assert (result[:, 1] == 0).all()
    assert (result >= 0).all()


def test_pods_without_estimates_share_equally() -> None:
    alike = np.zeros(3, np.int64)
    result = shares(alike, np.array([[9.0, -1.0]]), np.zeros((3, 2), np.int64))
    assert result.tolist() == [[3.0, 0.0]] * 3
    assert shares(alike[:0], np.array([[9.0, 1.0]]), np.zeros((0, 2), np.int64)).shape == (0, 2)
