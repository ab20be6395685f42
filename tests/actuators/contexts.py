"""A `Context` for one feature, with a fake API server and a manual clock."""

import asyncio
from typing import Any, Protocol, cast

from actuators.cluster.feature import Context
from actuators.cluster.write_queue import WriteQueue
from actuators.rate_limit import RateLimit
from pipeline.clock import ManualClock
from pipeline.kube.api_client import Api
from pipeline.settings import ActuatorSettings, ExtenderSettings, Settings
from pipeline.topics.actions import ActionRecord
from tests.actuators.fake_api import FakeApi, Request


def make_context(
    clock: ManualClock,
    api: FakeApi,
    *,
    reports: list[ActionRecord] | None = None,
    extender: ExtenderSettings | None = None,
    **actuator: Any,
) -> Context:
    """Mode act unless `actuator` has another; actions are appended to `reports`."""
    settings = Settings(
        actuator=ActuatorSettings(**{"mode": "act", **actuator}),
        extender=extender or ExtenderSettings(),
    )
    return Context(
        api=cast(Api, api), queue=WriteQueue(RateLimit(20.0, clock), clock, lambda: True),
        clock=clock, settings=settings,
        report=(reports if reports is not None else []).append,
    )  # fmt: skip


class Decider(Protocol):
    """A feature, or a part of one."""

    def decide(self, *, everything: bool) -> None: ...


class FeatureWorld:
    """A context whose write queue runs while `settle` decides. Use it inside of a running loop."""

    decider: Decider

    def __init__(self, **context: Any) -> None:
        self.clock = ManualClock()
        self.api = FakeApi(self.clock)
        self.reports: list[ActionRecord] = []
        self.context = make_context(self.clock, self.api, reports=self.reports, **context)
        self.queue = self.context.queue
        self._writing: asyncio.Task[None] | None = None

    async def settle(self, seconds: float = 1.0, *, sweep: bool = False) -> list[Request]:
        """Decide and write for a while; returns the requests."""
        if self._writing is None:
            self._writing = asyncio.create_task(self.queue.run())
        for _ in range(round(seconds / 0.2)):
            self.decider.decide(everything=sweep)
            await self.clock.advance(0.2)
        assert not self._writing.done()
        requests, self.api.requests = self.api.requests, []
        return requests
