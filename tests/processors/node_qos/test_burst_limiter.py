"""Tokens of a burst stay within bounds, and each second counts once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.node_qos.burst_limiter import BurstLimiter, first_limiter

PERCENTS = st.one_of(st.none(), st.floats(0, 1e6))


def limiter(tokens: float = 0.0) -> BurstLimiter:
    return BurstLimiter(100, 150, tokens=tokens, at=0.0)


@given(
    st.integers(0, 10**12),
    st.integers(100, 10**12),
    st.lists(st.tuples(PERCENTS, st.floats(-1e9, 1e9))),
)
def test_tokens_stay_within_the_capacity_whatever_the_clock_does(
    period_seconds: int, max_percent: int, uses: list[tuple[float | None, float]]
) -> None:
    bucket = first_limiter("kubepods/poda/main", period_seconds, max_percent, 0.0)
    assert 0 <= bucket.tokens <= bucket.capacity / 2
    for usage_percent, at in uses:
        before = bucket.tokens
        bucket.use(usage_percent, at)
        assert -bucket.capacity <= bucket.tokens <= bucket.capacity
        assert usage_percent is not None or bucket.tokens == before


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60))
def test_parts_of_seconds_count_as_much_as_whole_ones(tenths: list[int]) -> None:
    """As long as the bucket is not full, ten tenths spend what a second spends."""
    bucket, tenth = limiter(tokens=5000.0), 0
    for step in tenths:
        tenth += step
        bucket.use(110.0, tenth / 10)
    assert bucket.tokens == pytest.approx(5000.0 - 10 * (tenth // 10), abs=10.1)


def test_unknown_usage_neither_spends_nor_earns_later() -> None:
    bucket = limiter(tokens=500.0)
    bucket.use(None, 50.0)
    bucket.use(200.0, 51.0)
    assert bucket.tokens == 400.0


def test_without_a_period_no_quota_is_raised() -> None:
    assert not first_limiter("kubepods/poda/main", 0, 300, 0.0).allows


def test_containers_start_with_different_tokens() -> None:
    starts = {first_limiter(f"kubepods/pod{n}/main", 100, 300, 0.0).tokens for n in range(100)}
    assert len(starts) > 90
