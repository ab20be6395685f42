"""What is kept stays within its bytes, and what is asked for stays longest."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.topics.byte_cache import Kept


@pytest.fixture
def kept() -> Kept[str, int]:
    return Kept(most_bytes=1000)


def test_what_is_kept_is_found(kept: Kept[str, int]) -> None:
    kept.put("a", 1, 10)
    assert (kept.get("a"), kept.get("b"), len(kept), kept.bytes) == (1, None, 1, 10)


def test_a_value_takes_the_place_of_the_one_before(kept: Kept[str, int]) -> None:
    kept.put("a", 1, 10)
    kept.put("a", 2, 4)
    assert (kept.get("a"), len(kept), kept.bytes) == (2, 1, 4)


def test_what_was_not_asked_for_longest_goes(kept: Kept[str, int]) -> None:
    for number in range(100):
        kept.put(str(number), number, 10)
    assert kept.get("0") == 0
    kept.put("more", 100, 10)
    assert (kept.get("0"), kept.get("1"), kept.get("more")) == (0, None, 100)


def test_one_large_value_does_not_make_all_others_go(kept: Kept[str, int]) -> None:
    kept.put("a", 1, 10)
    kept.put("large", 2, 11)
    assert (kept.get("a"), kept.get("large")) == (1, None)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12), st.booleans())))
def test_the_bytes_are_those_of_what_is_there(steps: list[tuple[int, int, bool]]) -> None:
    found: Kept[int, int] = Kept(most_bytes=1000)
    sizes: dict[int, int] = {}
    for key, size, ask in steps:
        if ask:
            assert found.get(key) == sizes.get(key)
        else:
            found.put(key, size, size)
            sizes.pop(key, None)
            if size <= 10:
                sizes[key] = size
    assert found.bytes == sum(sizes.values()) <= 1000
