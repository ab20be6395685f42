"""Cancelled tasks end, even if they swallow a cancellation."""

import asyncio
import gc
import weakref
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


class State:
    """What a task reads."""


@pytest.mark.parametrize("is_cancelled", [True, False], ids=["cancelled", "failed"])
async def test_what_tasks_held_is_freed_when_they_end(is_cancelled: bool) -> None:
    held: list[weakref.ref[State]] = []

    async def read(state: State) -> None:
        held.append(weakref.ref(state))
        await asyncio.sleep(60 if is_cancelled else 0)
        raise OSError("gone")

    async def write() -> None:
        await asyncio.sleep(60)

    async def run() -> None:
        with suppress(OSError):
            await tasks.run_all([read(State()), write()])

    gc.collect()
    gc.disable()
    try:
        running = asyncio.create_task(run())
        await asyncio.sleep(0.01)
        await tasks.cancel_tasks(running)
        del running
        await asyncio.sleep(0)
        assert [state() for state in held] == [None]
    finally:
        gc.enable()
