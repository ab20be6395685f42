"""Columns of text with letters of any width."""

import pytest

from pipeline.processors.explain.text_columns import WIDEST, align_columns


@pytest.mark.parametrize("name", ["gold", "\u91d1", "e\u0301\u200b"])
def test_columns_line_up_whatever_their_letters_take(name: str) -> None:
    """A wide letter takes two columns of a terminal, a combining one none."""
    (first, second) = align_columns([[name, "1", "x"], ["silver", "22", "y"]], right={1})
    columns = {"gold": 4, "\u91d1": 2, "e\u0301\u200b": 1}[name]
    assert first == name + " " * (6 - columns) + "   1  x"
    assert second == "silver  22  y"


def test_one_huge_cell_pads_no_other_row() -> None:
    rows = [["n" * 1_000_000, "why"], ["node", "why"]]
    (huge, other) = align_columns(rows)
    assert huge == f"{rows[0][0]}  why"
    assert other == f"{'node':{WIDEST}}  why"
