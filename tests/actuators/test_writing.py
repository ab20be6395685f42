"""What is due is written within the budget, each feature in its turn; nothing keeps the rest."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actuators.cluster.write_queue import Budget, Write, Writer
from pipeline.clock import ManualClock
from pipeline.errors import (
    ApiRefusedError,
    ApiUnavailableError,
    ConflictError,
    ForbiddenError,
    KubernetesError,
)


class World:
    """What was asked of an API server that is not there, and when; `answers` say how it fails."""

    def __init__(self, per_second: float = 10.0) -> None:
        self.clock = ManualClock()
        self.leads = True
        self.writer = Writer(Budget(per_second, self.clock), self.clock, lambda: self.leads)
        self.asked: list[tuple[float, str]] = []
        self.failed: list[str] = []
        self.answers: dict[str, KubernetesError] = {}

    def put(
        self, what: str, key: str, says: str = "", *, again: bool = False, takes: bool = False
    ) -> None:
        def failed(error: KubernetesError) -> None:
            self.failed.append(key)
            if again:
                self.put(what, key, says, again=True, takes=takes)

        self.writer.put(what, key, Write(self._do(says or key), failed), takes_away=takes)

    def _do(self, text: str) -> Callable[[], Awaitable[None]]:
        async def do() -> None:
            self.asked.append((self.clock.monotonic(), text))
            if text in self.answers:
                raise self.answers[text]

        return do

    @property
    def texts(self) -> list[str]:
        return [text for _, text in self.asked]


@asynccontextmanager
async def writing(world: World) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(world.writer.run())
    await asyncio.sleep(0)
    yield task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_feature_with_much_to_write_does_not_keep_another() -> None:
    world = World()
    for number in range(50):
        world.put("offer", f"node-{number}")
    world.put("NodeSLO", "rules")
    async with writing(world):
        await world.clock.advance(0.2)
    assert world.texts[:3] == ["node-0", "rules", "node-1"]


async def test_who_is_asked_for_again_keeps_its_place_and_who_is_dropped_loses_it() -> None:
    world = World()
    for key in "abc":
        world.put("offer", key, f"old {key}")
    world.put("offer", "a", "new a")
    world.writer.drop("offer", "b")
    async with writing(world):
        await world.clock.advance(1.0)
    assert world.texts == ["new a", "old c"]


async def test_what_takes_away_waits_for_nothing_but_others_that_do() -> None:
    """With 20 a second the last of 5,000 that waited behind refreshes was written after 500 s."""
    world = World(20.0)
    for number in range(5000):
        world.put("offer", f"node-{number}")
        world.put("NodeMetric status", f"node-{number}", "report")
    world.put("offer", "node-4999", "take", takes=True)
    async with writing(world):
        await world.clock.advance(0.2)
    assert world.texts[0] == "take"


async def test_of_ten_writes_one_is_for_those_that_take_nothing_away() -> None:
    world = World()
    for number in range(100):
        world.put("offer", f"take-{number}", takes=True)
        world.put("offer", f"give-{number}")
        world.put("NodeSLO", f"rules-{number}")
    async with writing(world):
        await world.clock.advance(11.5)
        rest = [(at, text) for at, text in enumerate(world.texts) if not text.startswith("take")]
        assert rest[:4] == [(9, "give-0"), (19, "rules-0"), (29, "give-1"), (39, "rules-1")]
        assert sum(text.startswith("take") for text in world.texts) == 100
        await world.clock.advance(20.0)
    assert len(world.texts) == 300


async def test_what_takes_nothing_away_any_more_is_not_first_any_more() -> None:
    world = World()
    for key in ("a", "b"):
        world.put("offer", key)
    world.put("offer", "b", takes=True)
    world.put("offer", "b", "gives again")
    world.put("offer", "c", takes=True)
    world.writer.drop("offer", "c")
    async with writing(world):
        await world.clock.advance(1.0)
    assert world.texts == ["a", "gives again"]


async def test_what_takes_away_and_is_refused_keeps_nobody() -> None:
    world = World()
    world.answers["bad"] = ApiRefusedError("no")
    world.answers["secret"] = ForbiddenError("no")
    world.put("offer", "bad", again=True, takes=True)
    world.put("hidden", "secret", again=True, takes=True)
    world.put("offer", "good", takes=True)
    async with writing(world):
        await world.clock.advance(0.35)
        world.put("NodeSLO", "rules")
        await world.clock.advance(1.2)
    assert [text for text in world.texts if text != "bad"] == ["secret", "good", "rules"]


@given(st.floats(0.5, 200), st.lists(st.floats(0, 0.5), max_size=30))
def test_no_two_writes_are_nearer_than_the_budget_has_it(
    per_second: float, pauses: list[float]
) -> None:
    async def run() -> World:
        world = World(per_second)
        async with writing(world):
            for number, pause in enumerate(pauses):
                world.put("offer", str(number))
                await world.clock.advance(pause)
            await world.clock.advance(len(pauses) / per_second + 1)
        return world

    world = asyncio.run(run())
    times = [at for at, _ in world.asked]
    assert len(times) == len(pauses)
    near = [b - a for a, b in pairwise(times)]
    assert all(gap >= 1 / per_second - 1e-9 for gap in near)


async def test_what_is_refused_rests_longer_each_time_and_keeps_nobody() -> None:
    world = World()
    world.answers["bad"] = ApiRefusedError("no")
    world.put("offer", "bad", again=True)
    async with writing(world):
        await world.clock.advance(5.0)
        for number in range(20):
            world.put("offer", f"good-{number}")
        await world.clock.advance(300.0)
        tried = [at for at, text in world.asked if text == "bad"]
        gaps = [b - a for a, b in pairwise(tried)]
        assert all(b >= a for a, b in pairwise(gaps))
        assert gaps[0] < 2
        assert 59 < gaps[-1] < 62
        assert sum(text.startswith("good") for text in world.texts) == 20

        del world.answers["bad"]
        await world.clock.advance(62.0)
        assert world.failed.count("bad") == len(tried)
        assert world.texts[-1] == "bad"


async def test_what_was_done_or_dropped_has_not_to_rest() -> None:
    world = World()
    world.answers["x"] = ConflictError("overtaken")
    world.put("offer", "x")
    async with writing(world):
        await world.clock.advance(0.2)
        world.writer.drop("offer", "x")
        world.put("offer", "x", "y")
        await world.clock.advance(0.2)
    assert world.texts == ["x", "y"]


async def test_without_permission_a_feature_waits_and_others_go_on() -> None:
    world = World()
    world.answers["secret"] = ForbiddenError("no")
    world.put("NodeMetric", "secret", again=True)
    async with writing(world):
        await world.clock.advance(1.0)
        world.put("offer", "a")
        await world.clock.advance(58.0)
        assert world.texts == ["secret", "a"]
        await world.clock.advance(5.0)
    assert world.texts == ["secret", "a", "secret"]


async def test_while_the_server_is_away_it_is_asked_less_and_less() -> None:
    world = World()
    world.answers["a"] = ApiUnavailableError("away")
    world.put("offer", "a", again=True)
    async with writing(world):
        await world.clock.advance(120.0)
        assert len(world.asked) < 12
        del world.answers["a"]
        await world.clock.advance(31.0)
        world.put("offer", "b")
        await world.clock.advance(0.2)
    assert world.texts[-2:] == ["a", "b"]


async def test_who_does_not_lead_writes_nothing_and_goes_on_when_the_lease_is_renewed() -> None:
    world = World()
    world.leads = False
    world.put("offer", "a")
    async with writing(world):
        await world.clock.advance(1.0)
        assert world.asked == []
        world.leads = True
        await world.clock.advance(1.0)
    assert world.texts == ["a"]


@pytest.mark.parametrize(("seconds", "left_alone"), [(7.0, 7.0), (1e6, 30.0)])
async def test_the_server_says_how_long_to_leave_it_alone(
    seconds: float, left_alone: float
) -> None:
    world = World()
    world.answers["a"] = ApiUnavailableError("busy", retry_after_seconds=seconds)
    world.put("offer", "a", again=True)
    async with writing(world):
        await world.clock.advance(left_alone + 1)
    first, second = (at for at, _ in world.asked[:2])
    assert second - first == pytest.approx(left_alone, abs=0.2)
