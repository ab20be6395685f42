"""A partition is read backwards in pieces that leave nothing out. Over a broker:
tests/integration/test_model_commands.py."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.kafka import newest
from pipeline.kafka.newest import _pieces, names_near
from pipeline.settings import KafkaSettings


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


async def test_for_names_that_were_meant_little_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A typing error costs 200 records of a partition at most, its newest."""
    asked: list[tuple[int, int]] = []

    class Consumer:
        async def end_offsets(self, places: list[Any]) -> dict[Any, int]:
            return dict.fromkeys(places, 1_000_000)

        async def beginning_offsets(self, places: list[Any]) -> dict[Any, int]:
            return {place: 0 if place.partition else 999_990 for place in places}

    @asynccontextmanager
    async def consumer(*_: object) -> AsyncIterator[Consumer]:
        yield Consumer()

    async def read(
        _: Consumer, place: Any, start: int, end: int
    ) -> AsyncIterator[tuple[bytes, bytes | None, int]]:
        asked.append((start, end))
        yield b"node-%d" % place.partition, b"{}", start

    monkeypatch.setattr(newest, "_consumer", consumer)
    monkeypatch.setattr(newest, "_read", read)
    assert await names_near(KafkaSettings(partitions=2), "nod-1") == ["node-1", "node-0"]
    assert asked == [(999_990, 1_000_000), (999_800, 1_000_000)]
    for typed in ("NODE-1", "Node-1", "node-1"):
        assert (await names_near(KafkaSettings(partitions=2), typed))[0] == "node-1"
