"""A Node gets one annotation change each time it cools; on a fake API server."""

from typing import Any

import msgspec
import pytest

from actuators.cluster.cooled_nodes import COOLED, EXTENDER_LAG_SECONDS, CooledNodes
from pipeline.errors import ApiUnavailableError, InvalidRecordError, NotFoundError
from pipeline.processors.loadaware.node_thresholds import ANNOTATION
from pipeline.processors.placement.enabled_plugins import Placement, read_config
from pipeline.times import format_time
from pipeline.topics.eviction_plans import EvictionPlanRecord
from pipeline.topics.node_state import AggregatedUsage, NodeStateRecord
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.registry import EVICTION_PLANS, NODE_STATE, NODES
from pipeline.topics.resource_amounts import Usage
from tests.actuators.contexts import PLACEMENT, FeatureWorld


def state(cores: float, offset: int, **fields: Any) -> NodeStateRecord:
    """The state of a node with 8 cores."""
    return NodeStateRecord(
        node="n", as_of=format_time(1.7e9 + offset), generation=1, offset=offset, epoch=1,
        window_seconds=30, coverage=1.0, node_known=True,
        usage=Usage(cpu_cores=cores, memory_bytes=1.0),
        allocatable=Usage(cpu_cores=8.0, memory_bytes=100.0), **fields,
    )  # fmt: skip


class World(FeatureWorld):
    def __init__(self, placement: Placement = PLACEMENT, *, started: bool = True) -> None:
        super().__init__(placement=placement)
        self.api.put("n")
        self.decider = self.cooled = CooledNodes(self.context)
        if started:
            self.cooled.start()
        self._offset = 0

    def uses(self, *cores: float, **fields: Any) -> None:
        for used in cores:
            self._offset += 1
            self.learn_state(state(used, self._offset, **fields))

    def learn_state(self, record: NodeStateRecord) -> None:
        self.cooled.learn(NODE_STATE, "n", record)

    def learn_node(self, annotations: dict[str, str]) -> None:
        self.cooled.learn(NODES, "n", NodeRecord(node="n", annotations=annotations))

    def learn_plan(self, record: EvictionPlanRecord) -> None:
        self.cooled.learn(EVICTION_PLANS, "n", record)

    async def writes(self, seconds: float = 1.0) -> int:
        """The number of requests. Extenders have time to read the records before the first."""
        assert await self.settle(EXTENDER_LAG_SECONDS) == []
        return len(await self.settle(seconds))


async def test_only_a_node_that_was_hot_can_cool() -> None:
    world = World()
    world.uses(1.0, 2.0)
    assert await world.writes() == 0
    world.uses(8.0, 1.0, 2.0)
    assert await world.writes() == 1
    assert world.api.objects["n"]["metadata"]["annotations"] == {COOLED: format_time(1.7e9 + 5)}


async def test_a_node_that_turns_hot_again_in_time_is_not_written() -> None:
    world = World()
    world.uses(8.0, 1.0, 8.0)
    assert await world.writes() == 0


async def test_records_read_before_the_start_cause_no_write() -> None:
    world = World(started=False)
    world.uses(8.0, 1.0)
    assert await world.writes() == 0


async def test_a_deleted_node_is_tried_once() -> None:
    world = World()
    world.api.failures["PATCH"] = NotFoundError("no Node n")
    world.uses(8.0, 1.0)
    assert await world.writes(60.0) == 1


async def test_the_write_waits_while_the_server_is_unavailable() -> None:
    world = World()
    world.api.failures["PATCH"] = ApiUnavailableError("away")
    world.uses(8.0, 1.0)
    await world.writes(5.0)
    del world.api.failures["PATCH"]
    assert await world.settle(30.0)
    assert COOLED in world.api.objects["n"]["metadata"]["annotations"]


def plan(offset: int) -> EvictionPlanRecord:
    """Pods are to leave the node for a pending one."""
    at = format_time(1.7e9 + offset)
    return EvictionPlanRecord(
        node="n", id="w/n", at=at, valid_until=at, planner="extender", why="", pods=()
    )


