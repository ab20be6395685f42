"""A node that has cooled is told of once, as often as that happens; in a fake API server."""

import asyncio
from typing import cast

import msgspec
import pytest

from actuators.cluster.cooled_nodes import COOLED, READERS_SECONDS, Cooling
from actuators.cluster.write_queue import Budget, Writer
from pipeline.clock import ManualClock
from pipeline.errors import (
    ApiUnavailableError,
    InvalidRecordError,
    KubernetesError,
    NotFoundError,
)
from pipeline.kube.api_client import Api
from pipeline.processors.loadaware.node_thresholds import ANNOTATION
from pipeline.processors.placement.plugin_config import Placement, read_config
from pipeline.settings import ExtenderSettings
from pipeline.sources.scheduler_config import placement_of
from pipeline.times import format_time
from pipeline.topics.eviction_plans import EvictionPlanRecord
from pipeline.topics.node_state import AggregatedUsage, NodeStateRecord
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.resource_amounts import Usage
from tests.actuators.fake_api import Asked, FakeApi

PLACEMENT = placement_of(ExtenderSettings())


def state(cores: float, offset: int) -> NodeStateRecord:
    """Of a node with 8 cores."""
    return NodeStateRecord(
        node="n", as_of=format_time(1.7e9 + offset), generation=1, offset=offset, epoch=1,
        window_seconds=30, coverage=1.0, node_known=True,
        usage=Usage(cpu_cores=cores, memory_bytes=1.0),
        allocatable=Usage(cpu_cores=8.0, memory_bytes=100.0),
    )  # fmt: skip


class World:
    def __init__(self, placement: Placement = PLACEMENT) -> None:
        self.clock = ManualClock()
        self.api = FakeApi(self.clock)
        self.api.put("n")
        self.writer = Writer(Budget(20.0, self.clock), self.clock, lambda: True)
        self.cooling = Cooling(cast(Api, self.api), self.writer, placement, self.clock)
        self.cooling.is_on = True
        self._offset = 0

    def uses(self, *cores: float) -> None:
        for one in cores:
            self._offset += 1
            self.cooling.learn_state("n", state(one, self._offset))

    async def settle(self, seconds: float = 1.0) -> list[Asked]:
        self.cooling.decide()
        assert not self.api.asked
        await self.clock.advance(READERS_SECONDS)
        self.cooling.decide()
        task = asyncio.create_task(self.writer.run())
        await self.clock.advance(seconds)
        task.cancel()
        asked, self.api.asked = self.api.asked, []
        return asked


async def test_only_who_was_hot_has_cooled() -> None:
    world = World()
    world.uses(1.0, 2.0)
    assert await world.settle() == []
    world.uses(8.0, 1.0, 2.0)
    assert len(await world.settle()) == 1
    assert world.api.objects["n"]["metadata"]["annotations"] == {COOLED: format_time(1.7e9 + 5)}


async def test_who_is_hot_again_before_it_is_told_is_not_told_of() -> None:
    world = World()
    world.uses(8.0, 1.0, 8.0)
    assert await world.settle() == []


async def test_what_lay_on_the_topic_at_the_start_is_no_news() -> None:
    world = World()
    world.cooling.is_on = False
    world.uses(8.0, 1.0)
    assert await world.settle() == []


@pytest.mark.parametrize(("error", "times"), [(NotFoundError("gone"), 1), (None, 1)])
async def test_of_a_node_that_is_gone_it_is_tried_once(
    error: KubernetesError | None, times: int
) -> None:
    world = World()
    if error is not None:
        world.api.failures["PATCH"] = error
    world.uses(8.0, 1.0)
    assert len(await world.settle(60.0)) == times


async def test_while_the_server_is_away_it_is_kept() -> None:
    world = World()
    world.api.failures["PATCH"] = ApiUnavailableError("away")
    world.uses(8.0, 1.0)
    await world.settle(5.0)
    del world.api.failures["PATCH"]
    assert len(await world.settle(30.0)) >= 1
    assert COOLED in world.api.objects["n"]["metadata"]["annotations"]


def plan(offset: int) -> EvictionPlanRecord:
    """Pods are to leave the node for one that waits."""
    at = format_time(1.7e9 + offset)
    return EvictionPlanRecord(
        node="n", id="w/n", at=at, valid_until=at, planner="extender", why="", pods=()
    )


