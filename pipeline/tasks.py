"""Running asyncio tasks side by side or for a time, and ending them before one goes on."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, Final, TypeVar

from pipeline.errors import StateError
from pipeline.logs import get_logger

# Longer than any task of ours takes to tidy up: a second cancellation would cut that off.
_AGAIN_SECONDS: Final = 6.0

log = get_logger(__name__)

T = TypeVar("T")


async def end(*tasks: "asyncio.Future[Any]") -> None:
    """Cancel the tasks and wait until each has ended; what they raise is not raised here.

    A task is cancelled again if it goes on: aiokafka (while it closes a client) and Python 3.11's
    `asyncio.wait_for` (when what it waits for ends in the same turn) may swallow a cancellation.
    """
    while running := [task for task in tasks if not task.done()]:
        for task in running:
            task.cancel()
        _, going_on = await asyncio.wait(running, timeout=_AGAIN_SECONDS)
        if going_on:
            log.warning("tasks do not end and are cancelled again", tasks=repr(going_on))
    for task in tasks:
        if not task.cancelled():
            task.exception()  # else asyncio complains that nobody asked for it


async def together(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Side by side; one that fails ends the others, and its exception goes up.

    Raises `StateError` if one was cut off by a cancellation that nobody asked for.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in work]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None  # of several one tells as much as the next
    # A client may raise the cancellation of its own tasks, which the group takes for one of ours.
    if any(task.cancelled() for task in tasks):
        raise StateError("what was done for a partition was cut off before its end")


async def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, or `TimeoutError` after `seconds` (an OSError, as all that comes of
    connections). A client that is stopped while its broker is away may raise the cancellation of
    its own tasks; that must not look like one of ours.
    """
    task = asyncio.create_task(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    finally:
        task.cancel()
    if not done:
        task.add_done_callback(lambda late: late.cancelled() or late.exception())
        raise TimeoutError(f"no answer within {seconds:g} s")
    if task.cancelled():
        raise ConnectionError("the client gave up")
    return task.result()
