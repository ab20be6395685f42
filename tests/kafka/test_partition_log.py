"""Ranges of a partition are read whole, whatever retention and compaction do meanwhile."""

from typing import Any

import pytest

from pipeline.kafka.follow import LostOffsetError
from pipeline.kafka.partition_log import LogRecord, open_reader
from tests.kafka.fake_consumer import CLIENT, TP, FakeLog, install

PLACE = (TP.topic, TP.partition)


async def read(start: int, end: int) -> list[int]:
    async with open_reader(CLIENT, [PLACE]) as reader:
        lists = [records async for records in reader.read(*PLACE, start, end)]
    assert all(lists)
    return [record.offset for records in lists for record in records]


COMPACTED, SHORTENED = FakeLog([3, 50], end=100), FakeLog(range(40, 50), first=40)


@pytest.mark.parametrize(
    ("log", "start", "end", "offsets"),
    [
        (FakeLog(range(1500)), 0, 1500, [*range(1500)]),
        (FakeLog(range(1500)), 490, 510, [*range(490, 510)]),
        (FakeLog(range(10)), 7, 7, []),
        (COMPACTED, 0, 100, [3, 50]),
        (COMPACTED, 60, 90, []),
        (SHORTENED, 0, 45, [40, 41, 42, 43, 44]),
        (SHORTENED, 0, 30, []),
    ],
)
async def test_a_range_has_all_records_that_compaction_and_retention_left(
    monkeypatch: pytest.MonkeyPatch, log: FakeLog, start: int, end: int, offsets: list[int]
) -> None:
    install(monkeypatch, {TP: log})
    assert await read(start, end) == offsets


async def test_records_carry_the_time_of_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, {TP: FakeLog(range(3))})
    async with open_reader(CLIENT, [PLACE]) as reader:
        assert await reader.bounds(*PLACE) == (0, 3)
        assert await reader.ends(TP.topic, [0]) == {0: 3}
        assert [await reader.offset_at(*PLACE, ms) for ms in (0, 1001, 9999)] == [0, 2, 3]
        (records,) = [records async for records in reader.read(*PLACE, 2, 3)]
    assert records == [LogRecord(0, 2, b"k", b"2", 2000)]


async def test_a_log_that_ends_before_the_range_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, {TP: FakeLog(range(10))})
    with pytest.raises(LostOffsetError, match="has no offset 20"):
        await read(20, 30)


async def test_ranges_are_read_one_after_the_other_by_one_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, {TP: FakeLog(range(10))})
    found: list[Any] = []
    async with open_reader(CLIENT, [PLACE]) as reader:
        for start, end in ((5, 7), (0, 2), (9, 10)):
            async for records in reader.read(*PLACE, start, end):
                found += [record.offset for record in records]
    assert found == [5, 6, 0, 1, 9]
