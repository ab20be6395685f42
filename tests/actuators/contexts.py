"""A `Context` for one feature, with a fake API server and a manual clock."""

from typing import Any, cast

from actuators.cluster.feature import Context
from actuators.cluster.write_queue import RateLimit, WriteQueue
from pipeline.clock import ManualClock
from pipeline.kube.api_client import Api
from pipeline.processors.placement.plugin_config import Placement
from pipeline.settings import ActuatorSettings, ExtenderSettings, Settings
from pipeline.sources.scheduler_config import placement_of
from pipeline.topics.actions import ActionRecord
from tests.actuators.fake_api import FakeApi

PLACEMENT = placement_of(ExtenderSettings())


def make_context(
    clock: ManualClock,
    api: FakeApi,
    *,
    placement: Placement = PLACEMENT,
    reports: list[ActionRecord] | None = None,
    **actuator: Any,
) -> Context:
    """Mode act unless `actuator` says otherwise; actions are appended to `reports`."""
    return Context(
        api=cast(Api, api),
        queue=WriteQueue(RateLimit(20.0, clock), clock, lambda: True),
        clock=clock,
        settings=Settings(actuator=ActuatorSettings(**{"mode": "act", **actuator})),
        placement=placement,
        report=(reports if reports is not None else []).append,
    )
