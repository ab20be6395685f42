"""Events at a rate that changes."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actuators.rate_limit import RateLimit
from pipeline.clock import ManualClock
from pipeline.tasks import cancel_tasks


async def events(limit: RateLimit, clock: ManualClock, seconds: float) -> list[float]:
    """When events happened that wait for nothing but the limit."""
    times = list[float]()

    async def work() -> None:
        while True:
            await limit.wait()
            times.append(clock.monotonic())

    task = asyncio.create_task(work())
    await clock.advance(seconds)
    await cancel_tasks(task)
    return times


@pytest.mark.parametrize("slow", [1e-9, 1e-320])
async def test_a_corrected_rate_is_in_force_at_once(slow: float) -> None:
    clock = ManualClock()
    limit = RateLimit(slow, clock)
    assert await events(limit, clock, 100.0) == [0.0]
    limit.per_second = 0.1
    assert limit.left_seconds == 0.0
    assert await events(limit, clock, 15.0) == [100.0, 110.0]


async def test_a_rate_that_is_corrected_during_a_pause_ends_it() -> None:
    clock = ManualClock()
    limit = RateLimit(1e-9, clock)
    await limit.wait()
    waiting = asyncio.create_task(limit.wait())
    await clock.advance(60.0)
    assert not waiting.done()
    limit.per_second = 0.1
    await clock.advance(2.0)
    assert waiting.done()


async def test_a_rate_that_is_lowered_holds_from_the_last_event_on() -> None:
    clock = ManualClock()
    limit = RateLimit(10.0, clock)
    await limit.wait()
    await clock.advance(5.0)
    limit.per_second = 0.1
    assert limit.left_seconds == 5.0


async def test_a_burst_is_allowed_once_and_refills_at_the_rate() -> None:
    clock = ManualClock()
    limit = RateLimit(0.1, clock, burst=3)
    assert await events(limit, clock, 25.0) == [0.0, 0.0, 0.0, 10.0, 20.0]
    await clock.advance(1000.0)
    assert len(await events(limit, clock, 1.0)) == 3


async def test_a_former_leader_may_have_used_up_the_burst() -> None:
    clock = ManualClock()
    limit = RateLimit(0.1, clock, burst=3)
    limit.happened(15.0)
    assert await events(limit, clock, 12.0) == [0.0, 5.0]


async def test_an_event_that_took_time_counts_from_its_end() -> None:
    clock = ManualClock()
    limit = RateLimit(0.1, clock, burst=2)
    await limit.wait()
    await clock.advance(8.0)
    limit.happens_now()
    assert [limit.seconds_until(count) for count in (1, 2, 3)] == [0.0, 10.0, 20.0]


@given(
    per_second=st.sampled_from([0.1, 0.7, 3.0, 16.0]),
    burst=st.integers(1, 4),
    pauses=st.lists(st.floats(0.0, 30.0), min_size=1, max_size=12),
)
def test_no_time_has_more_events_than_rate_and_burst_allow(
    per_second: float, burst: int, pauses: list[float]
) -> None:
    async def run() -> list[float]:
        clock, times = ManualClock(), list[float]()
        limit = RateLimit(per_second, clock, burst)

        async def work() -> None:
            for pause in pauses:
                await clock.sleep(pause)
                expected = clock.monotonic() + limit.left_seconds
                await limit.wait()
                times.append(clock.monotonic())
                assert times[-1] == pytest.approx(expected)

        task = asyncio.create_task(work())
        await clock.advance(sum(pauses) + len(pauses) / per_second + 1.0)
        await task
        return times

    times = asyncio.run(run())
    for i, start in enumerate(times):
        for j in range(i, len(times)):
            assert j - i + 1 <= burst + (times[j] - start) * per_second + 1e-6
