"""Writes are rate-limited, withdrawals first, then round-robin; no write blocks the others."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actuators.cluster.write_queue import Write, WriteQueue
from actuators.rate_limit import RateLimit
from pipeline.clock import ManualClock
from pipeline.errors import (
    ApiRefusedError,
    ApiUnavailableError,
    ConflictError,
    ForbiddenError,
    KubernetesError,
)


class World:
    """A queue whose writes append to `requests`, or raise the error in `answers` for their text."""

    def __init__(self, per_second: float = 10.0) -> None:
        self.clock = ManualClock()
        self.leads = True
        self.queue = WriteQueue(RateLimit(per_second, self.clock), self.clock, lambda: self.leads)
        self.requests: list[tuple[float, str]] = []
        self.failed: list[str] = []
        self.answers: dict[str, KubernetesError] = {}

    def put(
        self,
        feature: str,
        key: str,
        text: str = "",
        *,
        retries: bool = False,
        withdraws: bool = False,
    ) -> None:
        def on_failure(error: KubernetesError) -> None:
            self.failed.append(key)
            if retries:
                self.put(feature, key, text, retries=True, withdraws=withdraws)

        async def execute() -> None:
            self.requests.append((self.clock.monotonic(), text or key))
            if (text or key) in self.answers:
                raise self.answers[text or key]

        self.queue.put(feature, key, Write(execute, on_failure), is_withdrawal=withdraws)

    @property
    def texts(self) -> list[str]:
        return [text for _, text in self.requests]


@asynccontextmanager
async def writing(world: World) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(world.queue.run())
    await asyncio.sleep(0)
    yield task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_feature_with_many_writes_does_not_delay_another() -> None:
    world = World()
    for number in range(50):
        world.put("offer", f"node-{number}")
    world.put("NodeSLO", "rules")
    async with writing(world):
        await world.clock.advance(0.2)
    assert world.texts[:3] == ["node-0", "rules", "node-1"]


async def test_a_replaced_write_keeps_its_place_and_a_discarded_write_loses_it() -> None:
    world = World()
    for key in "abc":
        world.put("offer", key, f"old {key}")
    world.put("offer", "a", "new a")
    world.queue.discard("offer", "b")
    async with writing(world):
        await world.clock.advance(1.0)
    assert world.texts == ["new a", "old c"]


async def test_a_write_is_unfinished_until_it_is_done() -> None:
    world = World()
    for key in "abc":
        world.put("offer", key, retries=key == "b")
    world.answers["b"] = ConflictError("b was changed meanwhile")
    assert world.queue.unfinished == 3
    async with writing(world):
        await world.clock.advance(0.45)
        assert world.queue.unfinished == 1  # b failed, and is queued again
        del world.answers["b"]
        await world.clock.advance(5.0)
        assert world.queue.unfinished == 0
    assert world.texts[-1] == "b"


async def test_a_withdrawal_waits_only_for_other_withdrawals() -> None:
    """Behind refreshes, the last of 5,000 withdrawals took 500 s at 20 writes a second."""
    world = World(20.0)
    for number in range(5000):
        world.put("offer", f"node-{number}")
        world.put("NodeMetric status", f"node-{number}", "report")
    world.put("offer", "node-4999", "withdraw", withdraws=True)
    async with writing(world):
        await world.clock.advance(0.2)
    assert world.texts[0] == "withdraw"


async def test_every_tenth_write_is_not_a_withdrawal() -> None:
    world = World()
    for number in range(100):
        world.put("offer", f"withdraw-{number}", withdraws=True)
        world.put("offer", f"give-{number}")
        world.put("NodeSLO", f"rules-{number}")
    async with writing(world):
        await world.clock.advance(11.5)
        texts = enumerate(world.texts)
        rest = [(index, text) for index, text in texts if not text.startswith("withdraw")]
        assert rest[:4] == [(9, "give-0"), (19, "rules-0"), (29, "give-1"), (39, "rules-1")]
        assert sum(text.startswith("withdraw") for text in world.texts) == 100
        await world.clock.advance(20.0)
    assert len(world.texts) == 300


async def test_a_replaced_withdrawal_loses_its_priority() -> None:
    world = World()
    for key in ("a", "b"):
        world.put("offer", key)
    world.put("offer", "b", withdraws=True)
    world.put("offer", "b", "gives again")
    world.put("offer", "c", withdraws=True)
    world.queue.discard("offer", "c")
    async with writing(world):
        await world.clock.advance(1.0)
    assert world.texts == ["a", "gives again"]


async def test_a_refused_withdrawal_delays_no_other_write() -> None:
    world = World()
    world.answers["bad"] = ApiRefusedError("no")
    world.answers["secret"] = ForbiddenError("no")
    world.put("offer", "bad", retries=True, withdraws=True)
    world.put("hidden", "secret", retries=True, withdraws=True)
    world.put("offer", "good", withdraws=True)
    async with writing(world):
        await world.clock.advance(0.35)
        world.put("NodeSLO", "rules")
        await world.clock.advance(1.2)
    assert [text for text in world.texts if text != "bad"] == ["secret", "good", "rules"]


@given(st.floats(0.5, 200), st.lists(st.floats(0, 0.5), max_size=30))
def test_writes_are_spaced_by_the_rate_limit(per_second: float, pauses: list[float]) -> None:
    async def run() -> World:
        world = World(per_second)
        async with writing(world):
            for number, pause in enumerate(pauses):
                world.put("offer", str(number))
                await world.clock.advance(pause)
            await world.clock.advance(len(pauses) / per_second + 1)
        return world

    world = asyncio.run(run())
    times = [seconds for seconds, _ in world.requests]
    assert len(times) == len(pauses)
    near = [b - a for a, b in pairwise(times)]
    assert all(gap >= 1 / per_second - 1e-9 for gap in near)


async def test_a_refused_write_backs_off_and_delays_no_other() -> None:
    world = World()
    world.answers["bad"] = ApiRefusedError("no")
    world.put("offer", "bad", retries=True)
    async with writing(world):
        await world.clock.advance(5.0)
        for number in range(20):
            world.put("offer", f"good-{number}")
        await world.clock.advance(300.0)
        tried = [seconds for seconds, text in world.requests if text == "bad"]
        gaps = [b - a for a, b in pairwise(tried)]
        assert gaps == sorted(gaps)
        assert gaps[0] < 2 < 59 < gaps[-1] < 62
        assert sum(text.startswith("good") for text in world.texts) == 20

        del world.answers["bad"]
        await world.clock.advance(62.0)
        assert (world.failed.count("bad"), world.texts[-1]) == (len(tried), "bad")


async def test_a_discarded_write_does_not_back_off() -> None:
    world = World()
    world.answers["x"] = ConflictError("overtaken")
    world.put("offer", "x")
    async with writing(world):
        await world.clock.advance(0.2)
        world.queue.discard("offer", "x")
        world.put("offer", "x", "y")
        await world.clock.advance(0.2)
    assert world.texts == ["x", "y"]


async def test_a_feature_without_permission_pauses_and_others_continue() -> None:
    world = World()
    world.answers["secret"] = ForbiddenError("no")
    world.put("NodeMetric", "secret", retries=True)
    async with writing(world):
        await world.clock.advance(1.0)
        world.put("offer", "a")
        await world.clock.advance(58.0)
        assert world.texts == ["secret", "a"]
        await world.clock.advance(5.0)
    assert world.texts == ["secret", "a", "secret"]


async def test_requests_become_rare_while_the_server_is_unavailable() -> None:
    world = World()
    world.answers["a"] = ApiUnavailableError("away")
    world.put("offer", "a", retries=True)
    async with writing(world):
        await world.clock.advance(120.0)
        assert len(world.requests) < 12
        del world.answers["a"]
        await world.clock.advance(31.0)
        world.put("offer", "b")
        await world.clock.advance(0.2)
    assert world.texts[-2:] == ["a", "b"]


@pytest.mark.parametrize("withdraws", [True, False])
async def test_writes_that_the_server_always_fails_delay_no_other(withdraws: bool) -> None:
    world = World()
    for key in ("bad", "worse"):
        world.answers[key] = ApiUnavailableError("500 failed calling webhook")
        world.put("offer", key, retries=True, withdraws=withdraws)
    async with writing(world):
        for number in range(50):
            world.put("NodeSLO", f"good-{number}")
            await world.clock.advance(0.5)
    assert sum(text.startswith("good") for text in world.texts) >= 49
    assert 8 < len(world.failed) < 20


async def test_nothing_is_written_without_the_lease() -> None:
    world = World()
    world.leads = False
    world.put("offer", "a")
    async with writing(world):
        await world.clock.advance(1.0)
        assert world.requests == []
        world.leads = True
        await world.clock.advance(1.0)
    assert world.texts == ["a"]


@pytest.mark.parametrize(("seconds", "pause"), [(7.0, 7.0), (1e6, 30.0)])
async def test_retry_after_is_respected_up_to_a_limit(seconds: float, pause: float) -> None:
    world = World()
    world.answers["a"] = ApiUnavailableError("busy", retry_after_seconds=seconds)
    world.put("offer", "a", retries=True)
    async with writing(world):
        await world.clock.advance(pause + 1)
    first, second = (seconds for seconds, _ in world.requests[:2])
    assert second - first == pytest.approx(pause, abs=0.2)


async def slow_writes(per_second: float, keys: list[str]) -> list[tuple[float, str]]:
    """Queue writes that take 50 ms each; return when each one started in the first second."""
    world, started = World(per_second), list[tuple[float, str]]()

    def write(key: str) -> Write:
        async def execute() -> None:
            started.append((world.clock.monotonic(), key))
            await world.clock.sleep(0.05)

        return Write(execute, lambda error: None)

    async with writing(world):
        for key in keys:
            world.queue.put("NodeMetric", key, write(key))
            # A newer write of a key whose write is under way.
            await world.clock.advance(0.001 if key == keys[-1] else 0.0)
            world.queue.put("NodeMetric", key, write(key))
        await world.clock.advance(1.0)
    return started


async def test_slow_writes_of_distinct_keys_overlap_if_the_limit_is_high() -> None:
    started = await slow_writes(300.0, [str(number) for number in range(400)])
    assert len(started) > 250


async def test_writes_of_one_key_never_overlap() -> None:
    (first, _), (second, _) = await slow_writes(300.0, ["only"])
    assert second - first >= 0.05


async def test_an_unexpected_error_of_a_write_ends_the_queue() -> None:
    async def execute() -> None:
        raise ZeroDivisionError

    world = World()
    world.queue.put("offer", "node", Write(execute, lambda error: None))
    async with writing(world) as task:
        await world.clock.advance(1.0)
        with pytest.raises(ZeroDivisionError):
            await task
