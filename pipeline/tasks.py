"""Run asyncio tasks concurrently, with a time limit or until a signal; cancel them reliably."""

import asyncio
import signal
import traceback
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any, Final, TypeVar

from pipeline.clock import Clock
from pipeline.errors import StateError
from pipeline.event_loop_lag import measure_event_loop_lag
from pipeline.logs import get_logger

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
RETRY_SECONDS: Final = 6.0
"""Time until a task is cancelled again; longer than any task needs to clean up."""

log = get_logger(__name__)

T = TypeVar("T")


async def cancel_tasks(*tasks: "asyncio.Future[Any]") -> None:
    """Cancel the tasks and wait until each has ended. Their exceptions are dropped.

    A task that continues is cancelled again: aiokafka (while it closes a client) and Python 3.11's
    `asyncio.wait_for` (if its awaitable ends in the same turn) may swallow a cancellation.
    """
    while running := [task for task in tasks if not task.done()]:
        for task in running:
            task.cancel()
        _, unfinished = await asyncio.wait(running, timeout=RETRY_SECONDS)
        if unfinished:
            log.warning("tasks do not end, cancelling them again", tasks=repr(unfinished))
    for task in tasks:
        if not task.cancelled():
            task.exception()  # else asyncio warns that it was never retrieved


async def stop_signal() -> None:
    """Wait for SIGTERM or Ctrl-C. Further ones are ignored from then on."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop.set)
    await stop.wait()
    ignore_stop_signals()


def stop_events() -> tuple[asyncio.Event, asyncio.Event]:
    """Events that signals set, for a service that answers until it is drained: the first at SIGTERM
    or Ctrl-C, the second, to skip draining, at Ctrl-C or the second signal."""
    stop, at_once = asyncio.Event(), asyncio.Event()

    def handle_signal(number: signal.Signals) -> None:
        if number == signal.SIGINT or stop.is_set():
            at_once.set()
        stop.set()

    for number in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, handle_signal, number)
    return stop, at_once


def ignore_stop_signals() -> None:
    """Ignore SIGTERM and Ctrl-C while this process ends. The default would return when the event
    loop closes, and end it with the exit code of the signal although its work is complete."""
    for number in STOP_SIGNALS:
        asyncio.get_running_loop().remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)


async def work_until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """Run `work` until it ends, or until SIGTERM or Ctrl-C, and measure the lag of its event loop.
    Raises what `work` raises."""
    measure_event_loop_lag()
    working = asyncio.create_task(work)
    stopping = asyncio.create_task(stop_signal())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        await cancel_tasks(working, stopping)


async def run_all(coroutines: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines concurrently. The first exception cancels the others and is raised.

    Raises `StateError` if a coroutine was cancelled without a request.
    """
    group = asyncio.TaskGroup()
    tasks: list[asyncio.Task[None]] = []
    failure: BaseException | None = None
    try:
        async with group:
            tasks += [group.create_task(coroutine) for coroutine in coroutines]
        # A client may raise the cancellation of its own tasks, which a task group ignores.
        if any(task.cancelled() for task in tasks):
            raise StateError("a task of a partition was cancelled without a request")
    except ExceptionGroup as failures:
        traceback.clear_frames(failures.__traceback__)
        failure = failures.exceptions[0]  # as good as any
    except asyncio.CancelledError as error:
        traceback.clear_frames(error.__traceback__)
        raise
    finally:
        # Exceptions refer by their tracebacks to this frame and to those of the task group, which
        # refer to the exceptions: what tasks held would stay until Python collects garbage.
        del group, tasks
    if failure is not None:
        try:
            raise failure
        finally:
            del failure


async def run_within(seconds: float, coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of `coroutine`; raise `TimeoutError` (an OSError) after `seconds`.

    A client that is stopped while its broker is away may raise the cancellation of its own tasks.
    That raises `ConnectionError`, so that it does not look like a cancellation of the caller.
    """
    task = asyncio.create_task(coroutine)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    finally:
        task.cancel()
    if not done:
        task.add_done_callback(lambda late: late.cancelled() or late.exception())
        raise TimeoutError(f"no answer within {seconds:g} s")
    if task.cancelled():
        raise ConnectionError("the client cancelled its own request")
    return task.result()


async def next_within(items: AsyncIterator[T], clock: Clock, seconds: float) -> T | None:
    """Return the next item, or None after `seconds`; `items` must not be used after that."""
    taking: asyncio.Future[T] = asyncio.ensure_future(anext(items))
    pause = asyncio.create_task(clock.sleep(seconds))
    try:
        await asyncio.wait((taking, pause), return_when=asyncio.FIRST_COMPLETED)
        return taking.result() if taking.done() else None
    finally:
        await cancel_tasks(taking, pause)