async def test_each_window_after_an_eviction_plan_causes_a_write_for_a_while() -> None:
    """The node may never have been hot: it only is too full for the pending pod."""
    world = World()
    world.uses(1.0)
    world.learn_plan(plan(1))
    assert await world.writes() == 0
    world.uses(1.0)
    assert await world.writes() == 1
    world.learn_state(state(1.0, 181))
    assert await world.writes() == 1
    world.learn_state(state(1.0, 182))
    world.learn_state(state(1.0, 183))
    assert await world.writes() == 0


async def test_a_deleted_node_has_no_eviction_plan() -> None:
    world = World()
    world.learn_plan(plan(0))
    world.cooled.learn(NODES, "n", None)
    world.uses(1.0)
    assert await world.writes() == 0


async def test_a_plan_with_an_invalid_time_is_rejected() -> None:
    world = World()
    with pytest.raises(InvalidRecordError):
        world.learn_plan(msgspec.structs.replace(plan(1), at="soon"))
    world.uses(1.0, 1.0)
    assert await world.writes() == 0


def configured(**args: object) -> Placement:
    """A KubeSchedulerConfiguration with LoadAware and, if given, hours."""
    hours = args.pop("hours", None)
    plugins = [{"name": "LoadAwareScheduling"}]
    config: list[dict[str, object]] = [{"name": "LoadAwareScheduling", "args": args}]
    if hours is not None:
        plugins.append({"name": "TimeSharedThresholds"})
        config.append({"name": "TimeSharedThresholds", "args": {"windows": [hours]}})
    profile = {
        "schedulerName": "s", "plugins": {"filter": {"enabled": plugins}}, "pluginConfig": config,
    }  # fmt: skip
    tree = {
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "profiles": [profile],
    }  # fmt: skip
    return read_config(tree)


async def test_a_node_cools_below_its_own_thresholds() -> None:
    world = World()
    world.learn_node({ANNOTATION: '{"usageThresholds":{"cpu":30}}'})
    world.uses(4.0, 2.0)
    assert await world.writes() == 1
    # Without the annotation the general thresholds apply.
    world.learn_node({})
    world.uses(4.0, 2.0)
    assert await world.writes() == 0


async def test_an_invalid_threshold_annotation_is_ignored() -> None:
    world = World()
    world.learn_node({ANNOTATION: "{"})
    world.uses(4.0, 2.0)
    assert await world.writes() == 0
    world.uses(8.0, 2.0)
    assert await world.writes() == 1


@pytest.mark.parametrize(
    ("placement", "times"),
    [
        (configured(usageThresholds={"cpu": 30}), 1),
        (configured(usageThresholds={"cpu": 60}), 0),
        (configured(hours={"from": "00:00", "to": "00:00", "usageThresholds": {"cpu": 30}}), 1),
        (Placement((), (), PLACEMENT.args), 0),
    ],
)
async def test_the_thresholds_of_the_extender_apply(placement: Placement, times: int) -> None:
    world = World(placement)
    world.uses(4.0, 2.0)
    assert await world.writes() == times


@pytest.mark.parametrize(("cores", "times"), [(8.0, 0), (1.0, 1)])
async def test_the_configured_statistic_of_aggregated_usage_is_judged(
    cores: float, times: int
) -> None:
    """The usage of the last window does not matter then."""
    aggregated = {"usageThresholds": {"cpu": 50}, "usageAggregationType": "p95",
                  "usageAggregatedDuration": "5m"}  # fmt: skip
    world = World(configured(aggregated=aggregated))
    for p95 in (8.0, cores):
        usage = Usage(cpu_cores=p95, memory_bytes=1.0)
        world.uses(8.0, aggregated={"5m": AggregatedUsage(p95=usage)})
    assert await world.writes() == times


async def test_a_node_may_cool_for_some_pods_and_stay_hot_for_others() -> None:
    world = World(configured(usageThresholds={"cpu": 60}, prodUsageThresholds={"cpu": 20}))
    for windows in (((7.0, 3.0), (4.0, 3.0), (4.0, 3.0)), ((4.0, 1.0), (4.0, 1.0))):
        for total, prod in windows:
            world.uses(total, class_usage={"prod": Usage(cpu_cores=prod, memory_bytes=1.0)})
        assert await world.writes() == 1
