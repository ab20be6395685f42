"""Taking partitions and letting them go, with a fake Faust app."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from faust.types import TP

from pipeline.agents.worker import Holder
from pipeline.clock import ManualClock
from pipeline.errors import StateError
from pipeline.settings import Settings


def holder(*assigned: tuple[str, int]) -> Holder:
    """A holder to which these (topic, partition) are assigned."""
    app: Any = SimpleNamespace(
        consumer_generation_id=1,
        consumer=SimpleNamespace(
            assignment=lambda: {TP(f"springtide.{t}", p) for t, p in assigned}
        ),
    )
    return Holder(app, Settings(), ManualClock())


def loads_by(it: Holder, load: Any) -> None:
    it._load = load  # type: ignore[method-assign]


async def test_a_load_that_a_revocation_cuts_off_is_no_error() -> None:
    it, begun = holder(("samples", 1)), asyncio.Event()

    async def load(partitions: set[int], generation: int) -> None:
        begun.set()
        await asyncio.sleep(60)

    loads_by(it, load)
    taking = asyncio.create_task(it.take())
    await begun.wait()
    await it.release()
    await taking
    assert (it.joins, it.models) == ({}, {})


async def test_a_load_that_nobody_cut_off_and_yet_is_cancelled_ends_the_worker() -> None:
    """A library that lets a cancellation of its own escape: the worker would hold nothing, say
    that it is ready, and nobody would restart it."""
    it = holder(("samples", 1))

    async def load(partitions: set[int], generation: int) -> None:
        raise asyncio.CancelledError

    loads_by(it, load)
    with pytest.raises(StateError, match=r"loading partitions \[1\] was cut off"):
        await it.take()


async def test_a_load_that_fails_ends_the_worker() -> None:
    it = holder(("samples", 1))

    async def load(partitions: set[int], generation: int) -> None:
        raise ConnectionError("no broker")

    loads_by(it, load)
    with pytest.raises(ConnectionError):
        await it.take()


async def test_whoever_stops_the_worker_stops_its_loading() -> None:
    it, begun = holder(("samples", 1)), asyncio.Event()

    async def load(partitions: set[int], generation: int) -> None:
        begun.set()
        await asyncio.sleep(60)

    loads_by(it, load)
    taking = asyncio.create_task(it.take())
    await begun.wait()
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking


async def test_the_partitions_of_samples_are_what_is_held() -> None:
    it, held = holder(("samples", 1), ("samples", 2), ("others", 3)), set[int]()

    async def load(partitions: set[int], generation: int) -> None:
        held.update(partitions)

    loads_by(it, load)
    await it.take()
    assert held == {1, 2}


@pytest.mark.parametrize("asked", [True, False])
async def test_a_task_that_is_cut_off_ends_the_worker_unless_it_was_let_go(asked: bool) -> None:
    it, crashes = holder(("samples", 1)), list[BaseException]()
    app: Any = it._app
    app.crash, app.add_future = crashes.append, lambda _: None

    async def work() -> None:
        await asyncio.sleep(60)

    it._run(work())
    (task,) = it._tasks
    await asyncio.sleep(0)
    if asked:
        await it.release()
    else:
        task.cancel()
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert [type(error) for error in crashes] == ([] if asked else [StateError])
