"""Tasks that are ended have ended, also those that swallow a cancellation."""

import asyncio
from contextlib import suppress

import pytest

from pipeline import tasks


async def test_a_task_that_swallows_its_cancellation_is_ended_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tasks, "_AGAIN_SECONDS", 0.01)
    swallowed = 0

    async def stubborn() -> None:
        nonlocal swallowed
        for _ in range(3):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
            swallowed += 1
        await asyncio.sleep(60)

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    await tasks.end(task)
    assert task.cancelled()
    assert swallowed == 3


async def test_what_ended_tasks_raised_is_neither_raised_nor_complained_of() -> None:
    complaints: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: complaints.append(context["message"])
    )

    async def fails() -> None:
        raise OSError("gone")

    async def fails_when_it_is_ended() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            raise OSError("not even that")

    running = [asyncio.create_task(fails()), asyncio.create_task(fails_when_it_is_ended())]
    await asyncio.sleep(0)
    await tasks.end(*running)
    assert all(task.done() for task in running)
    del running
    assert complaints == []


async def test_nothing_to_end_is_no_wait() -> None:
    await tasks.end()
    done = asyncio.create_task(asyncio.sleep(0))
    await done
    await tasks.end(done)
    assert not done.cancelled()
