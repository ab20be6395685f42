"""Records are interleaved with other work of the event loop."""

import asyncio
import time
from itertools import pairwise

import pytest

from pipeline.table.event_loop_turns import by_turns
from pipeline.table.limits import RECORDS_IN_A_TURN

BUSY_SECONDS = 0.004


async def turns_for(records: int, *, trickling: bool) -> int:
    """How many turns of a busy event loop pass until all are there."""
    turns, is_over = 0, False

    async def work() -> None:
        nonlocal turns
        while not is_over:
            time.sleep(BUSY_SECONDS)  # noqa: ASYNC251
            turns += 1
            await asyncio.sleep(0)

    busy = asyncio.create_task(work())
    result = [record async for record in by_turns(range(records), trickling=trickling)]
    is_over = True
    await busy
    assert result == [*range(records)]
    return turns


async def test_trickling_records_do_not_wait_long_on_a_busy_loop() -> None:
    # A turn for each as long as there is time for that, then some in each.
    assert await turns_for(99, trickling=True) <= 0.15 / BUSY_SECONDS + 99 / RECORDS_IN_A_TURN + 5


async def test_records_of_a_backlog_come_several_in_a_turn() -> None:
    turns = await turns_for(10 * RECORDS_IN_A_TURN, trickling=False)
    assert 10 <= turns <= 12


async def test_trickling_records_come_one_at_a_time() -> None:
    turns = 0

    async def work() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(work())
    seen = []
    async for _ in by_turns(range(5), trickling=True):
        seen.append(turns)
    other.cancel()
    assert all(later > before for before, later in pairwise(seen))


@pytest.mark.parametrize("trickling", [False, True])
async def test_an_empty_fetch_yields_no_record(trickling: bool) -> None:
    assert [record async for record in by_turns(list[int](), trickling=trickling)] == []
