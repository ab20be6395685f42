"""A partition is read backwards in pieces that leave nothing out. Over a broker:
tests/integration/test_model_commands.py."""

from hypothesis import given
from hypothesis import strategies as st

from pipeline.topics.newest import _pieces


@given(st.integers(0, 10**9), st.integers(0, 10**7))
def test_pieces_cover_a_partition_from_its_end_to_its_beginning(first: int, count: int) -> None:
    pieces = list(_pieces(first, first + count))
    expected = first + count
    for start, end in pieces:
        assert end == expected
        assert start < end
        expected = start
    assert expected == first
    # Few questions, however long the partition is.
    assert len(pieces) <= 16


def test_the_first_piece_is_small() -> None:
    assert list(_pieces(0, 2000)) == [(1500, 2000), (500, 1500), (0, 500)]
    assert list(_pieces(7, 7)) == []
