"""A Node gets its offer by one write, whatever happens in between; on a fake API server."""

import asyncio
from typing import Any

import msgspec
import pytest

from actuators.cluster.offer_writer import RECOMMENDED, Mode, OfferWriter
from actuators.cluster.write_queue import Write
from pipeline.clock import ManualClock
from pipeline.errors import ApiRefusedError, ApiUnavailableError
from pipeline.processors.kubernetes.object_records import OFFERED, ORIGIN
from pipeline.processors.overcommit.status_patch import WRITTEN
from pipeline.processors.overcommit.third_party import TAKEN
from pipeline.times import format_time
from pipeline.topics.actions import ActionRecord
from pipeline.topics.node_resources import NodeResourcesRecord
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.overcommit_policy import Overcommit
from pipeline.topics.registry import NODES, RESOURCES
from pipeline.topics.resource_amounts import Resources
from tests.actuators.contexts import make_context
from tests.actuators.fake_api import Asked, FakeApi


def computed(cpu: int, at: float) -> NodeResourcesRecord:
    some = Resources(cpu_millicores=cpu, memory_bytes=2**30)
    return NodeResourcesRecord(
        node="n", as_of=format_time(at), generation=1, offset=round(at), epoch=1,
        strategy=Overcommit(), predictor="p90", mid=some, mid_lower_bound=some, batch=some,
    )  # fmt: skip


class World:
    """One Node, `n`, and the feature that writes its offer."""

    def __init__(self, mode: Mode = "act", *, known: bool = True) -> None:
        self.clock = ManualClock()
        self.api = FakeApi(self.clock)
        self.reports: list[ActionRecord] = []
        context = make_context(self.clock, self.api, reports=self.reports, mode=mode)
        self.queue = context.queue
        self.offers = OfferWriter(context)
        created = format_time(self.clock.now() - 86_400)
        self.observe(metadata={"creationTimestamp": created}, status={})
        if known:
            self.learn_node(NodeRecord(node="n", overcommit=Overcommit()))
            self.learn(1000)

    def observe(self, **parts: Any) -> None:
        self.offers.observed(self.api.put("n", **parts))

    def learn_node(self, record: NodeRecord) -> None:
        self.offers.learn(NODES, "n", record)

    def learn(self, cpu: int, age: float = 0.0) -> None:
        self.offers.learn(RESOURCES, "n", computed(cpu, self.clock.now() - age))

    async def settle(self, seconds: float = 2.0, *, sweep: bool = False) -> list[Asked]:
        """Decide and write for a while; returns the requests."""
        task = asyncio.create_task(self.queue.run())
        for _ in range(round(seconds / 0.2)):
            self.offers.decide(everything=sweep)
            await self.clock.advance(0.2)
        task.cancel()
        asked, self.api.asked = self.api.asked, []
        return asked

    @property
    def cpu(self) -> Any:
        """Mid CPU that the Node offers."""
        return self.api.objects["n"]["status"].get("allocatable", {}).get("kubernetes.io/mid-cpu")

    @property
    def annotations(self) -> dict[str, str]:
        annotations: dict[str, str] = self.api.objects["n"]["metadata"].get("annotations", {})
        return annotations

    def outcomes(self) -> list[tuple[str, str]]:
        reports = [*self.reports]
        self.reports.clear()
        return [(report.action, report.outcome) for report in reports]


def methods(asked: list[Asked]) -> list[str]:
    return [one.method for one in asked]


async def test_a_decision_repeated_during_a_write_is_written_once() -> None:
    world = World()
    world.api.seconds = 0.5
    assert methods(await world.settle(sweep=True)) == ["PATCH"]
    assert (world.cpu, world.outcomes()) == ("1000", [("offer", "done")])


async def test_a_list_older_than_our_write_is_ignored() -> None:
    world = World()
    old = msgspec.json.encode(world.api.objects["n"])
    await world.settle()
    world.offers.list_started()
    world.offers.observed(old)
    world.offers.list_completed()
    assert await world.settle(sweep=True) == []
    # Much later an older version means that the server was restored from a backup.
    await world.clock.advance(61.0)
    world.offers.observed(old)
    assert methods(await world.settle(sweep=True)) == ["PATCH"]


async def test_a_lost_mark_is_restored_so_that_the_offer_can_be_undone() -> None:
    world = World()
    await world.settle()
    world.observe(metadata={"annotations": {}})
    assert methods(await world.settle()) == ["PATCH"]
    assert OFFERED in world.annotations
    await world.clock.advance(1000.0)
    await world.settle(sweep=True)
    assert (world.cpu, world.annotations) == (None, {})


async def test_an_unknown_node_loses_our_resources_and_keeps_foreign_ones() -> None:
    world = World(known=False)
    have = {"allocatable": dict.fromkeys(WRITTEN, "5") | {"cpu": "8"}}
    world.observe(status=have)
    assert await world.settle(sweep=True) == []
    world.observe(metadata={"annotations": {OFFERED: "x"}})
    await world.settle(sweep=True)
    assert world.api.objects["n"]["status"]["allocatable"] == {"cpu": "8"}


async def test_results_from_before_the_creation_of_a_node_do_not_apply() -> None:
    world = World()
    created = format_time(world.clock.now() + 10.0)
    world.observe(metadata={"uid": "recreated", "creationTimestamp": created})
    assert await world.settle(sweep=True) == []
    await world.clock.advance(30.0)
    world.learn(700)
    await world.settle()
    assert world.cpu == "700"


