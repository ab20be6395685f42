"""Features declare what they own; the actuator derives switches, records and undo from it."""

from typing import Any

import pytest

from actuators.cluster.cluster_actuator import FEATURES, TOPICS
from actuators.cluster.cooled_nodes import COOLED, CooledNodes
from actuators.cluster.feature import Feature
from actuators.cluster.node_metadata_feature import NodeMetadataFeature
from pipeline.errors import ApiRefusedError, NotFoundError
from pipeline.processors.kubernetes.object_records import OFFERED, node_record
from pipeline.processors.overcommit.third_party import ALLOCATIONS
from pipeline.settings import ActuatorSettings
from pipeline.topics.registry import NODES, Topic
from tests.actuators.contexts import FeatureWorld


class _HotLabels(NodeMetadataFeature):
    name = "node_slos"
    has_switch = True
    annotations = ("springtide/since",)
    labels = ("springtide/hot",)

    def learn(self, topic: Topic, node: str, record: Any) -> None:
        self.set_desired(node, {"springtide/since": record, "springtide/hot": "yes"})


class World(FeatureWorld):
    """A feature that marks Nodes, and the Node `n` with a mark of another client."""

    def __init__(self, feature: type[Feature] = _HotLabels, **actuator: Any) -> None:
        super().__init__(**{"node_slos": True, **actuator})
        self.feature: Any = feature(self.context)
        self.decider = self.feature
        self.observe(annotations={"theirs": "x"})

    def observe(self, **metadata: Any) -> None:
        encoded = self.api.put("n", metadata=metadata)
        for follower in self.feature.watches.values():
            follower.observed(encoded)

    async def writes(self, seconds: float = 1.0) -> int:
        return len(await self.settle(seconds))

    def marks(self) -> tuple[dict[str, str], dict[str, str]]:
        metadata = self.api.objects["n"]["metadata"]
        return metadata.get("annotations", {}), metadata.get("labels", {})


async def test_wanted_marks_are_written_once_and_restored() -> None:
    world = World()
    assert await world.writes() == 0
    world.feature.learn(NODES, "n", "noon")
    world.feature.learn(NODES, "unknown", "noon")
    assert await world.writes() == 1
    expected = {"theirs": "x", "springtide/since": "noon"}, {"springtide/hot": "yes"}
    assert world.marks() == expected
    world.observe(labels={"springtide/hot": "no"})
    assert await world.writes() == 1
    assert world.marks() == expected
    world.feature.set_desired("n", {})
    assert await world.writes() == 1
    assert world.marks() == ({"theirs": "x"}, {})


@pytest.mark.parametrize("off", [{"mode": "observe"}, {"mode": "recommend"}, {"node_slos": False}])
async def test_a_feature_that_is_off_removes_its_marks_and_no_others(off: dict[str, Any]) -> None:
    world = World(**off)
    world.observe(
        annotations={"springtide/since": "noon", OFFERED: "x"},
        labels={"springtide/hot": "yes", "zone": "a"},
    )
    assert await world.writes() == 1
    assert world.marks() == ({OFFERED: "x"}, {"zone": "a"})


@pytest.mark.parametrize(("mode", "left"), [("act", {COOLED: "y"}), ("observe", {})])
async def test_the_cooled_annotation_is_removed_unless_in_mode_act(
    mode: str, left: dict[str, str]
) -> None:
    world = World(CooledNodes, mode=mode)
    world.observe(annotations={COOLED: "y"})
    world.feature.start()
    await world.settle()
    assert world.marks()[0] == left


async def test_a_refused_mark_is_written_again_and_a_deleted_node_is_not() -> None:
    world = World()
    world.feature.learn(NODES, "n", "noon")
    world.api.failures["PATCH"] = ApiRefusedError("422")
    assert await world.writes(0.4) == 1
    del world.api.failures["PATCH"]
    assert await world.writes(3.0) == 1
    world.feature.learn(NODES, "n", "one o'clock")
    world.api.failures["PATCH"] = NotFoundError("no Node n")
    assert await world.writes(5.0) == 1
    world.feature.list_started()
    world.feature.list_completed()
    assert await world.writes(5.0) == 0


async def test_a_node_recreated_during_a_write_gets_its_marks() -> None:
    world = World()
    world.feature.learn(NODES, "n", "noon")
    execute = world.api.request

    async def recreate_before_answer(method: str, path: str, **more: Any) -> bytes:
        answer = await execute(method, path, **more)
        world.api.request = execute  # type: ignore[method-assign]
        world.feature.deleted("n")
        del world.api.objects["n"]
        world.observe(uid="recreated")
        return answer

    world.api.request = recreate_before_answer  # type: ignore[method-assign]
    assert await world.writes() == 2
    assert world.marks() == ({"springtide/since": "noon"}, {"springtide/hot": "yes"})


def test_an_undeclared_mark_is_an_error() -> None:
    with pytest.raises(ValueError, match="_HotLabels does not declare springtide/cold"):
        World().feature.set_desired("n", {"springtide/cold": "yes"})


def test_the_declarations_of_all_features_agree_with_settings_topics_and_records() -> None:
    names = [feature.name for feature in FEATURES]
    owned = [mark for feature in FEATURES for mark in (*feature.annotations, *feature.labels)]
    assert (len({*names}), len({*owned})) == (len(names), len(owned))
    for feature in FEATURES:
        assert isinstance(getattr(ActuatorSettings(), feature.name, None), bool) is (
            feature.has_switch
        )
        assert feature.topics.keys() <= TOPICS.keys()
        annotations = dict.fromkeys((*feature.annotations, ALLOCATIONS), "x")
        record = node_record({"metadata": {"name": "n", "annotations": annotations}})
        # A write must not cause another record of the Node.
        assert record.annotations == {ALLOCATIONS: "x"} | (
            {OFFERED: ""} if OFFERED in annotations else {}
        )
