"""Each node gets its desired object, and objects of others are left alone."""

from typing import Any

import msgspec
import pytest

from actuators.cluster.custom_resources import NODE_SLO, CustomResources, DesiredSpec
from actuators.object_owner import MANAGED_BY, OURS
from pipeline.errors import ApiUnavailableError, ConflictError, NotFoundError
from tests.actuators.contexts import FeatureWorld

PATH = "/apis/slo.koordinator.sh/v1alpha1/nodeslos"
SPEC = {"extensions": {"a": 1, "b": 1}}
OTHER = {"extensions": {"a": 2}}
BARE = {"name": "n", "uid": "n", "generation": 1, "resourceVersion": "1"}


class World(FeatureWorld):
    def __init__(self, *names: str, ours: bool = True) -> None:
        super().__init__()
        self.nodes = dict.fromkeys(("n", "ours", "theirs"), "uid-1")
        self.resources = CustomResources(self.context.api, NODE_SLO, self.queue, self.nodes)
        self.decider = self.resources
        for name in names:
            labels = {MANAGED_BY: OURS} if ours else {}
            self.api.put(name, spec={}, metadata={"labels": labels})
        self.list_objects()

    def list_objects(self) -> None:
        """Deliver a complete list."""
        self.resources.list_started()
        for document in self.api.objects.values():
            self.resources.observed(msgspec.json.encode(document))
        self.resources.list_completed()

    def want(self, name: str, spec: Any, uid: str = "uid-1") -> None:
        self.resources.set_desired(name, None if spec is None else DesiredSpec(spec, uid))

    def owners(self, name: str) -> list[str]:
        """The uids of an object's owners."""
        return [
            owner["uid"] for owner in self.api.objects[name]["metadata"].get("ownerReferences", [])
        ]

    async def requests(self, seconds: float = 1.0, *, sweep: bool = False) -> list[tuple[str, str]]:
        """Methods and paths of the requests of `settle`."""
        return [(r.method, r.path) for r in await self.settle(seconds, sweep=sweep)]

    async def methods(self, seconds: float = 1.0) -> list[str]:
        return [request.method for request in await self.settle(seconds)]


def wanting(*names: str, **more: Any) -> World:
    """A world of these objects that wants SPEC for `n`."""
    world = World(*names, **more)
    world.want("n", SPEC)
    return world


async def settled(*names: str) -> World:
    """The same after its writes."""
    world = wanting(*names)
    await world.settle()
    return world


async def test_an_object_is_created_once_and_patched_when_its_spec_changes() -> None:
    world = wanting()
    (created,) = await world.settle()
    assert (created.method, created.path, created.body["spec"]) == ("POST", PATH, SPEC)
    assert created.body["metadata"]["labels"] == {MANAGED_BY: OURS}
    assert created.body["metadata"]["ownerReferences"][0]["uid"] == "uid-1"

    world.list_objects()
    world.want("n", dict(SPEC))
    assert await world.settle() == []
    world.want("n", OTHER)
    assert await world.requests() == [("PATCH", f"{PATH}/n")]
    world.list_objects()
    assert await world.settle(sweep=True) == []
    # An undesired key disappears, too.
    assert world.api.objects["n"]["spec"] == OTHER


async def test_parts_without_a_desired_value_stay_as_others_wrote_them() -> None:
    world = wanting()
    world.api.put("n", spec={"theirs": 1, "extensions": {"c": 1}})
    world.list_objects()
    await world.settle()
    assert world.api.objects["n"]["spec"] == {"theirs": 1, **SPEC}


async def test_a_new_leader_writes_specs_that_it_does_not_know() -> None:
    world = wanting("n")
    assert await world.requests() == [("PATCH", f"{PATH}/n")]
    assert await world.settle() == []


async def test_a_foreign_change_is_reverted() -> None:
    world = await settled("n")
    late = msgspec.json.encode(world.api.objects["n"])
    world.resources.observed(world.api.put("n", spec=OTHER))
    assert await world.requests() == [("PATCH", f"{PATH}/n")]
    # An event from before our write arrives late; a status is not ours.
    world.resources.observed(late)
    world.resources.observed(world.api.put("n", status={"nodeMetric": {}}))
    assert await world.settle() == []
    del world.api.objects["n"]
    world.resources.observed(world.api.put("n", spec=OTHER, metadata={"uid": "recreated"}))
    assert await world.requests() == [("PATCH", f"{PATH}/n")]


async def test_only_our_objects_are_deleted() -> None:
    world = World("ours")
    world.api.put("theirs", spec={})
    world.list_objects()
    for name in ("ours", "theirs"):
        world.want(name, SPEC)
    await world.settle()
    for name in ("ours", "theirs"):
        world.want(name, None)
    assert await world.requests() == [("DELETE", f"{PATH}/ours")]


async def test_a_deleted_object_is_created_again() -> None:
    world = await settled("n")
    for how in ("event", "list"):
        del world.api.objects["n"]
        world.resources.deleted("n") if how == "event" else world.list_objects()
        assert await world.requests() == [("POST", PATH)]


