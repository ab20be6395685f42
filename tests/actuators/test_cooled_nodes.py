"""A wake-up of an extender becomes one annotation change of its Node; on a fake API server."""

from actuators.cluster.cooled_nodes import (
    COOLED,
    EXTENDER_LAG_SECONDS,
    WAKE_UP_SECONDS,
    CooledNodes,
)
from pipeline.errors import ApiUnavailableError, NotFoundError
from pipeline.times import format_time
from pipeline.topics.registry import WAKE_UPS
from pipeline.topics.wake_ups import WakeUpRecord
from tests.actuators.contexts import FeatureWorld


class World(FeatureWorld):
    """The Node `n`."""

    def __init__(self) -> None:
        super().__init__()
        self.api.put("n")
        self.decider = self.cooled = CooledNodes(self.context)
        self.cooled.start()

    def wake(self, node: str = "n", age: float = 0.0) -> str:
        at = format_time(self.clock.now() - age)
        self.cooled.learn(WAKE_UPS, node, WakeUpRecord(node=node, at=at, pod="d/waits"))
        return at

    async def writes(self, seconds: float = 1.0) -> int:
        """The number of requests. Extenders have time to read the records before the first."""
        assert await self.settle(EXTENDER_LAG_SECONDS) == []
        return len(await self.settle(seconds))


async def test_only_a_wake_up_causes_a_write() -> None:
    world = World()
    assert await world.writes(600.0) == 0
    at = world.wake()
    assert await world.writes() == 1
    assert world.api.objects["n"]["metadata"]["annotations"] == {COOLED: at}
    assert await world.writes(600.0) == 0


async def test_wake_ups_of_several_extenders_become_one_write() -> None:
    world = World()
    for _ in range(3):
        world.wake()
    assert await world.writes(60.0) == 1


async def test_wake_ups_of_the_last_minute_count_after_a_change_of_leader() -> None:
    world = World()
    world.wake(age=WAKE_UP_SECONDS - 1)
    world.wake("other", age=WAKE_UP_SECONDS)
    assert [request.path for request in await world.settle(5.0)] == ["/api/v1/nodes/n/status"]


async def test_a_deleted_node_is_tried_once() -> None:
    world = World()
    world.api.failures["PATCH"] = NotFoundError("no Node n")
    world.wake()
    assert await world.writes(60.0) == 1


async def test_the_write_waits_while_the_server_is_unavailable() -> None:
    world = World()
    world.api.failures["PATCH"] = ApiUnavailableError("away")
    world.wake()
    await world.writes(5.0)
    del world.api.failures["PATCH"]
    assert await world.settle(30.0)
    assert COOLED in world.api.objects["n"]["metadata"]["annotations"]


async def test_the_write_is_given_up_after_a_minute() -> None:
    """The extender repeats the wake-up while its pod waits."""
    world = World()
    world.api.failures["PATCH"] = ApiUnavailableError("away")
    world.wake()
    await world.settle(2 * WAKE_UP_SECONDS + 30.0)
    assert await world.settle(600.0) == []
