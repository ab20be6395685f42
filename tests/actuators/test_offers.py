"""A Node has what is wanted of it by one write, whatever comes in between; in a fake API server."""

import asyncio
from typing import Any, cast

import msgspec
import pytest

from actuators.cluster.cooled_nodes import COOLED
from actuators.cluster.offer_writer import OFFERED, RECOMMENDED, Mode, Offers
from actuators.cluster.write_queue import Budget, Write, Writer
from pipeline.clock import ManualClock
from pipeline.errors import ApiRefusedError, ApiUnavailableError
from pipeline.kube.api_client import Api
from pipeline.processors.kubernetes.object_records import ORIGIN, node_record
from pipeline.processors.overcommit.status_patch import WRITTEN
from pipeline.processors.overcommit.third_party import TAKEN
from pipeline.times import format_time
from pipeline.topics.actions import ActionRecord
from pipeline.topics.node_resources import NodeResourcesRecord
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.overcommit_terms import Overcommit
from pipeline.topics.resource_amounts import Resources
from tests.actuators.fake_api import Asked, FakeApi


def worked_out(cpu: int, at: float) -> NodeResourcesRecord:
    some = Resources(cpu_millicores=cpu, memory_bytes=2**30)
    return NodeResourcesRecord(
        node="n", as_of=format_time(at), generation=1, offset=round(at), epoch=1,
        strategy=Overcommit(), predictor="p90", mid=some, mid_lower_bound=some, batch=some,
    )  # fmt: skip


class World:
    """One Node, `n`, and what an actuator does to it."""

    def __init__(self, mode: Mode = "act", *, known: bool = True) -> None:
        self.clock = ManualClock()
        self.api = FakeApi(self.clock)
        self.told: list[ActionRecord] = []
        self.writer = Writer(Budget(20.0, self.clock), self.clock, lambda: True)
        self.offers = Offers(cast(Api, self.api), mode, self.writer, self.clock, self.told.append)
        made = format_time(self.clock.now() - 86_400)
        self.see(metadata={"creationTimestamp": made}, status={})
        if known:
            self.offers.learn_node("n", NodeRecord(node="n", overcommit=Overcommit()))
            self.learn(1000)

    def see(self, **parts: Any) -> None:
        self.offers.see(self.api.put("n", **parts))

    def learn(self, cpu: int, age: float = 0.0) -> None:
        self.offers.learn_resources("n", worked_out(cpu, self.clock.now() - age))

    async def settle(self, seconds: float = 2.0, *, sweep: bool = False) -> list[Asked]:
        """Decide and write for a while; gives what was asked for."""
        task = asyncio.create_task(self.writer.run())
        for _ in range(round(seconds / 0.2)):
            self.offers.decide(everything=sweep)
            await self.clock.advance(0.2)
        task.cancel()
        asked, self.api.asked = self.api.asked, []
        return asked

    @property
    def cpu(self) -> Any:
        """What the Node has of Mid's CPU."""
        return self.api.objects["n"]["status"].get("allocatable", {}).get("kubernetes.io/mid-cpu")

    @property
    def annotations(self) -> dict[str, str]:
        found: dict[str, str] = self.api.objects["n"]["metadata"].get("annotations", {})
        return found

    def outcomes(self) -> list[tuple[str, str]]:
        told = [(one.action, one.outcome) for one in self.told]
        self.told.clear()
        return told


def methods(asked: list[Asked]) -> list[str]:
    return [one.method for one in asked]


async def test_what_is_decided_again_while_a_write_is_under_way_is_written_once() -> None:
    world = World()
    world.api.seconds = 0.5
    assert methods(await world.settle(sweep=True)) == ["PATCH"]
    assert (world.cpu, world.outcomes()) == ("1000", [("offer", "done")])


async def test_a_list_that_is_older_than_our_write_is_not_believed() -> None:
    world = World()
    old = msgspec.json.encode(world.api.objects["n"])
    await world.settle()
    world.offers.begin()
    world.offers.see(old)
    world.offers.complete()
    assert await world.settle(sweep=True) == []
    # Much later an older version is a server that was put back, and what it says is so.
    await world.clock.advance(61.0)
    world.offers.see(old)
    assert methods(await world.settle(sweep=True)) == ["PATCH"]


