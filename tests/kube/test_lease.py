"""At most one process leads, whatever clocks and failures. The server is a Lease in memory with
versions, on a manual clock."""

import asyncio
import copy
import gc
import random
import weakref
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.clock import ManualClock
from pipeline.errors import (
    ApiUnavailableError,
    ConflictError,
    ForbiddenError,
    GoneError,
    KubernetesError,
    NotFoundError,
)
from pipeline.kube.lease import Lease, format_micros
from pipeline.tasks import cancel_tasks

RENEW_WITHIN, DURATION = 10.0, 15.0


class Store:
    """The Lease on the server."""

    def __init__(self) -> None:
        self.lease: Any = None
        self.has_namespace = True
        self._version = 0

    def put(self, body: Any) -> Any:
        self._version += 1
        self.lease = copy.deepcopy(body)
        self.lease["metadata"]["resourceVersion"] = str(self._version)
        return copy.deepcopy(self.lease)


class Client:
    """A client of the server whose connection may be cut, slow, or lose answers."""

    def __init__(self, store: Store, clock: ManualClock, rng: random.Random) -> None:
        self.clock, self.rng = clock, rng
        self._store = store
        self.failure: KubernetesError | None = None
        self.loses_answers = False
        self.seconds = self.answers_after = 0.0

    async def _go(self) -> None:
        if self.seconds:
            await self.clock.sleep(self.seconds)
        if self.failure is not None:
            raise self.failure

    async def get(self, path: str) -> Any:
        await self._go()
        if self._store.lease is None:
            raise NotFoundError(path)
        return copy.deepcopy(self._store.lease)

    async def create(self, path: str, body: Any) -> Any:
        await self._go()
        if self._store.lease is not None:
            raise ConflictError(path)
        if not self._store.has_namespace:
            raise NotFoundError('namespaces "ours" not found')
        return self._store.put(body)

    async def replace(self, path: str, body: Any) -> Any:
        await self._go()
        if body["metadata"]["resourceVersion"] != self._store.lease["metadata"]["resourceVersion"]:
            raise ConflictError(path)
        stored = self._store.put(body)
        await self.clock.sleep(self.answers_after)
        if self.loses_answers:
            raise ApiUnavailableError(path)
        return stored


class Contender:
    """A process that may lead, and whether it works."""

    def __init__(self, name: str, store: Store, clock: ManualClock, seed: int = 0) -> None:
        self.name = name
        self.client = Client(store, clock, random.Random(seed))
        self.lease = Lease(self.client, "ours", "try", name)  # type: ignore[arg-type]
        self.works = False
        self.turns = 0
        self.task = asyncio.create_task(self.lease.lead(self._work))

    async def _work(self) -> None:
        self.works = True
        self.turns += 1
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.works = False


async def leader_and_standby() -> tuple[Contender, Contender, ManualClock, Store]:
    """The first leads, the second stands by."""
    store, clock = Store(), ManualClock()
    first = Contender("first", store, clock, 1)
    await clock.advance(1.0)
    second = Contender("second", store, clock, 2)
    await clock.advance(30.0)
    assert (first.works, second.works) == (True, False)
    return first, second, clock, store


async def test_without_its_namespace_the_error_says_how_to_create_it() -> None:
    store = Store()
    store.has_namespace = False
    contender = Contender("first", store, ManualClock())
    with pytest.raises(NotFoundError, match="kubectl create namespace ours"):
        await contender.task


async def test_a_process_leads_while_it_renews() -> None:
    first, second, clock, store = await leader_and_standby()
    await clock.advance(300.0)
    assert (first.turns, second.turns) == (1, 0)
    spec = store.lease["spec"]
    assert (spec["leaseTransitions"], spec["leaseDurationSeconds"]) == (1, 15)
    await cancel_tasks(first.task, second.task)


async def test_a_lost_lease_frees_what_the_work_left_in_cycles() -> None:
    class Cycle:
        def __init__(self) -> None:
            self.me = self

    left: list[weakref.ref[Cycle]] = []

    async def work() -> None:
        left.append(weakref.ref(Cycle()))
        await asyncio.get_running_loop().create_future()

    clock = ManualClock()
    client = Client(Store(), clock, random.Random(1))
    lease = Lease(client, "ours", "try", "first")  # type: ignore[arg-type]
    gc.disable()
    try:
        task = asyncio.create_task(lease.lead(work))
        await clock.advance(1.0)
        assert left[0]() is not None
        client.failure = ApiUnavailableError("cut")
        await clock.advance(RENEW_WITHIN)
        assert left[0]() is None
    finally:
        gc.enable()
        await cancel_tasks(task)


async def test_a_disconnected_leader_stops_before_the_next_leads() -> None:
    first, second, clock, _ = await leader_and_standby()
    first.client.failure = ApiUnavailableError("cut")
    await clock.advance(RENEW_WITHIN)
    assert (first.works, second.works) == (False, False)
    await clock.advance(DURATION + 3.0 - RENEW_WITHIN)
    assert second.works
    # After the reconnection it stands by.
    first.client.failure = None
    await clock.advance(60.0)
    assert (first.works, second.works) == (False, True)
    await cancel_tasks(first.task, second.task)


async def test_a_late_answer_does_not_extend_the_lease() -> None:
    first, second, clock, _ = await leader_and_standby()
    first.client.seconds = RENEW_WITHIN - 1.0
    await clock.advance(RENEW_WITHIN + 2.0)
    assert not first.works
    await cancel_tasks(first.task, second.task)


async def test_a_clean_end_lets_the_next_lead_at_once() -> None:
    first, second, clock, store = await leader_and_standby()
    await cancel_tasks(first.task)
    assert store.lease["spec"]["holderIdentity"] == ""
    await clock.advance(3.0)
    assert second.works
    await cancel_tasks(second.task)


