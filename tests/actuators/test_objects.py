"""Each node has the object that is wanted, and what others made is left alone."""

import asyncio
from typing import Any, cast

import msgspec
import pytest

from actuators.cluster.custom_resources import MANAGED_BY, NODE_SLO, OURS, Objects, Wanted
from actuators.cluster.write_queue import Budget, Writer
from pipeline.clock import ManualClock
from pipeline.errors import ApiUnavailableError, ConflictError, NotFoundError
from pipeline.kube.api_client import Api
from tests.actuators.fake_api import Asked, FakeApi

PATH = "/apis/slo.koordinator.sh/v1alpha1/nodeslos"
SPEC = {"extensions": {"a": 1, "b": 1}}
OTHER = {"extensions": {"a": 2}}
BARE = {"name": "n", "uid": "n", "generation": 1, "resourceVersion": "1"}


class World:
    def __init__(self, *names: str, ours: bool = True) -> None:
        self.clock = ManualClock()
        self.api = FakeApi(self.clock)
        self.nodes = dict.fromkeys(("n", "ours", "theirs"), "uid-1")
        self.writer = Writer(Budget(100.0, self.clock), self.clock, lambda: True)
        self.objects = Objects(cast(Api, self.api), NODE_SLO, self.writer, self.nodes.get)
        for name in names:
            labels = {MANAGED_BY: OURS} if ours else {}
            self.api.put(name, spec={}, metadata={"labels": labels})
        self.tell()

    def tell(self) -> None:
        """All that there is, as a list says it."""
        self.objects.begin()
        for of in self.api.objects.values():
            self.objects.see(msgspec.json.encode(of))
        self.objects.complete()

    def want(self, name: str, spec: Any, uid: str = "uid-1") -> None:
        self.objects.want(name, None if spec is None else Wanted(spec, uid))

    def owners(self, name: str) -> list[str]:
        """The uids of those with which an object goes."""
        return [of["uid"] for of in self.api.objects[name]["metadata"].get("ownerReferences", [])]

    async def settle(self, seconds: float = 1.0, *, sweep: bool = False) -> list[Asked]:
        """Decide and write for a while; gives what was asked for."""
        task = asyncio.create_task(self.writer.run())
        for _ in range(round(seconds / 0.2)):
            self.objects.decide(everything=sweep)
            await self.clock.advance(0.2)
        assert not task.done()
        task.cancel()
        asked, self.api.asked = self.api.asked, []
        return asked


def asked(found: list[Asked]) -> list[tuple[str, str]]:
    return [(one.method, one.path) for one in found]


async def test_an_object_is_made_once_and_changed_when_its_spec_is_another() -> None:
    world = World()
    world.want("n", SPEC)
    (made,) = await world.settle()
    assert (made.method, made.path) == ("POST", PATH)
    assert made.body["spec"] == SPEC
    assert made.body["metadata"]["labels"] == {MANAGED_BY: OURS}
    assert made.body["metadata"]["ownerReferences"][0]["uid"] == "uid-1"

    world.tell()
    world.want("n", dict(SPEC))
    assert await world.settle() == []
    world.want("n", OTHER)
    assert asked(await world.settle()) == [("PATCH", f"{PATH}/n")]
    world.tell()
    assert await world.settle(sweep=True) == []
    # A key that is wanted no longer is gone, too.
    assert world.api.objects["n"]["spec"] == OTHER


async def test_parts_that_nobody_wants_stay_as_others_wrote_them() -> None:
    world = World()
    world.api.put("n", spec={"theirs": 1, "extensions": {"c": 1}})
    world.tell()
    world.want("n", SPEC)
    await world.settle()
    assert world.api.objects["n"]["spec"] == {"theirs": 1, **SPEC}


async def test_who_leads_anew_writes_what_it_cannot_know_to_be_there() -> None:
    world = World("n")
    world.want("n", SPEC)
    assert asked(await world.settle()) == [("PATCH", f"{PATH}/n")]
    assert await world.settle() == []


async def test_what_somebody_else_has_changed_is_as_wanted_again() -> None:
    world = World("n")
    world.want("n", SPEC)
    await world.settle()
    late = msgspec.json.encode(world.api.objects["n"])
    world.objects.see(world.api.put("n", spec=OTHER))
    assert asked(await world.settle()) == [("PATCH", f"{PATH}/n")]
    # What was said before we wrote comes late, and a status is none of ours.
    world.objects.see(late)
    world.objects.see(world.api.put("n", status={"nodeMetric": {}}))
    assert await world.settle() == []
    del world.api.objects["n"]
    world.objects.see(world.api.put("n", spec=OTHER, metadata={"uid": "made anew"}))
    assert asked(await world.settle()) == [("PATCH", f"{PATH}/n")]


async def test_only_what_is_ours_goes_with_its_node() -> None:
    world = World("ours")
    world.api.put("theirs", spec={})
    world.tell()
    for name in ("ours", "theirs"):
        world.want(name, SPEC)
    await world.settle()
    for name in ("ours", "theirs"):
        world.want(name, None)
    assert asked(await world.settle()) == [("DELETE", f"{PATH}/ours")]


async def test_what_went_behind_our_back_is_made_again() -> None:
    world = World("n")
    world.want("n", SPEC)
    await world.settle()
    for how in ("told", "listed"):
        del world.api.objects["n"]
        world.objects.gone("n") if how == "told" else world.tell()
        assert asked(await world.settle()) == [("POST", PATH)]


