"""Ticks lie on the UTC grid and report missed grid points and clock steps."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from node_exporter.ticks import Tick, Ticker
from pipeline.clock import ManualClock

START = 1_700_000_000.25


async def next_tick(ticker: Ticker, clock: ManualClock, seconds: float) -> Tick:
    waiting = asyncio.create_task(ticker.next())
    await clock.advance(seconds)
    return await asyncio.wait_for(waiting, 30)


async def test_ticks_are_multiples_of_the_interval() -> None:
    clock = ManualClock(START)
    ticker = Ticker(clock, 1000)
    ticks = [await next_tick(ticker, clock, 1.0) for _ in range(4)]
    assert [tick.at_ms for tick in ticks] == [1_700_000_001_000 + 1000 * i for i in range(4)]
    assert all((tick.missed, tick.stepped_seconds) == (0, 0.0) for tick in ticks)


async def test_resumed_process_continues_now_and_counts_missed_grid_points() -> None:
    clock = ManualClock(START)
    ticker = Ticker(clock, 1000)
    await next_tick(ticker, clock, 1.0)
    await clock.advance(12.4)  # SIGSTOP, or a busy machine
    tick = await next_tick(ticker, clock, 1.0)
    assert (tick.at_ms, tick.missed, tick.stepped_seconds) == (1_700_000_014_000, 12, 0.0)


async def test_tick_reports_a_clock_step() -> None:
    for seconds in (100.0, -100.0, 0.6, -0.6):
        clock = ManualClock(START)
        ticker = Ticker(clock, 1000)
        first = await next_tick(ticker, clock, 1.0)
        clock.jump(seconds)
        tick = await next_tick(ticker, clock, 2.0)
        assert abs(tick.stepped_seconds - seconds) < 1e-6
        assert abs(tick.at_ms - first.at_ms - seconds * 1000) <= 2000
        assert tick.missed == 0 or seconds == 0.6


async def test_clock_slewed_back_repeats_no_grid_point() -> None:
    clock = ManualClock(START)
    ticker = Ticker(clock, 1000)
    grid_points = []
    for _ in range(50):
        waiting = asyncio.create_task(ticker.next())
        while not waiting.done():
            await clock.advance(0.05)
            clock.jump(-0.001)  # 2%: forty times the slew rate of the kernel
        grid_points.append((await waiting).at_ms)
    assert grid_points == list(range(grid_points[0], grid_points[0] + 50_000, 1000))


@settings(max_examples=30)
@given(interval_ms=st.integers(100, 5000), pauses=st.lists(st.floats(0, 20), max_size=10))
def test_grid_points_increase_without_clock_steps(interval_ms: int, pauses: list[float]) -> None:
    async def scenario() -> None:
        clock = ManualClock(START)
        ticker = Ticker(clock, interval_ms)
        previous_ms = 0
        for pause in pauses:
            await clock.advance(pause)
            tick = await next_tick(ticker, clock, 2 * interval_ms / 1000)
            assert tick.at_ms > previous_ms
            assert tick.at_ms % interval_ms == 0
            assert tick.stepped_seconds == 0.0
            previous_ms = tick.at_ms

    asyncio.run(scenario())


async def test_small_step_back_repeats_no_grid_point() -> None:
    clock = ManualClock(START)
    ticker = Ticker(clock, 1000)
    first = await next_tick(ticker, clock, 1.0)
    waiting = asyncio.create_task(ticker.next())
    await clock.advance(0.5)
    clock.jump(-0.15)  # smaller than a step, larger than an early wake-up
    await clock.advance(1.0)
    tick = await asyncio.wait_for(waiting, 30)
    assert (tick.at_ms, tick.missed, tick.stepped_seconds) == (first.at_ms + 1000, 0, 0.0)