async def test_stopping_without_a_server_is_no_error() -> None:
    first, second, clock, _ = await leader_and_standby()
    first.client.failure = ApiUnavailableError("cut")
    await cancel_tasks(first.task)
    await clock.advance(DURATION + 3.0)
    assert second.works
    await cancel_tasks(second.task)


async def test_wall_clocks_do_not_matter() -> None:
    first, second, clock, _ = await leader_and_standby()
    for seconds in (86_400.0, -172_800.0):
        clock.jump(seconds)
        await clock.advance(60.0)
        assert (first.works, second.works) == (True, False)
    await cancel_tasks(first.task, second.task)


async def test_a_leader_that_was_suspended_does_not_hold_its_lease() -> None:
    """Its timers have not noticed the suspension, the other machine has."""
    first, second, clock, _ = await leader_and_standby()
    clock.suspend(RENEW_WITHIN)
    assert not first.lease.is_held
    await clock.advance(3.0)
    # Nobody else has taken the lease, so it is renewed.
    assert (first.lease.is_held, second.lease.is_held) == (True, False)
    assert first.turns == 2
    await cancel_tasks(first.task, second.task)


async def test_a_lease_changed_by_another_process_is_respected() -> None:
    first, second, clock, store = await leader_and_standby()
    store.lease["spec"]["holderIdentity"] = "third"
    store.put(store.lease)
    await clock.advance(3.0)
    assert (first.works, second.works) == (False, False)
    # The third process never renews.
    await clock.advance(DURATION + 3.0)
    assert first.works != second.works
    await cancel_tasks(first.task, second.task)


@pytest.mark.parametrize("spec", [None, {}, {"holderIdentity": None, "leaseTransitions": None}])
async def test_a_lease_created_by_hand_is_taken(spec: Any) -> None:
    store, clock = Store(), ManualClock()
    store.put({"metadata": {"name": "try", "labels": {"theirs": "yes"}}, "spec": spec})
    contender = Contender("first", store, clock)
    await clock.advance(1.0)
    assert contender.works
    assert store.lease["metadata"]["labels"] == {"theirs": "yes"}
    await cancel_tasks(contender.task)


async def test_a_refusal_is_raised_at_first_and_retried_later() -> None:
    store, clock = Store(), ManualClock()
    contender = Contender("first", store, clock)
    contender.client.failure = ForbiddenError("no")
    await clock.advance(1.0)
    with pytest.raises(ForbiddenError):
        await contender.task
    contender = Contender("first", store, clock)
    await clock.advance(1.0)
    contender.client.failure = ForbiddenError("not yet")
    await clock.advance(5.0)
    assert contender.works
    await clock.advance(10.0)
    assert not contender.works
    contender.client.failure = None
    await clock.advance(5.0)
    assert contender.works
    await cancel_tasks(contender.task)


@pytest.mark.parametrize("error", [ApiUnavailableError("500"), GoneError("410")])
async def test_an_unavailable_server_is_retried_from_the_start(error: KubernetesError) -> None:
    clock = ManualClock()
    contender = Contender("first", Store(), clock)
    contender.client.failure = error
    await clock.advance(60.0)
    contender.client.failure = None
    await clock.advance(5.0)
    assert contender.works
    await cancel_tasks(contender.task)


async def test_a_standby_logs_the_leader_or_that_it_is_unknown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    first, second, clock, _ = await leader_and_standby()
    assert "first leads; standing by" in caplog.text
    second.client.failure = ApiUnavailableError("away")
    await clock.advance(5.0)
    assert "leader unknown" in caplog.text
    await cancel_tasks(first.task, second.task)


async def test_exceptions_of_the_work_are_raised_and_the_lease_released() -> None:
    store, clock = Store(), ManualClock()

    async def fails() -> None:
        raise ValueError("so")

    client = Client(store, clock, random.Random(0))
    lease = Lease(client, "ours", "try", "one")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="so"):
        await lease.lead(fails)
    assert store.lease["spec"]["holderIdentity"] == ""
    assert not lease.is_held


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32), count=st.integers(2, 4))
def test_two_processes_never_lead_at_once_whatever_fails(seed: int, count: int) -> None:
    async def run() -> None:
        rng, store, clock = random.Random(seed), Store(), ManualClock()
        contenders = [Contender(str(i), store, clock, seed + i) for i in range(count)]
        try:
            for _ in range(120):
                contender = rng.choice(contenders)
                contender.client.failure = (
                    ApiUnavailableError("cut") if rng.random() < 0.4 else None
                )
                contender.client.loses_answers = rng.random() < 0.2
                contender.client.seconds = rng.choice([0.0, 0.0, 0.5, 4.0, 12.0])
                contender.client.answers_after = rng.choice([0.0, 0.0, 7.0])
                if rng.random() < 0.1:
                    clock.jump(rng.uniform(-1e5, 1e5))
                for _ in range(rng.randrange(8)):
                    await clock.advance(0.7)
                    assert [contender.works for contender in contenders].count(True) <= 1
        finally:
            for contender in contenders:
                contender.client.failure, contender.client.loses_answers = None, False
                contender.client.seconds = contender.client.answers_after = 0.0
            await clock.advance(2 * DURATION)
            last = [contender.works for contender in contenders].count(True)
            await cancel_tasks(*(contender.task for contender in contenders))
        assert last == 1

    # Each of thousands of terms would collect the garbage of the whole test process.
    with patch("gc.collect"):
        asyncio.run(run())


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "1970-01-01T00:00:00.000000Z"), (1_700_000_000.999999, "2023-11-14T22:13:20.999999Z")],
)
def test_micro_times_have_six_digits(seconds: float, text: str) -> None:
    assert format_micros(seconds) == text
