"""Clocks, and times as text."""

import asyncio
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.clock import ManualClock, SystemClock
from pipeline.times import format_time, parse_time


@given(st.integers(min_value=0, max_value=4_102_444_800_000))
def test_parsing_reverses_formatting(milliseconds: int) -> None:
    assert round(parse_time(format_time(milliseconds / 1000)) * 1000) == milliseconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "1970-01-01T00:00:00Z"),
        (1_700_000_010.0, "2023-11-14T22:13:30Z"),
        (1_700_000_010.25, "2023-11-14T22:13:30.250Z"),
        (1_700_000_009.9999, "2023-11-14T22:13:30Z"),  # no ".1000Z"
        (-1.0, "1969-12-31T23:59:59Z"),
    ],
)
def test_times_are_written_in_utc(seconds: float, text: str) -> None:
    assert format_time(seconds) == text


def test_other_zones_and_finer_fractions_are_parsed() -> None:
    assert parse_time("2023-11-14T23:13:30+01:00") == 1_700_000_010.0
    assert parse_time("2023-11-14T22:13:30.123456789Z") == pytest.approx(1_700_000_010.123456)
    assert parse_time("2023-11-14t22:13:30z") == 1_700_000_010.0


@pytest.mark.parametrize(
    "text", ["", "now", "2023-11-14", "2023-11-14T22:13:30", "2023-13-14T22:13:30Z", "1700000010"]
)
def test_an_invalid_time_or_one_without_a_zone_raises(text: str) -> None:
    with pytest.raises(ValueError):
        parse_time(text)


def test_the_system_clock_counts_suspended_time() -> None:
    """In a time namespace, time since boot is ahead as after a suspension of a day."""
    code = (
        "import time; from pipeline.clock import SystemClock; "
        "print(SystemClock().monotonic() - time.monotonic())"
    )
    argv = ["unshare", "--time", "--fork", "--boottime", "86400", sys.executable, "-c", code]
    answer = subprocess.run(argv, capture_output=True, text=True, check=False)
    if answer.returncode and "unshare" in answer.stderr:
        pytest.skip(f"time namespaces are not available: {answer.stderr.strip()}")
    assert float(answer.stdout) == pytest.approx(86400.0, abs=60.0)


async def test_sleepers_wake_at_their_times_in_order() -> None:
    clock = ManualClock(now=100.0)
    woken: list[tuple[str, float]] = []

    async def sleep(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((name, clock.now()))

    tasks = [asyncio.create_task(sleep("late", 3)), asyncio.create_task(sleep("early", 1))]
    await clock.advance(0.5)
    assert woken == []
    await clock.advance(9.5)
    assert woken == [("early", 101.0), ("late", 103.0)]
    assert (clock.now(), clock.monotonic()) == (110.0, 10.0)
    await asyncio.gather(*tasks)


async def test_a_loop_that_sleeps_again_gets_every_tick() -> None:
    clock = ManualClock(now=0.0)
    ticks: list[float] = []

    async def tick() -> None:
        while True:
            await clock.sleep(1)
            ticks.append(clock.now())

    task = asyncio.create_task(tick())
    await clock.advance(3)
    task.cancel()
    assert ticks == [1.0, 2.0, 3.0]


async def test_a_jump_moves_the_wall_clock_only() -> None:
    clock = ManualClock(now=100.0)
    sleeper = asyncio.create_task(clock.sleep(5))
    clock.jump(-3600)
    await clock.advance(1)
    assert (clock.now(), clock.monotonic(), sleeper.done()) == (-3499.0, 1.0, False)
    sleeper.cancel()
    with pytest.raises(ValueError, match="does not go back"):
        await clock.advance(-1)


async def test_the_system_clock_sleeps_on_monotonic_time() -> None:
    clock = SystemClock()
    start = clock.monotonic()
    await clock.sleep(0.02)
    await clock.sleep(-1)
    assert 0.02 <= clock.monotonic() - start < 5
