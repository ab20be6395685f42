"""The newest record of a key is found from the end of its partition. Over a broker:
tests/integration/test_model_commands.py."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.kafka.follow import TopicPartition
from pipeline.kafka.newest import Found, appended, names_near, newest, ranges_backwards
from pipeline.kafka.partition import partition_of
from pipeline.settings import KafkaSettings
from pipeline.topics.registry import NODE_STATE, PREDICTIONS
from tests.kafka.fake_consumer import FakeLog, install

KAFKA = KafkaSettings(topic_prefix="t", partitions=2)


def partition(*records: tuple[str, bytes | None]) -> FakeLog:
    log = FakeLog()
    log.records = {offset: (key.encode(), value) for offset, (key, value) in enumerate(records)}
    log.end = len(records)
    return log


def install_topic(monkeypatch: pytest.MonkeyPatch, *records: tuple[str, bytes | None]) -> None:
    """The partition of node `a` in `predictions` has these records."""
    tp = TopicPartition("t.predictions", partition_of("a", 2))
    install(monkeypatch, {tp: partition(*records)})


@given(st.integers(0, 10**9), st.integers(0, 10**7))
def test_ranges_cover_a_partition_from_its_end_to_its_beginning(first: int, count: int) -> None:
    ranges = list(ranges_backwards(first, first + count))
    expected = first + count
    for start, end in ranges:
        assert end == expected
        assert start < end
        expected = start
    assert expected == first
    # Few requests, however long the partition is.
    assert len(ranges) <= 16


def test_the_first_range_is_small() -> None:
    assert list(ranges_backwards(0, 2000)) == [(1500, 2000), (500, 1500), (0, 500)]
    assert list(ranges_backwards(7, 7)) == []


async def test_the_newest_record_of_a_node_is_found_however_far_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others = [("b", b"x")] * 3000
    install_topic(monkeypatch, ("a", b"old"), ("a", b"new"), *others)
    assert await newest(KAFKA, PREDICTIONS, "a") == Found(b"a", b"new", 1)


async def test_a_tombstone_hides_older_records(monkeypatch: pytest.MonkeyPatch) -> None:
    others = [("b", b"x")] * 600
    install_topic(monkeypatch, ("a", b"old"), *others, ("a", None))
    assert await newest(KAFKA, PREDICTIONS, "a") is None


async def test_any_wanted_key_of_the_partition_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    install_topic(monkeypatch, ("a@1", b"1"), ("a@2", b"2"), ("b@9", b"9"))
    found = await newest(KAFKA, PREDICTIONS, "a", lambda key: key.startswith(b"a@"))
    assert found == Found(b"a@2", b"2", 1)


async def test_records_of_a_range_of_time_come_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [("a", b"0"), ("b", b"1"), ("a", None), ("a", b"3"), ("a", b"4")]
    install_topic(monkeypatch, *records)
    assert [value async for value in appended(KAFKA, PREDICTIONS, "a", 0.5, 4)] == [None, b"3"]


async def test_similar_names_are_searched_in_few_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """A typing error costs 200 records of a partition at most, its newest."""

    def log(names: Iterable[str]) -> FakeLog:
        return partition(*((name, b"{}") for name in names))

    long = log([*["node-9"] * 300, *["node-0"] * 200])
    short = log(["node-1"] * 10)
    topic = NODE_STATE.full_name("t")
    install(monkeypatch, {TopicPartition(topic, 0): long, TopicPartition(topic, 1): short})
    assert await names_near(KAFKA, "nod-1") == ["node-1", "node-0"]
    for typed in ("NODE-1", "Node-1", "node-1"):
        assert (await names_near(KAFKA, typed))[0] == "node-1"
