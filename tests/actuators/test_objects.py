"""Each node has the object that is wanted, and what others made is left alone."""

import asyncio
from typing import cast

import msgspec

from actuators.cluster.objects import MANAGED_BY, NODE_SLO, OURS, Objects, Wanted
from actuators.cluster.writing import Budget, Writer
from pipeline.clock import ManualClock
from pipeline.errors import ConflictError, KubernetesError, NotFoundError
from pipeline.kube.client import Api
from tests.actuators.fake_api import Asked, FakeApi

PATH = "/apis/slo.koordinator.sh/v1alpha1/nodeslos"
SPEC = {"extensions": {"a": 1}}


class World:
    def __init__(self) -> None:
        self.api = FakeApi()
        self.clock = ManualClock()
        self.writer = Writer(Budget(100.0, self.clock), self.clock, lambda: True)
        self.objects = Objects(cast(Api, self.api), NODE_SLO, self.writer)

    async def settle(self, seconds: float = 1.0) -> list[Asked]:
        """Decide and write for a while; gives what was asked for."""
        task = asyncio.create_task(self.writer.run())
        for _ in range(round(seconds / 0.2)):
            self.objects.decide()
            await self.clock.advance(0.2)
        task.cancel()
        asked, self.api.asked = self.api.asked, []
        return asked


def there(name: str, *, ours: bool) -> msgspec.Raw:
    labels = {MANAGED_BY: OURS} if ours else {}
    return msgspec.Raw(msgspec.json.encode({"metadata": {"name": name, "labels": labels}}))


def listed(objects: Objects, *of: msgspec.Raw) -> None:
    objects.begin()
    for one in of:
        objects.see(one)
    objects.complete()


def asked(found: list[Asked]) -> list[tuple[str, str]]:
    return [(one.method, one.path) for one in found]


async def test_an_object_is_made_once_and_changed_when_its_spec_is_another() -> None:
    world = World()
    listed(world.objects)
    world.objects.want("n", Wanted(SPEC, "uid-1"))
    (made,) = await world.settle()
    assert (made.method, made.path) == ("POST", PATH)
    assert made.body["spec"] == SPEC
    assert made.body["metadata"]["labels"] == {MANAGED_BY: OURS}
    assert made.body["metadata"]["ownerReferences"][0]["uid"] == "uid-1"

    world.objects.see(there("n", ours=True))
    world.objects.want("n", Wanted(SPEC, "uid-1"))
    assert await world.settle() == []
    world.objects.want("n", Wanted({"extensions": {"a": 2}}, "uid-1"))
    (changed,) = await world.settle()
    assert (changed.method, changed.path) == ("PATCH", f"{PATH}/n")
    assert changed.body == {"spec": {"extensions": {"a": 2}}}


async def test_who_leads_anew_writes_what_it_cannot_know_to_be_there() -> None:
    world = World()
    listed(world.objects, there("n", ours=True))
    world.objects.want("n", Wanted(SPEC, "uid-1"))
    assert asked(await world.settle()) == [("PATCH", f"{PATH}/n")]
    assert await world.settle() == []


async def test_only_what_is_ours_goes_with_its_node() -> None:
    world = World()
    listed(world.objects, there("ours", ours=True), there("theirs", ours=False))
    for name in ("ours", "theirs"):
        world.objects.want(name, Wanted(SPEC, "uid"))
    await world.settle()
    for name in ("ours", "theirs"):
        world.objects.want(name, None)
    assert asked(await world.settle()) == [("DELETE", f"{PATH}/ours")]


async def test_what_went_behind_our_back_is_made_again() -> None:
    world = World()
    listed(world.objects, there("n", ours=True))
    world.objects.want("n", Wanted(SPEC, "uid-1"))
    await world.settle()
    # With the Node: the one that has its name now owns the new object.
    world.objects.want("n", Wanted(SPEC, "uid-2"))
    world.objects.gone("n")
    (made,) = await world.settle()
    assert made.body["metadata"]["ownerReferences"][0]["uid"] == "uid-2"
    listed(world.objects)
    assert asked(await world.settle()) == [("POST", PATH)]


async def overtaken(error: KubernetesError, first: str, then: str, *, known: bool) -> None:
    world = World()
    listed(world.objects, *([there("n", ours=True)] if known else []))
    world.objects.want("n", Wanted(SPEC, "uid-1"))
    world.api.answers[first] = error
    found = asked(await world.settle(3.0))
    assert [method for method, _ in found] == [first, then]


async def test_one_that_somebody_was_quicker_to_make_is_changed() -> None:
    await overtaken(ConflictError("exists"), "POST", "PATCH", known=False)


async def test_one_that_somebody_was_quicker_to_delete_is_made() -> None:
    await overtaken(NotFoundError("gone"), "PATCH", "POST", known=True)


async def test_a_deletion_that_somebody_did_is_done() -> None:
    world = World()
    listed(world.objects, there("n", ours=True))
    world.objects.want("n", Wanted(SPEC, "uid"))
    await world.settle()
    world.objects.want("n", None)
    world.api.answers["DELETE"] = NotFoundError("gone")
    assert asked(await world.settle(5.0)) == [("DELETE", f"{PATH}/n")]