async def test_nothing_is_made_for_a_node_that_is_gone_or_another() -> None:
    world = World()
    world.nodes["n"] = "uid-2"
    world.want("n", SPEC, "uid-1")
    world.want("unknown", SPEC)
    assert await world.settle(6.0, sweep=True) == []
    world.want("n", SPEC, "uid-2")
    world.nodes["unknown"] = "uid-1"
    (first, second) = await world.settle(sweep=True)
    uids = {one.body["metadata"]["ownerReferences"][0]["uid"] for one in (first, second)}
    assert uids == {"uid-1", "uid-2"}


async def test_one_that_somebody_was_quicker_to_make_is_changed() -> None:
    world = World()
    world.want("n", SPEC)
    world.api.failures["POST"] = ConflictError("exists")
    world.api.put("n", spec={})
    # Whose it is the answer to the first change tells.
    assert [one.method for one in await world.settle(3.0)] == ["POST", "PATCH", "PATCH"]
    assert world.owners("n") == ["uid-1"]


async def test_one_that_somebody_was_quicker_to_delete_is_made() -> None:
    world = World("n")
    world.want("n", SPEC)
    world.api.failures["PATCH"] = NotFoundError("gone")
    assert [one.method for one in await world.settle(3.0)] == ["PATCH", "POST"]


async def test_a_deletion_that_somebody_did_is_done() -> None:
    world = World("n")
    world.want("n", SPEC)
    await world.settle()
    world.want("n", None)
    world.api.failures["DELETE"] = NotFoundError("gone")
    assert asked(await world.settle(5.0)) == [("DELETE", f"{PATH}/n")]


async def test_of_a_change_whose_answer_was_lost_nothing_is_taken_for_granted() -> None:
    world = World("n")
    world.want("n", SPEC)
    await world.settle()
    world.want("n", OTHER)
    world.api.failures["PATCH"] = ApiUnavailableError("it was done all the same")
    await world.settle(0.4)
    world.api.put("n", spec=OTHER)
    del world.api.failures["PATCH"]
    world.want("n", SPEC)
    await world.settle(5.0)
    assert world.api.objects["n"]["spec"] == SPEC


@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_an_answer_that_is_no_object_is_none(method: str) -> None:
    world = World(*(["n"] if method == "PATCH" else []))
    world.want("n", SPEC)
    world.api.answers[method] = b"<html>busy</html>"
    assert [one.method for one in await world.settle(0.4)] == [method]
    del world.api.answers[method]
    world.tell()
    assert "PATCH" in [one.method for one in await world.settle(5.0)]
    assert world.api.objects["n"]["spec"] == SPEC


async def test_what_has_lost_its_owner_gets_it_again() -> None:
    world = World()
    world.want("n", SPEC)
    await world.settle()
    world.objects.see(world.api.put("n", metadata={"ownerReferences": []}))
    assert asked(await world.settle()) == [("PATCH", f"{PATH}/n")]
    assert world.owners("n") == ["uid-1"]
    world.tell()
    assert await world.settle(6.0, sweep=True) == []


async def test_the_object_of_a_node_that_was_made_anew_goes_with_the_new_one() -> None:
    world = World()
    world.want("n", SPEC)
    await world.settle()
    world.want("n", SPEC, "uid-2")
    # The Node of which the topic speaks is not there yet.
    assert await world.settle(6.0, sweep=True) == []
    world.nodes["n"] = "uid-2"
    assert len(await world.settle(sweep=True)) == 1
    assert world.owners("n") == ["uid-2"]
    assert await world.settle(6.0, sweep=True) == []


async def test_what_others_made_goes_with_its_node_and_keeps_its_other_owners() -> None:
    world = World("n", ours=False)
    theirs = {"apiVersion": "v1", "kind": "ConfigMap", "name": "n", "uid": "theirs"}
    world.api.put("n", metadata={"ownerReferences": [theirs]})
    world.tell()
    world.want("n", SPEC)
    assert len(await world.settle()) == 1
    assert world.owners("n") == ["theirs", "uid-1"]
    assert world.api.objects["n"]["spec"] == SPEC
    world.want("n", None)
    assert await world.settle() == []


async def test_owners_that_somebody_has_changed_meanwhile_stay() -> None:
    world = World("n")
    world.api.put("n", metadata={"ownerReferences": [{"kind": "Node", "name": "n", "uid": "old"}]})
    world.tell()
    told = world.api.put("n", metadata={"ownerReferences": [{"kind": "Job", "uid": "theirs"}]})
    world.want("n", SPEC)
    await world.settle(0.4)
    assert world.owners("n") == ["theirs"]
    world.objects.see(told)
    await world.settle(3.0)
    assert world.owners("n") == ["theirs", "uid-1"]
    assert world.api.objects["n"]["spec"] == SPEC


async def test_one_without_a_spec_gets_it_as_a_whole() -> None:
    world = World()
    world.api.objects = {"n": {"metadata": BARE}}
    world.tell()
    world.want("n", SPEC)
    assert [one.method for one in await world.settle(5.0)] == ["PATCH", "GET", "PATCH"]
    assert world.api.objects["n"]["spec"] == SPEC
    world.want("n", OTHER)
    assert [one.method for one in await world.settle(5.0)] == ["PATCH"]


async def test_of_one_that_has_a_spec_by_now_nothing_is_lost() -> None:
    world = World()
    world.api.objects = {"n": {"metadata": BARE}}
    world.tell()
    world.want("n", SPEC)
    await world.settle(0.4)
    world.api.put("n", spec={"theirs": 1})
    world.want("n", OTHER)
    assert [one.method for one in await world.settle(5.0)] == ["GET", "PATCH"]
    assert world.api.objects["n"]["spec"] == {"theirs": 1, **OTHER}
