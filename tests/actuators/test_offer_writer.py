"""A Node gets its offer by one write, whatever happens in between; on a fake API server."""

from typing import Any

import msgspec
import pytest

from actuators.cluster.offer_writer import RECOMMENDED, Mode, OfferWriter
from actuators.cluster.write_queue import Write
from pipeline.errors import ApiRefusedError, ApiUnavailableError
from pipeline.processors.kubernetes.object_records import OFFERED, ORIGIN
from pipeline.processors.overcommit.status_patch import EXTENDED_RESOURCES
from pipeline.processors.overcommit.third_party import ALLOCATIONS
from pipeline.times import format_time
from pipeline.topics.node_resources import NodeResourcesRecord
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.overcommit_policy import Overcommit
from pipeline.topics.registry import NODES, RESOURCES
from pipeline.topics.resource_amounts import Resources
from tests.actuators.contexts import FeatureWorld


def computed(cpu: int, at: float) -> NodeResourcesRecord:
    some = Resources(cpu_millicores=cpu, memory_bytes=2**30)
    return NodeResourcesRecord(
        node="n", as_of=format_time(at), generation=1, offset=round(at), epoch=1,
        strategy=Overcommit(), predictor="p90", mid=some, mid_lower_bound=some, batch=some,
    )  # fmt: skip


class World(FeatureWorld):
    """One Node, `n`, and the feature that writes its offer."""

    def __init__(self, mode: Mode = "act", *, known: bool = True) -> None:
        super().__init__(mode=mode)
        self.decider = self.offers = OfferWriter(self.context)
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

    async def methods(self, seconds: float = 2.0, *, sweep: bool = False) -> list[str]:
        """Decide and write for a while; returns the methods of the requests."""
        return [request.method for request in await self.settle(seconds, sweep=sweep)]

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


async def written() -> World:
    """A world whose Node has its offer."""
    world = World()
    await world.settle(2.0)
    return world


async def test_a_decision_repeated_during_a_write_is_written_once() -> None:
    world = World()
    world.api.seconds = 0.5
    assert await world.methods(sweep=True) == ["PATCH"]
    assert (world.cpu, world.outcomes()) == ("1000", [("offer", "done")])


async def test_a_list_older_than_our_write_is_ignored() -> None:
    world = World()
    old = msgspec.json.encode(world.api.objects["n"])
    await world.settle(2.0)
    world.offers.list_started()
    world.offers.observed(old)
    world.offers.list_completed()
    assert await world.settle(2.0, sweep=True) == []
    # Much later an older version means that the server was restored from a backup.
    await world.clock.advance(61.0)
    world.offers.observed(old)
    assert await world.methods(sweep=True) == ["PATCH"]


async def test_a_lost_mark_is_restored_so_that_the_offer_can_be_undone() -> None:
    world = await written()
    world.observe(metadata={"annotations": {}})
    assert await world.methods() == ["PATCH"]
    assert OFFERED in world.annotations
    await world.clock.advance(1000.0)
    await world.settle(2.0, sweep=True)
    assert (world.cpu, world.annotations) == (None, {})


async def test_an_unknown_node_loses_our_resources_and_keeps_foreign_ones() -> None:
    world = World(known=False)
    world.observe(status={"allocatable": dict.fromkeys(EXTENDED_RESOURCES, "5") | {"cpu": "8"}})
    assert await world.settle(2.0, sweep=True) == []
    world.observe(metadata={"annotations": {OFFERED: "x"}})
    await world.settle(2.0, sweep=True)
    assert world.api.objects["n"]["status"]["allocatable"] == {"cpu": "8"}


async def test_results_from_before_the_creation_of_a_node_do_not_apply() -> None:
    world = World()
    created = format_time(world.clock.now() + 10.0)
    world.observe(metadata={"uid": "recreated", "creationTimestamp": created})
    assert await world.settle(2.0, sweep=True) == []
    await world.clock.advance(30.0)
    world.learn(700)
    await world.settle(2.0)
    assert world.cpu == "700"


@pytest.mark.parametrize("is_recreated", [True, False])
async def test_an_answer_about_a_node_deleted_meanwhile_is_ignored(is_recreated: bool) -> None:
    world = World()
    execute = world.api.request

    async def delete_before_answer(method: str, path: str, **more: Any) -> bytes:
        answer = await execute(method, path, **more)
        world.api.request = execute  # type: ignore[method-assign]
        world.offers.deleted("n")
        del world.api.objects["n"]
        if is_recreated:
            created = format_time(world.clock.now() - 1.0)
            world.observe(metadata={"uid": "recreated", "creationTimestamp": created}, status={})
        return answer

    world.api.request = delete_before_answer  # type: ignore[method-assign]
    assert await world.methods() == ["PATCH"] * (1 + is_recreated)
    world.learn(2000)
    assert await world.methods() == ["PATCH"] * is_recreated
    assert world.context.node_uids == ({"n": "recreated"} if is_recreated else {})


async def test_a_withdrawal_is_reported_also_if_the_watch_beats_the_answer() -> None:
    world = await written()
    world.reports.clear()
    answer = world.api.request

    async def slower(method: str, path: str, **more: Any) -> bytes:
        sent = await answer(method, path, **more)
        if method == "PATCH":
            world.offers.observed(sent)
        return sent

    world.api.request = slower  # type: ignore[method-assign]
    await world.clock.advance(1000.0)
    assert [r.method for r in (await world.settle(2.0, sweep=True))] == ["PATCH", "POST"]
    (report,) = world.reports
    cpu = "kubernetes.io/mid-cpu"
    assert (report.before[cpu], report.after[cpu]) == ("1000", None)


