"""The difference of two policy files: a strict patch makes the new one of the old one."""

import re
import time
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cli import published_results
from pipeline.cli.published_results import MOST_COMPARED_LINES, difference

LINES = st.lists(st.sampled_from(["a", "b", "@@ -1 +1 @@", "-", "c: 1", "", "d"]), max_size=30)
HEAD = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


def compared(old: list[str], new: list[str]) -> tuple[str, ...]:
    before, after = ("".join(f"{line}\n" for line in lines).encode() for lines in (old, new))
    return difference(before, after, "old", "new")


def patched(old: list[str], lines: tuple[str, ...]) -> list[str]:
    """The old file with the changes, whose line numbers and context must be exact."""
    new, at, rest = list[str](), 0, list(lines[2:])
    while rest:
        head = HEAD.fullmatch(rest.pop(0))
        assert head is not None
        begin, removed, to, added = (int(number or 1) for number in head.groups())
        begin, to = begin - bool(removed), to - bool(added)
        new += old[at:begin]
        assert len(new) == to
        at = begin
        while removed or added:
            sign, text = rest[0][0], rest.pop(0)[1:]
            if sign != "+":
                assert old[at] == text
                at, removed = at + 1, removed - 1
            if sign != "-":
                new.append(text)
                added -= 1
    return new + old[at:]


@pytest.mark.parametrize("most", [0, MOST_COMPARED_LINES])
@given(head=LINES, old=LINES, new=LINES, tail=LINES)
def test_a_difference_makes_the_new_file_of_the_old_one(
    most: int, head: list[str], old: list[str], new: list[str], tail: list[str]
) -> None:
    old, new = head + old + tail, head + new + tail
    with mock.patch.object(published_results, "MOST_COMPARED_LINES", most):
        assert patched(old, compared(old, new)) == new


def test_a_change_far_down_has_its_line_number_and_context() -> None:
    old = [f"line {number}" for number in range(1, 101)]
    assert compared(old, [*old[:49], "changed", *old[50:]]) == (
        "--- old", "+++ new", "@@ -47,7 +47,7 @@", " line 47", " line 48", " line 49", "-line 50",
        "+changed", " line 51", " line 52", " line 53",
    )  # fmt: skip


def test_files_of_many_lines_do_not_take_minutes() -> None:
    old = [f"key-{number}: 1" for number in range(60_000)]
    new = [line if number % 2 else f"{line}0" for number, line in enumerate(old)]
    began = time.process_time()
    lines = compared(old, new)
    assert time.process_time() - began < 10
    assert patched(old, lines) == new
