"""Releases above a threshold, against exact fractions."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.node_qos.release_amounts import (
    Marks,
    allocatable_marks,
    request_release,
    usage_marks,
    usage_release,
)

AMOUNTS = st.integers(0, 2**48)
MARKS = st.integers(1, 150).flatmap(
    lambda threshold: st.builds(Marks, st.just(threshold), st.integers(0, threshold - 1))
)


@given(AMOUNTS, st.integers(1, 2**48), MARKS, st.booleans())
def test_what_is_left_is_at_the_lower_mark(
    used: int, capacity: int, marks: Marks, has_begun: bool
) -> None:
    release = usage_release(used, capacity, marks, has_begun=has_begun)
    is_due = has_begun or Fraction(used, capacity) >= Fraction(marks.threshold_percent, 100)
    above = used - Fraction(marks.lower_percent * capacity, 100)
    if not is_due or above <= 0:
        assert release == 0
    else:
        assert above <= release < above + 1


@given(AMOUNTS, AMOUNTS, MARKS)
def test_requests_must_exceed_the_threshold(requested: int, offered: int, marks: Marks) -> None:
    release = request_release(requested, offered, marks)
    if not offered:
        assert release == requested
    elif Fraction(requested, offered) <= Fraction(marks.threshold_percent, 100):
        assert release == 0
    else:
        above = requested - Fraction(marks.lower_percent * offered, 100)
        assert above <= release < above + 1


def test_a_node_without_capacity_releases_nothing() -> None:
    assert usage_release(10, 0, Marks(80, 70)) == 0


@pytest.mark.parametrize(
    ("threshold", "lower", "marks"),
    [
        (80, None, (80, 78)), (80, 70, (80, 70)), (1, None, (1, 0)), (80, 80, None),
        (80, 90, None), (None, 70, None), (0, None, None), (80, -1, None), (-5, None, None),
    ],
)  # fmt: skip
def test_marks_of_usage(
    threshold: int | None, lower: int | None, marks: tuple[int, int] | None
) -> None:
    assert usage_marks(threshold, lower) == marks


@pytest.mark.parametrize(
    ("threshold", "lower", "marks"),
    [(110, 100, (110, 100)), (110, None, None), (None, 1, None), (5, 5, None), (0, 0, None)],
)
def test_marks_of_requests_must_both_be_stated(
    threshold: int | None, lower: int | None, marks: tuple[int, int] | None
) -> None:
    assert allocatable_marks(threshold, lower) == marks