async def test_who_loses_the_mark_gets_it_again_so_that_it_can_be_undone() -> None:
    world = World()
    await world.settle()
    world.see(metadata={"annotations": {}})
    assert methods(await world.settle()) == ["PATCH"]
    assert OFFERED in world.annotations
    await world.clock.advance(1000.0)
    await world.settle(sweep=True)
    assert (world.cpu, world.annotations) == (None, {})


async def test_of_a_node_that_nobody_speaks_of_ours_goes_and_others_stay() -> None:
    world = World(known=False)
    have = {"allocatable": dict.fromkeys(WRITTEN, "5") | {"cpu": "8"}}
    world.see(status=have)
    assert await world.settle(sweep=True) == []
    world.see(metadata={"annotations": {OFFERED: "x"}})
    await world.settle(sweep=True)
    assert world.api.objects["n"]["status"]["allocatable"] == {"cpu": "8"}


async def test_what_was_worked_out_before_a_node_was_made_is_another_machines() -> None:
    world = World()
    made = format_time(world.clock.now() + 10.0)
    world.see(metadata={"uid": "anew", "creationTimestamp": made})
    assert await world.settle(sweep=True) == []
    await world.clock.advance(30.0)
    world.learn(700)
    await world.settle()
    assert world.cpu == "700"


async def test_a_withdrawal_is_told_of_also_where_the_watch_is_faster_than_the_answer() -> None:
    world = World()
    await world.settle()
    world.told.clear()
    answer = world.api.request

    async def slower(method: str, path: str, **more: Any) -> bytes:
        found = await answer(method, path, **more)
        if method == "PATCH":
            world.offers.see(found)
        return found

    world.api.request = slower  # type: ignore[method-assign]
    await world.clock.advance(1000.0)
    asked = await world.settle(sweep=True)
    assert methods(asked) == ["PATCH", "POST"]
    (told,) = world.told
    assert told.before["kubernetes.io/mid-cpu"] == "1000"
    assert told.after["kubernetes.io/mid-cpu"] is None


@pytest.mark.parametrize(("mode", "count"), [("act", 0), ("recommend", 1), ("observe", 1)])
async def test_what_another_mode_left_is_counted(mode: Mode, count: int) -> None:
    world = World(mode)
    assert world.offers.left_over() == 0
    world.see(metadata={"annotations": {OFFERED: "x"}})
    assert world.offers.left_over() == count


async def test_what_is_stale_is_withdrawn_with_an_event() -> None:
    world = World()
    await world.settle()
    await world.clock.advance(1000.0)
    asked = await world.settle(sweep=True)
    assert methods(asked) == ["PATCH", "POST"]
    assert (asked[1].body["reason"], asked[1].body["type"]) == ("OfferWithdrawn", "Warning")
    assert "stale" in asked[1].body["message"]
    assert world.cpu is None


async def test_an_annotation_that_cannot_be_read_is_told_once() -> None:
    world = World()
    world.see(metadata={"annotations": {TAKEN: "{"}})
    asked = await world.settle(10.0, sweep=True)
    assert sorted(methods(asked)) == ["PATCH", "POST"]
    (event,) = (one.body for one in asked if one.method == "POST")
    assert event["reason"] == "AnnotationProblem"
    assert TAKEN in event["message"]


async def test_what_third_parties_go_by_follows_where_they_have_it_all() -> None:
    world = World()
    party = {"priority": "koord-batch", "resources": {"kubernetes.io/batch-cpu": "9000"}}
    text = msgspec.json.encode({"allocations": [party]}).decode()
    world.see(metadata={"annotations": {TAKEN: text}})
    await world.settle()
    await world.clock.advance(10.0)
    world.learn(400)
    await world.settle()
    assert '"kubernetes.io/batch-cpu":"400"' in world.annotations[ORIGIN]