async def test_nothing_is_created_for_a_deleted_or_replaced_node() -> None:
    world = World()
    world.nodes["n"] = "uid-2"
    world.want("n", SPEC, "uid-1")
    world.want("unknown", SPEC)
    assert await world.settle(6.0, sweep=True) == []
    world.want("n", SPEC, "uid-2")
    world.nodes["unknown"] = "uid-1"
    created = await world.settle(sweep=True)
    uids = [request.body["metadata"]["ownerReferences"][0]["uid"] for request in created]
    assert sorted(uids) == ["uid-1", "uid-2"]


async def test_an_object_that_another_client_created_first_is_patched() -> None:
    world = wanting()
    world.api.failures["POST"] = ConflictError("exists")
    world.api.put("n", spec={})
    # The answer to the first patch contains the owners.
    assert await world.methods(3.0) == ["POST", "PATCH", "PATCH"]
    assert world.owners("n") == ["uid-1"]


async def test_an_object_that_another_client_deleted_first_is_created() -> None:
    world = wanting("n")
    world.api.failures["PATCH"] = NotFoundError("gone")
    assert await world.methods(3.0) == ["PATCH", "POST"]


async def test_a_deletion_by_another_client_counts_as_done() -> None:
    world = await settled("n")
    world.want("n", None)
    world.api.failures["DELETE"] = NotFoundError("gone")
    assert await world.requests(5.0) == [("DELETE", f"{PATH}/n")]


async def test_a_patch_with_a_lost_answer_is_repeated() -> None:
    world = await settled("n")
    world.want("n", OTHER)
    world.api.failures["PATCH"] = ApiUnavailableError("executed, answer lost")
    await world.settle(0.4)
    world.api.put("n", spec=OTHER)
    del world.api.failures["PATCH"]
    world.want("n", SPEC)
    await world.settle(5.0)
    assert world.api.objects["n"]["spec"] == SPEC


@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_an_answer_that_is_not_an_object_counts_as_unknown(method: str) -> None:
    world = wanting(*(["n"] if method == "PATCH" else []))
    world.api.answers[method] = b"<html>busy</html>"
    assert await world.methods(0.4) == [method]
    del world.api.answers[method]
    world.list_objects()
    assert "PATCH" in await world.methods(5.0)
    assert world.api.objects["n"]["spec"] == SPEC


async def test_a_lost_owner_is_restored() -> None:
    world = await settled()
    world.resources.observed(world.api.put("n", metadata={"ownerReferences": []}))
    assert await world.requests() == [("PATCH", f"{PATH}/n")]
    assert world.owners("n") == ["uid-1"]
    world.list_objects()
    assert await world.settle(6.0, sweep=True) == []


async def test_a_recreated_node_becomes_the_owner() -> None:
    world = await settled()
    world.want("n", SPEC, "uid-2")
    # The Node with the new uid does not exist yet.
    assert await world.settle(6.0, sweep=True) == []
    world.nodes["n"] = "uid-2"
    assert len(await world.settle(sweep=True)) == 1
    assert world.owners("n") == ["uid-2"]
    assert await world.settle(6.0, sweep=True) == []


async def test_a_foreign_object_gets_the_node_as_an_additional_owner() -> None:
    world = wanting("n", ours=False)
    theirs = {"apiVersion": "v1", "kind": "ConfigMap", "name": "n", "uid": "theirs"}
    world.api.put("n", metadata={"ownerReferences": [theirs]})
    world.list_objects()
    assert len(await world.settle()) == 1
    assert world.owners("n") == ["theirs", "uid-1"]
    assert world.api.objects["n"]["spec"] == SPEC
    world.want("n", None)
    assert await world.settle() == []


async def test_owners_that_changed_meanwhile_are_not_overwritten() -> None:
    world = wanting("n")
    world.api.put("n", metadata={"ownerReferences": [{"kind": "Node", "name": "n", "uid": "old"}]})
    world.list_objects()
    late = world.api.put("n", metadata={"ownerReferences": [{"kind": "Job", "uid": "theirs"}]})
    await world.settle(0.4)
    assert world.owners("n") == ["theirs"]
    world.resources.observed(late)
    await world.settle(3.0)
    assert world.owners("n") == ["theirs", "uid-1"]
    assert world.api.objects["n"]["spec"] == SPEC


async def test_an_object_without_a_spec_gets_a_complete_one() -> None:
    world = wanting()
    world.api.objects = {"n": {"metadata": BARE}}
    world.list_objects()
    assert await world.methods(5.0) == ["PATCH", "GET", "PATCH"]
    assert world.api.objects["n"]["spec"] == SPEC
    world.want("n", OTHER)
    assert await world.methods(5.0) == ["PATCH"]


async def test_a_spec_that_appeared_meanwhile_is_not_overwritten() -> None:
    world = wanting()
    world.api.objects = {"n": {"metadata": BARE}}
    world.list_objects()
    await world.settle(0.4)
    world.api.put("n", spec={"theirs": 1})
    world.want("n", OTHER)
    assert await world.methods(5.0) == ["GET", "PATCH"]
    assert world.api.objects["n"]["spec"] == {"theirs": 1, **OTHER}
