"""Targets are asked in the order of their heat, and equal ones in the order of their names."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.descheduling.bookings import (
    SAMPLING_STEP,
    SORTED_TARGETS,
    Bookings,
    TargetLimits,
    coolest_first,
)
from pipeline.processors.descheduling.cluster_columns import ClusterNodes, ClusterPods
from pipeline.processors.descheduling.landing import Arrival, Landing
from tests.vectors.strategies import balance_world


def in_full_order(heat: Sequence[float]) -> list[int]:
    """All positions with a heat of at most 1 in order; those after the first by position alone."""
    fits = [place for place, value in enumerate(heat) if value <= 1.0]
    coolest = sorted(fits, key=lambda place: (heat[place], place))[:SORTED_TARGETS]
    return coolest + sorted({*fits} - {*coolest})


@st.composite
def heats(draw: st.DrawFn) -> FloatArray:
    """Heat of few or many targets: all different, in a few steps with many equal ones, almost all
    equal, in ascending order, or a pattern that the sample sees a part of."""
    chance = np.random.default_rng(draw(st.integers(0, 2**32)))
    count = draw(st.integers(0, 40) | st.integers(200, 5000))
    heat = chance.uniform(0.0, draw(st.sampled_from([0.9, 1.0, 1.3, 20.0])), count)
    match draw(st.integers(0, 4)):
        case 1:
            heat = np.round(heat, 1)
        case 2:
            heat = np.maximum(heat, 0.8)
        case 3:
            heat = np.sort(heat)
        case 4:
            heat[:: draw(st.sampled_from([2, 8, 16]))] *= 0.01
    for unknown in (np.nan, np.inf):
        heat[chance.random(count) < draw(st.sampled_from([0.0, 0.1, 0.9]))] = unknown
    return heat


@settings(max_examples=300, deadline=None)
@given(heat=heats())
def test_the_order_is_that_of_a_full_sort(heat: FloatArray) -> None:
    before = heat.copy()
    assert coolest_first(heat).tolist() == in_full_order(heat.tolist())
    assert np.array_equal(heat, before, equal_nan=True)


def test_targets_beside_an_unlike_sample_are_found() -> None:
    heat = np.linspace(0.5, 0.9, 2000)
    heat[::SAMPLING_STEP] = np.linspace(0.1, 0.2, len(heat[::SAMPLING_STEP]))
    assert coolest_first(heat).tolist() == in_full_order(heat.tolist())


class _Recording:
    """Lands each pod on the first target; `asked` are the targets of the last landing."""

    def land(self, pod: int, targets: IntArray, arrivals: Sequence[Arrival]) -> Landing:
        self.asked = targets.tolist()
        return Landing(self.asked[0])


def cluster(chance: np.random.Generator, count: int) -> tuple[ClusterNodes, ClusterPods]:
    """Nodes whose names are in another order than their places, and whose usage is often equal.
    The pods are on the first."""
    room = {"cpu": 8000, "memory": 32_000, "pods": 200}
    names = [f"n{place:04}" for place in chance.permutation(count)]
    nodes: list[dict[str, Any]] = [{"name": name, "allocatable": room} for name in names]
    pods = [
        {
            "name": f"{node}-{number}", "namespace": "d", "node": name,
            "requests": {"cpu": 1, "memory": 1}, "k8s_qos": "Burstable",
            "usage": {
                "cpu": int(chance.integers(1, 5)) * 400, "memory": int(chance.integers(0, 3)) * 3000
            },
            "priority_class": "koord-prod",
        }
        for node, name in enumerate(names)
        for number in range(20 if node == 0 else int(chance.integers(0, 4)))
    ]  # fmt: skip
    config = {"low_thresholds": {"cpu": 45}, "high_thresholds": {"cpu": 70}}
    _, columns, placed = balance_world(
        {"kind": "balance", "config": config, "nodes": nodes, "pods": pods}
    )
    return columns, placed


@pytest.mark.parametrize("seed", range(6))
def test_equal_targets_are_asked_in_the_order_of_names(seed: int) -> None:
    chance = np.random.default_rng(seed)
    nodes, pods = cluster(chance, int(chance.choice([40, 700])))
    watched = [nodes.resources.index(name) for name in ("cpu", "memory")]
    high = 0.7 * nodes.capacity[:, watched]
    landing, limits = _Recording(), TargetLimits(high, high, np.zeros(2, np.bool_))
    bookings = Bookings(nodes, pods, landing, watched, limits)
    targets = chance.permutation(np.arange(1, len(nodes)))
    booked: list[tuple[int, Landing]] = []
    for pod in pods.on(0).tolist():
        usage, used = bookings.usage[targets], pods.usage[pod, watched]
        heat = np.where(used > 0, (usage + used) / high[targets], 0.0).max(axis=1)
        by_name = np.argsort(nodes.by_name[targets])
        expected = targets[by_name[in_full_order(heat[by_name].tolist())]].tolist()
        answer = bookings.land(pod, targets)
        assert landing.asked == expected
        bookings.book(pod, answer)
        booked.append((pod, answer))
        if len(booked) == 3:
            bookings.unbook(booked[1:])
            del booked[1:]
    assert len({answer.node for _, answer in booked}) > 1