async def test_a_node_that_pods_leave_is_told_of_with_each_window_for_a_while() -> None:
    """It may never have been over its thresholds: it is too full for the pod that waits."""
    world = World()
    world.uses(1.0)
    world.cooling.learn_plan(plan(1))
    assert await world.settle() == []
    world.uses(1.0)
    assert len(await world.settle()) == 1
    world.cooling.learn_state("n", state(1.0, 181))
    assert len(await world.settle()) == 1
    world.cooling.learn_state("n", state(1.0, 182))
    world.cooling.learn_state("n", state(1.0, 183))
    assert await world.settle() == []


async def test_a_plan_of_no_time_is_no_plan() -> None:
    world = World()
    with pytest.raises(InvalidRecordError):
        world.cooling.learn_plan(msgspec.structs.replace(plan(1), at="soon"))
    world.uses(1.0, 1.0)
    assert await world.settle() == []


def configured(**args: object) -> Placement:
    """What a KubeSchedulerConfiguration enables: LoadAware, and the hours if there are any."""
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


async def test_a_node_that_only_its_own_thresholds_kept_has_cooled() -> None:
    world = World()
    own = NodeRecord(node="n", annotations={ANNOTATION: '{"usageThresholds":{"cpu":30}}'})
    world.cooling.learn_node("n", own)
    world.uses(4.0, 2.0)
    assert len(await world.settle()) == 1
    # Those of all hold again.
    world.cooling.learn_node("n", NodeRecord(node="n"))
    world.uses(4.0, 2.0)
    assert await world.settle() == []


async def test_an_annotation_of_no_use_changes_nothing() -> None:
    world = World()
    world.cooling.learn_node("n", NodeRecord(node="n", annotations={ANNOTATION: "{"}))
    world.uses(4.0, 2.0)
    assert await world.settle() == []
    world.uses(8.0, 2.0)
    assert len(await world.settle()) == 1


@pytest.mark.parametrize(
    ("placement", "times"),
    [
        (configured(usageThresholds={"cpu": 30}), 1),
        (configured(usageThresholds={"cpu": 60}), 0),
        (configured(hours={"from": "00:00", "to": "00:00", "usageThresholds": {"cpu": 30}}), 1),
        (Placement((), (), PLACEMENT.args), 0),
    ],
)
async def test_it_goes_by_the_thresholds_that_the_extender_has(
    placement: Placement, times: int
) -> None:
    world = World(placement)
    world.uses(4.0, 2.0)
    assert len(await world.settle()) == times


@pytest.mark.parametrize(("cores", "times"), [(8.0, 0), (1.0, 1)])
async def test_of_aggregated_usage_the_statistic_is_judged(cores: float, times: int) -> None:
    """However busy the last window is."""
    aggregated = {"usageThresholds": {"cpu": 50}, "usageAggregationType": "p95",
                  "usageAggregatedDuration": "5m"}  # fmt: skip
    world = World(configured(aggregated=aggregated))
    for offset, p95 in enumerate((8.0, cores)):
        usage = {"5m": AggregatedUsage(p95=Usage(cpu_cores=p95, memory_bytes=1.0))}
        now = msgspec.structs.replace(state(8.0, offset), aggregated=usage)
        world.cooling.learn_state("n", now)
    assert len(await world.settle()) == times


async def test_who_stays_too_hot_for_some_pods_has_cooled_for_the_others() -> None:
    world = World(configured(usageThresholds={"cpu": 60}, prodUsageThresholds={"cpu": 20}))
    for offset, (all_of_it, prod) in enumerate(((7.0, 3.0), (4.0, 3.0), (4.0, 3.0))):
        usage = {"prod": Usage(cpu_cores=prod, memory_bytes=1.0)}
        now = msgspec.structs.replace(state(all_of_it, offset), class_usage=usage)
        world.cooling.learn_state("n", now)
    assert len(await world.settle()) == 1
    for offset, prod in ((4, 1.0), (5, 1.0)):
        usage = {"prod": Usage(cpu_cores=prod, memory_bytes=1.0)}
        now = msgspec.structs.replace(state(4.0, offset), class_usage=usage)
        world.cooling.learn_state("n", now)
    assert len(await world.settle()) == 1
