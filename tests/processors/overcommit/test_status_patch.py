"""What is written, and when, against plain oracles in whole numbers; writing twice is not due."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.processors.overcommit.status_patch import (
    ABSENT,
    EXTENDED_RESOURCES,
    UNREADABLE,
    amounts_to_write,
    is_due,
    needs_view,
    normalize_cpu,
    read_amounts,
    status_patch,
)
from pipeline.times import format_time
from pipeline.topics.node_resources import NodeResourcesRecord
from pipeline.topics.resource_amounts import Resources
from tests.processors.overcommit.fleets import AS_OF, resources_record

AMOUNT = st.integers(0, 2**53)
THERE = st.just(ABSENT) | AMOUNT
# Of a threshold and of a ratio the digits count, of which users write a few.
THRESHOLD = st.integers(1, 10**9).map(lambda millionths: millionths / 10**6)
RATIO = st.integers(100, 500).map(lambda hundredths: hundredths / 100)


def resources(cpu: int, after: float = 0.0, **values: Any) -> NodeResourcesRecord:
    amount = Resources(cpu_millicores=cpu, memory_bytes=1)
    amounts = dict.fromkeys(("mid", "mid_lower_bound", "batch"), amount)
    return resources_record(**({"as_of": format_time(AS_OF + after)} | amounts | values))


def due(old: list[int], new: list[int], threshold: float, age: float, longest: float) -> bool:
    columns = (np.array([one], float) for one in (threshold, age, longest))
    (found,) = is_due(np.array([old], np.int64), np.array([new], np.int64), *columns).tolist()
    return bool(found)


def oracle(old: list[int], new: list[int], threshold: float, age: float, longest: float) -> bool:
    if math.isnan(age) or age > longest:
        return True
    for before, after in zip(old, new, strict=True):
        if before == ABSENT or after == ABSENT:
            if before != after:
                return True
        elif abs(after - before) > before * Fraction(repr(threshold)):
            return True
    return False


@given(
    st.lists(st.tuples(THERE, THERE), min_size=1, max_size=4),
    THRESHOLD,
    st.sampled_from([0.0, 299.9, 300.0, 300.1, math.inf, math.nan, -3.0]),
)
def test_write_is_due_as_by_the_oracle(
    pairs: list[tuple[int, int]], threshold: float, age: float
) -> None:
    old, new = [a for a, _ in pairs], [b for _, b in pairs]
    assert due(old, new, threshold, age, 300) is oracle(old, new, threshold, age, 300)


@given(st.integers(1, 2**43), st.sampled_from(["0.1", "0.29", "0.57", "0.000001", "1", "2.3"]))
def test_exactly_at_the_threshold_is_no_difference(times: int, threshold: str) -> None:
    part = Fraction(threshold)
    old, step = part.denominator * times, part.numerator * times
    for sign in (1, -1) if step <= old else (1,):
        assert not due([old], [old + sign * step], float(threshold), 0, 300)
        if step < old:
            assert due([old], [old + sign * (step + 1)], float(threshold), 0, 300)


def test_each_node_is_judged_by_its_own_limits() -> None:
    old, new = np.full((3, 1), 100), np.full((3, 1), 120)
    limits = np.array([0.1, 0.2, 0.1]), np.array([0.0, 0.0, 9.0]), np.array([5.0, 5.0, 9.0])
    assert is_due(old, new, *limits).tolist() == [True, False, True]
    assert is_due(old, old, *limits).tolist() == [False, False, False]
    assert is_due(old[:0], new[:0], *(of[:0] for of in limits)).tolist() == []


@pytest.mark.parametrize(
    ("old", "new", "threshold", "is_due"),
    [
        (0, 1, 1000.0, True),
        (0, 0, 0.1, False),
        (UNREADABLE, ABSENT, 0.1, True),
        (UNREADABLE, 5, 0.1, True),
        (100, 101, math.nan, True),
        (100, 100, math.nan, False),
        (100, 2**53, math.inf, True),
        (100, 99, -1.0, True),
    ],
)
def test_invalid_limits_have_a_defined_effect(
    old: int, new: int, threshold: float, is_due: bool
) -> None:
    assert due([old], [new], threshold, 0, 300) is is_due


@given(st.integers(0, 10**9), AMOUNT, RATIO)
@example(25_000, 0, 1.2)
@example(1, 0, 1.15)
def test_cpu_of_batch_is_normalized(cpu: int, memory: int, ratio: float) -> None:
    found = normalize_cpu(np.array([[cpu, memory]]), np.array([ratio])).tolist()
    cut = Fraction(math.floor(cpu * 1000 * Fraction(repr(ratio))), 1000)
    assert found == [[math.ceil(cut), memory]]


@pytest.mark.parametrize("ratio", [math.nan, 0.0, -2.0, 0.5, 1.0, 5.01, 1e300, math.inf])
def test_invalid_ratio_changes_nothing(ratio: float) -> None:
    assert normalize_cpu(np.array([[100, 7]]), np.array([ratio])).tolist() == [[100, 7]]


PAIR = st.tuples(st.integers(0, 10**6), st.integers(0, 2**50))
NOTHING = (ABSENT, ABSENT)


class Row:
    """Of one node all that is written, and by which."""

    def __init__(self, of: tuple[Any, ...]) -> None:
        self.batch, self.mid, self.ratio, self.taken = of

    @property
    def expected(self) -> list[int]:
        if self.batch == NOTHING:
            return [*NOTHING, *self.mid]
        cpu = math.ceil(self.batch[0] * Fraction(repr(self.ratio)))
        batch = [max(a - t, 0) for a, t in zip((cpu, self.batch[1]), self.taken, strict=True)]
        return [*batch, *self.mid]


OFFER = PAIR | st.just(NOTHING)
ROW = st.tuples(OFFER, OFFER, RATIO, PAIR).map(Row)


@given(st.lists(ROW, max_size=4))
def test_amounts_of_many_nodes_equal_those_of_each(rows: list[Row]) -> None:
    def pairs(name: str) -> Any:
        return np.array([getattr(row, name) for row in rows], np.int64).reshape(len(rows), 2)

    ratios = np.array([row.ratio for row in rows], float)
    found = amounts_to_write(pairs("batch"), pairs("mid"), ratios, pairs("taken"))
    assert found.amounts.tolist() == [row.expected for row in rows]
    for row, origin in zip(rows, found.origin.tolist(), strict=True):
        cpu = math.ceil(row.batch[0] * Fraction(repr(row.ratio)))
        assert origin == ([0, 0] if row.batch == NOTHING else [cpu, row.batch[1]])


@given(st.lists(THERE, min_size=4, max_size=4))
def test_written_amounts_are_read_back_and_not_due(amounts: list[int]) -> None:
    status = status_patch(amounts)["status"]
    assert status["capacity"] == status["allocatable"]
    assert set(status["capacity"]) == {*EXTENDED_RESOURCES}
    merged = {name: value for name, value in status["allocatable"].items() if value is not None}
    assert read_amounts(merged) == amounts
    assert not due(read_amounts(merged), amounts, 0.1, 0, 300)


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("5", 5),
        (5, 5),
        ("50k", 50_000),
        ("1Gi", 2**30),
        ("1500m", 2),
        ("-1", UNREADABLE),
        ("many", UNREADABLE),
        ("", UNREADABLE),
        (None, UNREADABLE),
        ([], UNREADABLE),
        ("1e99", 2**63 - 1),
    ],
)
def test_amounts_of_a_status_are_read_as_quantities(text: Any, amount: int) -> None:
    assert read_amounts({EXTENDED_RESOURCES[0]: text}) == [amount, ABSENT, ABSENT, ABSENT]


def test_a_patch_has_the_given_resource_names() -> None:
    said = {"example.com/a": "1", "example.com/b": None}
    patch = status_patch([1, ABSENT], ["example.com/a", "example.com/b"])
    assert patch == {"status": {"capacity": said, "allocatable": said}}
    with pytest.raises(ValueError, match="zip"):
        status_patch([1])


@pytest.mark.parametrize(
    ("old", "new", "tells"),
    [
        (None, None, False),
        (None, resources(5), True),
        (resources(5), None, True),
        (resources(1000), resources(1100, 30), False),
        (resources(1000), resources(1101, 30), True),
        (resources(1000), resources(899, 30), True),
        (resources(1000), resources(1001, 301), True),
        (resources(1000), resources(1000, 30, mid=None), True),
        (resources(1000), resources(1000, 30, mid_lower_bound=Resources()), True),
    ],
)
def test_resources_need_a_view_when_a_status_would_be_written(
    old: NodeResourcesRecord | None, new: NodeResourcesRecord | None, tells: bool
) -> None:
    assert needs_view(old, new) is tells