async def test_a_withdrawal_is_reported_also_if_the_watch_beats_the_answer() -> None:
    world = World()
    await world.settle()
    world.reports.clear()
    answer = world.api.request

    async def slower(method: str, path: str, **more: Any) -> bytes:
        found = await answer(method, path, **more)
        if method == "PATCH":
            world.offers.observed(found)
        return found

    world.api.request = slower  # type: ignore[method-assign]
    await world.clock.advance(1000.0)
    asked = await world.settle(sweep=True)
    assert methods(asked) == ["PATCH", "POST"]
    (report,) = world.reports
    assert report.before["kubernetes.io/mid-cpu"] == "1000"
    assert report.after["kubernetes.io/mid-cpu"] is None


@pytest.mark.parametrize(("mode", "count"), [("act", 0), ("recommend", 1), ("observe", 1)])
async def test_marks_of_another_mode_are_counted(mode: Mode, count: int) -> None:
    world = World(mode)
    assert world.offers.count_of_other_modes() == 0
    world.observe(metadata={"annotations": {OFFERED: "x"}})
    assert world.offers.count_of_other_modes() == count


async def test_a_stale_offer_is_withdrawn_with_an_event() -> None:
    world = World()
    await world.settle()
    await world.clock.advance(1000.0)
    asked = await world.settle(sweep=True)
    assert methods(asked) == ["PATCH", "POST"]
    assert (asked[1].body["reason"], asked[1].body["type"]) == ("OfferWithdrawn", "Warning")
    assert "stale" in asked[1].body["message"]
    assert world.cpu is None


async def test_an_invalid_annotation_is_reported_once() -> None:
    world = World()
    world.observe(metadata={"annotations": {TAKEN: "{"}})
    asked = await world.settle(10.0, sweep=True)
    assert sorted(methods(asked)) == ["PATCH", "POST"]
    (event,) = (one.body for one in asked if one.method == "POST")
    assert event["reason"] == "AnnotationProblem"
    assert TAKEN in event["message"]


async def test_the_origin_annotation_follows_if_third_parties_take_everything() -> None:
    world = World()
    party = {"priority": "koord-batch", "resources": {"kubernetes.io/batch-cpu": "9000"}}
    text = msgspec.json.encode({"allocations": [party]}).decode()
    world.observe(metadata={"annotations": {TAKEN: text}})
    await world.settle()
    await world.clock.advance(10.0)
    world.learn(400)
    await world.settle()
    assert '"kubernetes.io/batch-cpu":"400"' in world.annotations[ORIGIN]


@pytest.mark.parametrize("mode", ["observe", "recommend"])
async def test_another_mode_undoes_and_reports_what_acting_wrote(mode: Mode) -> None:
    world = World(mode)
    marks = {OFFERED: "x", ORIGIN: "{}", "theirs": "z"}
    have = dict.fromkeys(WRITTEN, "5")
    world.observe(metadata={"annotations": marks}, status={"allocatable": have})
    await world.settle()
    assert world.cpu is None
    assert world.annotations.keys() - {RECOMMENDED} == {"theirs"}
    (undone,) = (report for report in world.reports if report.action == "undo")
    assert undone.outcome == "done"
    assert undone.before == have
    assert undone.after == dict.fromkeys(WRITTEN)


async def test_observe_writes_nothing_and_reports_once() -> None:
    world = World("observe")
    assert await world.settle(20.0, sweep=True) == []
    assert world.outcomes() == [("offer", "observed")]


async def test_recommend_writes_one_annotation_once() -> None:
    world = World("recommend")
    assert methods(await world.settle(20.0, sweep=True)) == ["PATCH"]
    assert (world.cpu, list(world.annotations)) == (None, [RECOMMENDED])


async def test_after_a_write_without_an_answer_the_node_is_read_first() -> None:
    world = World()
    world.api.failures["PATCH"] = ApiUnavailableError("answer lost")
    assert methods(await world.settle(0.4)) == ["PATCH"]
    del world.api.failures["PATCH"]
    assert methods(await world.settle(5.0)) == ["GET", "PATCH"]
    assert world.outcomes() == [("offer", "failed"), ("offer", "done")]


@pytest.mark.parametrize("answer", [b"<html>busy</html>", b"{}", b"", b"\xff"])
async def test_an_answer_that_is_not_a_node_counts_as_unknown(answer: bytes) -> None:
    world = World()
    world.api.answers = {"PATCH": answer, "GET": answer}
    assert methods(await world.settle(3.0))[:2] == ["PATCH", "GET"]
    world.api.answers = {}
    assert methods(await world.settle(60.0)) == ["GET"]
    assert world.outcomes()[0] == ("offer", "failed")
    assert world.cpu == "1000"


async def test_a_refused_write_is_not_repeated_at_every_tick() -> None:
    world = World()
    world.api.failures["PATCH"] = ApiRefusedError("422")
    asked = await world.settle(60.0, sweep=True)
    assert len(asked) < 20


async def test_a_node_deleted_while_its_write_waits_is_not_written() -> None:
    world = World()
    world.offers.decide()
    world.offers.deleted("n")
    assert await world.settle() == []


@pytest.mark.parametrize("how", ["off", "less", "observe"])
async def test_a_withdrawal_is_written_before_all_waiting_writes(how: str) -> None:
    world = World()
    await world.settle()
    if how == "off":
        world.learn_node(NodeRecord(node="n"))
    elif how == "less":
        await world.clock.advance(10.0)
        world.learn(500)
    else:
        world = World("observe")
        world.observe(
            metadata={"annotations": {OFFERED: "x"}}, status={"allocatable": {WRITTEN[2]: "5"}}
        )

    async def other() -> None:
        await world.api.request("PATCH", "/api/v1/nodes/other/status", body={})

    for number in range(100):
        world.queue.put("offer", f"other-{number}", Write(other, lambda _: None))
    world.offers.decide()
    world.api.put("other")
    asked = await world.settle()
    assert asked[0].path == "/api/v1/nodes/n/status"
    assert len(asked) > 20
