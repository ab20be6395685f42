"""What a target leads to: the guidance of KEP-61, and what it would be without the last window."""

import numpy as np
import pytest

from pipeline.processors.placement import simulate as simulation
from pipeline.processors.placement.simulate import Load, simulate

BUSY = Load()


@pytest.mark.parametrize("seed", range(5))
def test_ten_below_keeps_nodes_at_what_is_wanted(seed: int) -> None:
    at, below = (simulate(BUSY, target, 50.0, seed) for target in (50.0, 40.0))
    assert at.average > 50
    assert at.share_above > 0.5
    assert below.p95 < 52
    assert below.share_above < 0.1
    assert below.packed_nodes > at.packed_nodes


def test_averages_alone_take_nodes_far_over_their_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """As upstream has it, with an average over a quarter of an hour."""
    before = simulate(BUSY, 40.0, 50.0)
    monkeypatch.setattr(simulation, "busier", lambda average, latest: average)
    alone = simulate(BUSY, 40.0, 50.0)
    assert alone.average > 80 > 50 > before.average


def test_it_is_the_same_with_the_same_seed_and_another_with_another() -> None:
    assert simulate(BUSY, 40.0, 50.0, 7) == simulate(BUSY, 40.0, 50.0, 7)
    assert simulate(BUSY, 40.0, 50.0, 7) != simulate(BUSY, 40.0, 50.0, 8)


def test_steady_pods_end_where_it_is_reckoned() -> None:
    """One node, pods that use what they ask for: all land there, and use just that."""
    load = Load(nodes=1, capacity_millicores=10_000, pods=8, used_share=1.0, deviation=0.0)
    found = simulate(load, 50.0, 50.0)
    assert np.isclose([found.average, found.p95, found.highest], 40.0).all()
    assert found.share_above == 0


def test_pods_that_ask_for_more_than_there_is_are_counted_all_the_same() -> None:
    load = Load(nodes=2, capacity_millicores=1000, pods=5, request_millicores=4000, deviation=0.0)
    assert simulate(load, 50.0, 50.0).highest > 100
