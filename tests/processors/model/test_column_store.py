"""Columns come back from their bytes, bit by bit."""

import mmap
import resource
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import CheckpointError
from pipeline.processors.model import column_store
from pipeline.processors.model.column_store import Column, Columns, object_column

COLUMNS = {
    "number": Column((3,)),
    "single": Column((2, 2), "<f4", np.nan),
    "series": Column((2, 5), "<u2", by_row=False),
    "levels": Column((3,), "<f8", np.nan, by_row=False),
    "time": Column((), "<i8", -1),
    "signed": Column((4,), "<i4"),
    "small": Column((), "<u1"),
}


def _filled(rows: int, seed: int) -> Columns:
    """Any bits at all, NaN and extremes among them."""
    columns, random = Columns(COLUMNS), np.random.default_rng(seed)
    columns.grow(rows)
    for name in COLUMNS:
        array = columns[name]
        bits = random.integers(0, 256, array.size * array.itemsize, np.uint8)
        array[...] = bits.view(array.dtype).reshape(array.shape)
    return columns


def _bits(columns: Columns, rows: np.ndarray) -> list[bytes]:
    return [columns[name][rows].tobytes() for name in COLUMNS]


@given(
    st.lists(st.integers(0, 19), unique=True)
    | st.tuples(st.integers(0, 9), st.integers(0, 10)).map(lambda n: list(range(n[0], sum(n)))),
    st.integers(0, 2**32 - 1),
)
def test_rows_come_back_wherever_they_are_put(rows: list[int], seed: int) -> None:
    at = np.array(rows, np.int64)
    columns, other = _filled(20, seed), _filled(30, seed + 1)
    packed = columns.pack(at)
    untouched = np.setdiff1d(np.arange(30), 29 - at)
    before = _bits(other, untouched)
    other.write(29 - at, other.unpack(packed, len(at)))
    assert _bits(other, 29 - at) == _bits(columns, at)
    assert _bits(other, untouched) == before


def test_growing_keeps_rows_and_adds_empty_ones() -> None:
    columns = _filled(4, 1)
    before = _bits(columns, np.arange(4))
    columns.grow(9)
    assert _bits(columns, np.arange(4)) == before
    fresh = Columns(COLUMNS)
    fresh.grow(5)
    assert _bits(columns, np.arange(4, 9)) == _bits(fresh, np.arange(5))


@pytest.mark.parametrize("refused", [False, True])
def test_growing_claims_no_memory_for_items_that_no_row_has_filled(
    refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day of slots, of which one is in use: 115 MB, or less than one. Also when it is moved."""
    if refused:
        monkeypatch.setattr(column_store, "reserve", lambda shape, dtype: None)
    columns = Columns({"slots": Column((2, 288), "<u2", by_row=False)})
    columns.grow(100_000)
    columns["slots"][:, 1, 7] = 3
    before = _resident_bytes()
    columns.grow(150_000 if refused else 2_000_000)
    assert _resident_bytes() - before < 10e6
    assert (columns["slots"][:100_000, 1, 7] == 3).all()
    assert not columns["slots"][100_000:, 1, 7].any()


def test_columns_use_no_huge_pages() -> None:
    """Where the system gives them unless refused, each item of a few hundred rows would
    take 2 MiB."""
    columns = Columns({"slots": Column((2, 288), "<u2", by_row=False)})
    columns.grow(1000)
    start = columns["slots"].__array_interface__["data"][0]
    areas = Path("/proc/self/smaps").read_text().split(f"{start:x}-", 1)[1]
    flags = next(line for line in areas.splitlines() if line.startswith("VmFlags"))
    assert "nh" in flags.split()


def test_many_rows_grow_without_being_moved() -> None:
    """A million pods' models would hold up a worker for seconds whenever there was one more."""
    columns = Columns({name: c for name, c in COLUMNS.items() if name != "small"})
    columns.grow(300_000)
    before = {name: columns[name].__array_interface__["data"][0] for name in columns.columns}
    columns["time"][:] = 7
    columns.grow(900_000)
    after = {name: columns[name].__array_interface__["data"][0] for name in columns.columns}
    assert after == before
    assert (columns["time"][:300_000] == 7).all()
    assert (columns["time"][300_000:] == -1).all()


@pytest.mark.parametrize("refused", [False, True])
def test_more_rows_than_there_is_room_for_are_moved(
    refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(column_store, "RESERVE_FACTOR", 2)
    if refused:
        monkeypatch.setattr(column_store, "reserve", lambda shape, dtype: None)
    columns = Columns(COLUMNS)
    columns.grow(20_000)
    columns["series"][:] = 5
    for rows in (70_000, 400_000, 500_000):
        columns.grow(rows)
        assert len(columns["series"]) == rows
    assert (columns["series"][:20_000] == 5).all()
    assert not columns["series"][20_000:].any()
    assert (columns["time"] == -1).all()


def test_limited_address_space_reserves_no_spare_rows() -> None:
    limits = resource.getrlimit(resource.RLIMIT_AS)
    column_store.is_address_space_free.cache_clear()
    resource.setrlimit(resource.RLIMIT_AS, (2**45, limits[1]))
    try:
        assert not column_store.is_address_space_free()
        columns = Columns(COLUMNS)
        columns.grow(200_000)
        assert len(columns.reserved["series"]) == 200_000
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        column_store.is_address_space_free.cache_clear()
    assert (columns["time"] == -1).all()


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


class _Word:
    def __init__(self, word: str) -> None:
        self.word = word

    def pack(self) -> bytes:
        return self.word.encode()


def _restored(packed: bytes) -> _Word:
    if not packed:
        raise CheckpointError("no word")
    return _Word(packed.decode())


def test_objects_are_saved_with_their_rows() -> None:
    columns, other = (Columns({"words": object_column(_restored)}) for _ in range(2))
    columns.grow(3)
    columns["words"][1] = _Word("tide")
    columns.grow(200_000)
    other.grow(4)
    packed = columns.pack(np.array([1, 2]))
    other.write(np.array([3, 0]), other.unpack(packed, 2))
    assert other["words"][3].word == "tide"
    assert other["words"][:3].tolist() == [None, None, None]
    other.clear(np.array([3]))
    assert other["words"].tolist() == [None] * 4
    for wrong, problem in (
        (packed["words"][:-1], "is damaged"),
        (other.pack(np.array([0]))["words"], "1 objects instead of 2"),
        (columns["words"][1].pack(), "is damaged"),
        (msgspec.msgpack.encode([None, b""]), "no word"),
    ):
        with pytest.raises(CheckpointError, match=f"'words' of the node state: .*{problem}"):
            other.unpack({"words": wrong}, 2)


def test_where_items_lie_in_memory_does_not_change_the_fingerprint() -> None:
    by_item, by_row = (Columns({"a": Column((2,), "<u2", by_row=each)}) for each in (False, True))
    assert by_item.fingerprint == by_row.fingerprint
    assert by_item.fingerprint != Columns({"a": Column((3,), "<u2")}).fingerprint


def test_bytes_of_another_length_are_refused() -> None:
    packed = _filled(3, 2).pack(np.arange(3))
    columns = Columns(COLUMNS)
    for wrong in (packed | {"series": packed["series"][:-1]}, {"series": b""}):
        with pytest.raises(CheckpointError, match="instead of"):
            columns.unpack(wrong, 3)
