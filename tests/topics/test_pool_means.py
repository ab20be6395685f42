"""Records of the means of node pools: which are valid, and their keys."""

import pytest

from pipeline.errors import InvalidRecordError, KeyMismatchError, RecordError
from pipeline.topics.codec import decode_json
from pipeline.topics.pool_means import (
    PoolMeansRecord,
    RuleMean,
    check_pool_means,
    pool_key,
    pool_of_key,
)

AT, AT_MS = "2023-11-14T22:14:00Z", 1_700_000_040_000


def record(percent: float | None = 40.0, known: int = 5, nodes: int = 10) -> PoolMeansRecord:
    return PoolMeansRecord(
        pool="gold", at=AT, nodes=nodes,
        means={"node_cpu": RuleMean(percent=percent, known_nodes=known)},
    )  # fmt: skip


@pytest.mark.parametrize("pool", ["gold", "__default_node_pool__", "a/b", "grün", ""])
def test_a_key_names_its_pool(pool: str) -> None:
    assert pool_of_key(pool_key(pool)) == pool


def test_keys_of_other_records_are_not_those_of_pools() -> None:
    for key in (None, b"", b"pool", b"workload/ns/Deployment/web", b"\xff"):
        assert pool_of_key(key) is None
    with pytest.raises(KeyMismatchError):
        pool_of_key(b"pool/\xff")


@pytest.mark.parametrize(
    "valid", [record(), record(None, 4), record(None, 0, 0), record(0.0, 1, 1), record(1000.0)]
)
def test_means_of_half_of_the_nodes_are_valid(valid: PoolMeansRecord) -> None:
    check_pool_means(valid, AT_MS, 60.0)


@pytest.mark.parametrize("wrong", [record(40.0, 4), record(40.0, 11), record(None, 11)])
def test_means_that_contradict_their_counts_are_refused(wrong: PoolMeansRecord) -> None:
    with pytest.raises(InvalidRecordError, match=r"'gold' has a mean of 'node_cpu' of "):
        check_pool_means(wrong, AT_MS, 60.0)


def test_a_date_after_the_append_time_is_refused() -> None:
    """Every later record would be older, and ignored."""
    check_pool_means(record(), AT_MS - 60_000, 60.0)
    with pytest.raises(InvalidRecordError, match=r"dated 60\.001 s after the broker"):
        check_pool_means(record(), AT_MS - 60_001, 60.0)


@pytest.mark.parametrize("at", ["", "yesterday", "2023-11-14T22:14:00", "9999-99-99T00:00:00Z"])
def test_a_date_that_is_none_is_refused(at: str) -> None:
    with pytest.raises(InvalidRecordError, match="pool 'gold'"):
        check_pool_means(PoolMeansRecord(pool="gold", at=at, nodes=1), AT_MS, 60.0)


@pytest.mark.parametrize("percent", ["NaN", "-0.1", "1e9", "1000.1", "Infinity", '"40"', "[]"])
def test_an_absurd_mean_is_refused(percent: str) -> None:
    text = (
        '{"version":1,"pool":"gold","at":"2023-11-14T22:14:00Z","nodes":1,'
        '"means":{"node_cpu":{"percent":%s,"known_nodes":1}}}'
    )
    assert decode_json(PoolMeansRecord, (text % "40.5").encode()).nodes == 1
    with pytest.raises(RecordError):
        decode_json(PoolMeansRecord, (text % percent).encode())
