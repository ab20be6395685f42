import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.leastused import extender_score, least_used

GIB512 = 549_755_813_888.0


def score(cpu: float, memory: float, weights: dict[str, int] | None = None) -> int:
    """Of a node with 96 cores and 512 GiB."""
    used = {"cpu": np.array([cpu]), "memory": np.array([memory])}
    room = {"cpu": np.array([96.0]), "memory": np.array([GIB512])}
    return int(least_used(used, room, weights or {"cpu": 1, "memory": 1})[0])


# Koordinator's cases; used is the node's usage plus the estimate of the incoming pod (85 % of 16
# cores, 70 % of 32 GiB), which is all the same to this function.
POD_CPU, POD_MEMORY = 13.6, round(34_359_738_368 * 0.7)


@pytest.mark.parametrize(
    ("cpu", "memory", "weights", "expected"),
    [
        (0.0, 0.0, None, 90),  # empty node
        (32.0, 10_737_418_240.0, None, 72),  # loaded node
        (32.0, 10_737_418_240.0, {"cpu": 3, "memory": 1}, 62),  # weights 3 to 1
        (48.0, 107_374_182_400.0, None, 55),  # the longest p95
        (32.0 + 13.6, 10_737_418_240.0 + POD_MEMORY, None, 63),  # just assigned pod is added
    ],
)
def test_koordinators_cases(
    cpu: float, memory: float, weights: dict[str, int] | None, expected: int
) -> None:
    assert score(cpu + POD_CPU, memory + POD_MEMORY, weights) == expected


def test_shares_are_exact_where_floats_are_not() -> None:
    # (4 - 2.8) * 100 / 4 is 30.000000000000004 in floats, (1 - 0.9) * 100 is 9.999999999999998.
    for tenths in range(11):
        used = {"cpu": np.array([tenths / 10])}
        assert least_used(used, {"cpu": np.array([1.0])}, {"cpu": 1})[0] == 100 - tenths * 10


@pytest.mark.parametrize(
    ("used", "room"),
    [(math.nan, 4.0), (1.0, math.nan), (1.0, 0.0), (-1.0, 4.0), (1.0, -4.0), (math.inf, 4.0),
     (1.0, math.inf), (5.0, 4.0), (1e300, 1e301), (1.0, 1e305), (0.0, 0.0)],
)  # fmt: skip
def test_what_is_unknown_full_or_absurd_scores_nothing(used: float, room: float) -> None:
    assert least_used({"cpu": np.array([used])}, {"cpu": np.array([room])}, {"cpu": 1})[0] == 0


def test_an_unknown_resource_counts_zero_beside_a_known_one() -> None:
    assert score(math.nan, 0.0) == 50


def test_weights_must_be_some() -> None:
    for weights in ({"cpu": 0}, {"cpu": -1, "memory": 2}):
        with pytest.raises(ValueError, match="weights"):
            least_used({"cpu": np.zeros(1), "memory": np.zeros(1)}, {}, weights)


def test_step_down_to_ten() -> None:
    assert extender_score(np.array([0, 9, 10, 72, 99, 100])).tolist() == [0, 0, 1, 7, 9, 10]


def test_without_weights_resources_count_alike() -> None:
    used = {"cpu": np.array([0.0, 4.0]), "memory": np.array([8.0, 4.0])}
    room = {"cpu": np.array([4.0, 4.0]), "memory": np.array([8.0, 8.0])}
    assert least_used(used, room).tolist() == [50, 25]


whole = st.integers(0, 2**50)


@given(st.lists(st.tuples(whole, whole, whole, whole), min_size=1, max_size=20))
def test_it_equals_whole_number_arithmetic(rows: list[tuple[int, int, int, int]]) -> None:
    def unused(used: int, room: int) -> int:
        return 0 if room == 0 or used > room else (room - used) * 100 // room

    columns = np.array(rows, dtype=float).T
    scores = least_used(
        {"a": columns[0], "b": columns[2]}, {"a": columns[1], "b": columns[3]}, {"a": 1, "b": 1}
    )
    assert scores.tolist() == [(unused(a, b) + unused(c, d)) // 2 for a, b, c, d in rows]
    assert ((scores >= 0) & (scores <= 100)).all()