@pytest.mark.parametrize("mode", ["observe", "recommend"])
async def test_another_mode_takes_back_what_acting_wrote_and_says_so(mode: Mode) -> None:
    world = World(mode)
    marks = {OFFERED: "x", ORIGIN: "{}", COOLED: "y", "theirs": "z"}
    have = dict.fromkeys(WRITTEN, "5")
    world.see(metadata={"annotations": marks}, status={"allocatable": have})
    await world.settle()
    assert world.cpu is None
    assert world.annotations.keys() - {RECOMMENDED} == {"theirs"}
    (undone,) = (one for one in world.told if one.action == "undo")
    assert undone.outcome == "done"
    assert undone.before == have
    assert undone.after == dict.fromkeys(WRITTEN)


def test_of_our_notes_on_a_node_its_record_says_that_it_offers_and_nothing_else() -> None:
    notes = dict.fromkeys([OFFERED, RECOMMENDED, COOLED, ORIGIN], "2026-01-01T00:00:00Z")
    found = node_record({"metadata": {"name": "n", "annotations": notes | {TAKEN: "{}"}}})
    assert found.annotations == {OFFERED: "", TAKEN: "{}"}


async def test_a_node_that_only_cooled_is_left_without_a_trace_of_it() -> None:
    world = World("observe")
    world.see(metadata={"annotations": {COOLED: "y"}})
    await world.settle()
    assert world.annotations == {}


async def test_observing_writes_nothing_and_tells_once() -> None:
    world = World("observe")
    assert await world.settle(20.0, sweep=True) == []
    assert world.outcomes() == [("offer", "observed")]


async def test_recommending_writes_one_annotation_once() -> None:
    world = World("recommend")
    assert methods(await world.settle(20.0, sweep=True)) == ["PATCH"]
    assert (world.cpu, list(world.annotations)) == (None, [RECOMMENDED])


async def test_of_a_write_without_an_answer_the_node_is_asked_first() -> None:
    world = World()
    world.api.failures["PATCH"] = ApiUnavailableError("nobody knows")
    assert methods(await world.settle(0.4)) == ["PATCH"]
    del world.api.failures["PATCH"]
    assert methods(await world.settle(5.0)) == ["GET", "PATCH"]
    assert world.outcomes() == [("offer", "failed"), ("offer", "done")]


@pytest.mark.parametrize("answer", [b"<html>busy</html>", b"{}", b"", b"\xff"])
async def test_an_answer_that_is_no_node_is_none(answer: bytes) -> None:
    world = World()
    world.api.answers = {"PATCH": answer, "GET": answer}
    assert methods(await world.settle(3.0))[:2] == ["PATCH", "GET"]
    world.api.answers = {}
    assert methods(await world.settle(60.0)) == ["GET"]
    assert world.outcomes()[0] == ("offer", "failed")
    assert world.cpu == "1000"


async def test_a_node_that_is_refused_is_not_asked_for_at_every_tick() -> None:
    world = World()
    world.api.failures["PATCH"] = ApiRefusedError("422")
    asked = await world.settle(60.0, sweep=True)
    assert len(asked) < 20


async def test_a_node_that_goes_while_it_waits_is_not_asked_for() -> None:
    world = World()
    world.offers.decide()
    world.offers.gone("n")
    assert await world.settle() == []


@pytest.mark.parametrize("how", ["off", "less", "observe"])
async def test_what_takes_away_is_written_before_all_that_waits(how: str) -> None:
    world = World()
    await world.settle()
    if how == "off":
        world.offers.learn_node("n", NodeRecord(node="n"))
    elif how == "less":
        await world.clock.advance(10.0)
        world.learn(500)
    else:
        world = World("observe")
        world.see(
            metadata={"annotations": {OFFERED: "x"}}, status={"allocatable": {WRITTEN[2]: "5"}}
        )

    async def other() -> None:
        await world.api.request("PATCH", "/api/v1/nodes/other/status", body={})

    for number in range(100):
        world.writer.put("offer", f"other-{number}", Write(other, lambda _: None))
    world.offers.decide()
    world.api.put("other")
    asked = await world.settle()
    assert asked[0].path == "/api/v1/nodes/n/status"
    assert len(asked) > 20