@pytest.mark.parametrize(("mode", "count"), [("act", 0), ("recommend", 1), ("observe", 1)])
async def test_marks_of_another_mode_are_counted(mode: Mode, count: int) -> None:
    world = World(mode)
    assert world.offers.count_of_other_modes() == 0
    world.observe(metadata={"annotations": {OFFERED: "x"}})
    assert world.offers.count_of_other_modes() == count


async def test_a_stale_offer_is_withdrawn_with_an_event() -> None:
    world = await written()
    await world.clock.advance(1000.0)
    patch, event = await world.settle(2.0, sweep=True)
    assert (patch.method, event.method, world.cpu) == ("PATCH", "POST", None)
    assert (event.body["reason"], event.body["type"]) == ("OfferWithdrawn", "Warning")
    assert "stale" in event.body["message"]


async def test_an_invalid_annotation_is_reported_once() -> None:
    world = World()
    world.observe(metadata={"annotations": {ALLOCATIONS: "{"}})
    requests = await world.settle(10.0, sweep=True)
    assert sorted([r.method for r in requests]) == ["PATCH", "POST"]
    (event,) = (r.body for r in requests if r.method == "POST")
    assert (event["reason"], ALLOCATIONS in event["message"]) == ("AnnotationProblem", True)


async def test_the_origin_annotation_follows_if_third_parties_take_everything() -> None:
    world = World()
    party = {"priority": "koord-batch", "resources": {"kubernetes.io/batch-cpu": "9000"}}
    text = msgspec.json.encode({"allocations": [party]}).decode()
    world.observe(metadata={"annotations": {ALLOCATIONS: text}})
    await world.settle(2.0)
    await world.clock.advance(10.0)
    world.learn(400)
    await world.settle(2.0)
    assert '"kubernetes.io/batch-cpu":"400"' in world.annotations[ORIGIN]


@pytest.mark.parametrize("mode", ["observe", "recommend"])
async def test_another_mode_undoes_and_reports_what_acting_wrote(mode: Mode) -> None:
    world = World(mode)
    marks = {OFFERED: "x", ORIGIN: "{}", "theirs": "z"}
    have = dict.fromkeys(EXTENDED_RESOURCES, "5")
    world.observe(metadata={"annotations": marks}, status={"allocatable": have})
    await world.settle(2.0)
    assert (world.cpu, world.annotations.keys() - {RECOMMENDED}) == (None, {"theirs"})
    (undone,) = (report for report in world.reports if report.action == "undo")
    assert (undone.outcome, undone.before) == ("done", have)
    assert undone.after == dict.fromkeys(EXTENDED_RESOURCES)


async def test_observe_writes_nothing_and_reports_once() -> None:
    world = World("observe")
    assert await world.settle(20.0, sweep=True) == []
    assert world.outcomes() == [("offer", "observed")]


async def test_recommend_writes_one_annotation_once() -> None:
    world = World("recommend")
    assert await world.methods(20.0, sweep=True) == ["PATCH"]
    assert (world.cpu, list(world.annotations)) == (None, [RECOMMENDED])


async def test_after_a_write_without_an_answer_the_node_is_read_first() -> None:
    world = World()
    world.api.failures["PATCH"] = ApiUnavailableError("answer lost")
    assert await world.methods(0.4) == ["PATCH"]
    del world.api.failures["PATCH"]
    assert await world.methods(5.0) == ["GET", "PATCH"]
    assert world.outcomes() == [("offer", "failed"), ("offer", "done")]


@pytest.mark.parametrize("answer", [b"<html>busy</html>", b"{}", b"", b"\xff"])
async def test_an_answer_that_is_not_a_node_counts_as_unknown(answer: bytes) -> None:
    world = World()
    world.api.answers = {"PATCH": answer, "GET": answer}
    assert (await world.methods(3.0))[:2] == ["PATCH", "GET"]
    world.api.answers = {}
    assert await world.methods(60.0) == ["GET"]
    assert (world.outcomes()[0], world.cpu) == (("offer", "failed"), "1000")


async def test_a_refused_write_is_not_repeated_at_every_tick() -> None:
    world = World()
    world.api.failures["PATCH"] = ApiRefusedError("422")
    assert len(await world.settle(60.0, sweep=True)) < 20


async def test_a_node_deleted_while_its_write_waits_is_not_written() -> None:
    world = World()
    world.offers.decide()
    world.offers.deleted("n")
    assert await world.settle(2.0) == []


@pytest.mark.parametrize("how", ["off", "less", "observe"])
async def test_a_withdrawal_is_written_before_all_waiting_writes(how: str) -> None:
    world = await written()
    if how == "off":
        world.learn_node(NodeRecord(node="n"))
    elif how == "less":
        await world.clock.advance(10.0)
        world.learn(500)
    else:
        world = World("observe")
        world.observe(
            metadata={"annotations": {OFFERED: "x"}},
            status={"allocatable": {EXTENDED_RESOURCES[2]: "5"}},
        )

    async def other() -> None:
        await world.api.request("PATCH", "/api/v1/nodes/other/status", body={})

    for number in range(100):
        world.queue.put("offer", f"other-{number}", Write(other, lambda _: None))
    world.offers.decide()
    world.api.put("other")
    first, *others = await world.settle(2.0)
    assert (first.path, len(others) >= 20) == ("/api/v1/nodes/n/status", True)
