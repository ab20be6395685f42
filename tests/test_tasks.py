"""Cancelled tasks end, even if they swallow a cancellation."""

import asyncio
from contextlib import suppress

import pytest

from pipeline import tasks


async def test_a_task_that_swallows_cancellations_is_cancelled_until_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tasks, "RETRY_SECONDS", 0.01)
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
    await tasks.cancel_tasks(task)
    assert (task.cancelled(), swallowed) == (True, 3)


async def test_exceptions_of_cancelled_tasks_are_neither_raised_nor_reported() -> None:
    reports: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: reports.append(context["message"])
    )

    async def fails() -> None:
        raise OSError("gone")

    async def fails_when_cancelled() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            raise OSError("cannot clean up")

    running = [asyncio.create_task(fails()), asyncio.create_task(fails_when_cancelled())]
    await asyncio.sleep(0)
    await tasks.cancel_tasks(*running)
    assert all(task.done() for task in running)
    del running
    assert reports == []


async def test_without_running_tasks_it_does_not_wait() -> None:
    await tasks.cancel_tasks()
    done = asyncio.create_task(asyncio.sleep(0))
    await done
    await tasks.cancel_tasks(done)
    assert not done.cancelled()
