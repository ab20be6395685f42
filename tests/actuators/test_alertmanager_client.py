"""Sending to a fake Alertmanager that fails in ways in which a real one cannot be made to."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from actuators.alerts.alertmanager_client import AlertmanagerClient
from pipeline.clock import ManualClock
from pipeline.processors.hot_nodes.firing_alerts import FiringAlert, Labels, firing_alerts
from pipeline.settings import NotifierSettings
from pipeline.tasks import cancel_tasks
from pipeline.times import parse_time
from pipeline.topics.alerts import OpenAlert
from pipeline.topics.node_state import NodeStateRecord
from tests.processes import until

SINCE = "2026-11-28T10:00:00Z"


class FakeAlertmanager:
    """Keeps what it accepted; `answers` are the status codes of the next requests, then 200."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.invalid = frozenset[str]()
        self.failing = frozenset[str]()
        self.most_alerts = 10_000
        self.requests = 0
        self.tokens: list[str | None] = []
        self.accepted: list[list[dict[str, Any]]] = []

    async def post(self, request: web.Request) -> web.Response:
        self.requests += 1
        self.tokens.append(request.headers.get("Authorization"))
        status = self.answers.pop(0) if self.answers else 200
        body = await request.json()
        if {alert["labels"]["node"] for alert in body} & self.invalid:
            status = 400  # as one that cannot decode an alert: it keeps none
        if len(body) > self.most_alerts:
            status = 504  # as a proxy does before a slow Alertmanager
        if {alert["labels"]["node"] for alert in body} & self.failing:
            status = 500
        if status == 200:
            self.accepted.append(body)
        return web.Response(status=status, text="because")


def alerts(*nodes: str) -> dict[Labels, FiringAlert]:
    alert = OpenAlert(rule="node_cpu", severity="warning", since=SINCE)
    return firing_alerts(
        [
            NodeStateRecord(
                node=node, as_of=SINCE, generation=0, offset=1, epoch=0, window_seconds=30.0,
                coverage=1.0, alerts=(alert,),
            )
            for node in nodes
        ],
        {},
    )  # fmt: skip


@asynccontextmanager
async def sending(
    fake: FakeAlertmanager, clock: ManualClock, token_file: Path | None = None
) -> AsyncIterator[AlertmanagerClient]:
    app = web.Application()
    app.router.add_post("/am/api/v2/alerts", fake.post)
    settings = NotifierSettings(resend_seconds=60.0, token_file=token_file)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        client = AlertmanagerClient(str(server.make_url("/am/")), settings, session, clock)
        task = asyncio.create_task(client.run())
        try:
            yield client
        finally:
            await cancel_tasks(task)


async def _advance(clock: ManualClock, fake: FakeAlertmanager) -> bool:
    """Let time pass; whether alerts were accepted by then."""
    await clock.advance(5.0)
    return bool(fake.accepted)


@pytest.mark.parametrize("status", [500, 503, 429, 404, 401, 302])
async def test_it_repeats_until_the_alerts_are_accepted(status: int) -> None:
    fake, clock = FakeAlertmanager(), ManualClock()
    fake.answers = [status, status]
    async with sending(fake, clock) as client:
        client.fire(alerts("a"))
        await until(lambda: bool(clock.sleepers))
        assert (fake.requests, fake.accepted) == (1, [])
        await until(partial(_advance, clock, fake))
    assert fake.requests == 3
    assert [alert["labels"]["node"] for alert in fake.accepted[0]] == ["a"]


async def test_a_refused_batch_delays_no_other() -> None:
    fake, clock = FakeAlertmanager(), ManualClock()
    fake.answers = [400]
    async with sending(fake, clock) as client:
        client.fire(alerts("refused"))
        await until(lambda: fake.requests == 1)
        client.fire(alerts("good"))
        await until(lambda: len(fake.accepted) == 1)
    assert [alert["labels"]["node"] for alert in fake.accepted[0]] == ["good"]


@pytest.mark.parametrize("invalid", [{"n0"}, {"n7", "n8", "n499"}, {"n250"}])
async def test_an_alert_that_is_refused_costs_no_other_one(invalid: set[str]) -> None:
    fake, clock = FakeAlertmanager(), ManualClock()
    fake.invalid = frozenset(invalid)
    names = [f"n{number}" for number in range(500)]
    async with sending(fake, clock) as client:
        client.fire(alerts(*names))
        await until(lambda: sum(map(len, fake.accepted)) == len(names) - len(invalid))
        await until(lambda: not client._waiting)
    accepted = [alert["labels"]["node"] for batch in fake.accepted for alert in batch]
    assert sorted(accepted) == sorted({*names} - invalid)
    assert fake.requests <= 1 + 2 * 9 * len(invalid)


async def test_halves_of_a_refused_batch_wait_for_an_alertmanager_that_goes_down() -> None:
    fake, clock = FakeAlertmanager(), ManualClock()
    fake.answers = [400, 200, 503]
    async with sending(fake, clock) as client:
        client.fire(alerts("a", "b"))
        await until(lambda: bool(clock.sleepers))
        assert len(client._waiting) == 2
        fake.accepted = []
        await until(partial(_advance, clock, fake))
    assert [alert["labels"]["node"] for alert in fake.accepted[0]] == ["a", "b"]


async def test_an_alert_that_ends_before_its_start_starts_with_its_end() -> None:
    """The node's clock was ahead of the notifier's."""
    fake, clock = FakeAlertmanager(), ManualClock(now=parse_time(SINCE) - 30.0)
    async with sending(fake, clock) as client:
        client.resolve(alerts("a"), clock.now())
        await until(lambda: bool(fake.accepted))
    ((alert,),) = fake.accepted
    assert parse_time(alert["startsAt"]) == parse_time(alert["endsAt"]) == clock.now()


async def test_only_the_newest_state_of_an_alert_is_sent() -> None:
    fake, clock = FakeAlertmanager(), ManualClock()
    fake.answers = [500]
    async with sending(fake, clock) as client:
        client.fire(alerts("a", "b"))
        await until(lambda: bool(clock.sleepers))
        ended_at = clock.now()
        client.resolve(alerts("a"), ended_at)
        for _ in range(100):
            client.fire(alerts("b"))
        await until(partial(_advance, clock, fake))
    ends = {alert["labels"]["node"]: parse_time(alert["endsAt"]) for alert in fake.accepted[0]}
    assert ends["a"] == ended_at
    assert 240 <= ends["b"] - ended_at <= 240 + 60


async def test_ends_that_nobody_needs_are_forgotten() -> None:
    fake, clock = FakeAlertmanager(), ManualClock()
    fake.answers = [500] * 1000
    async with sending(fake, clock) as client:
        client.resolve(alerts("a"), clock.now())
        await until(lambda: bool(clock.sleepers))
        await clock.advance(300.0)
        fake.answers = []
        client.fire(alerts("b"))
        await until(partial(_advance, clock, fake))
    assert [alert["labels"]["node"] for alert in fake.accepted[0]] == ["b"]


async def test_many_alerts_are_sent_in_batches() -> None:
    fake, clock = FakeAlertmanager(), ManualClock()
    async with sending(fake, clock) as client:
        client.fire(alerts(*(f"n{number}" for number in range(1100))))
        await until(lambda: sum(map(len, fake.accepted)) == 1100)
    assert [len(batch) for batch in fake.accepted] == [500, 500, 100]


@pytest.mark.parametrize("failing", [{"n0"}, {"n3", "n700"}])
async def test_an_alert_for_which_alertmanager_fails_holds_up_no_other(failing: set[str]) -> None:
    fake, clock = FakeAlertmanager(), ManualClock()
    fake.failing = frozenset(failing)
    names = {f"n{number}" for number in range(1100)}

    async def others_are_accepted() -> bool:
        await clock.advance(60.0)
        return names - failing <= {a["labels"]["node"] for batch in fake.accepted for a in batch}

    async with sending(fake, clock) as client:
        client.fire(alerts(*sorted(names)))
        await until(others_are_accepted)
        fake.failing = frozenset()
        failing = set()
        await until(others_are_accepted)


async def test_an_alertmanager_that_is_slow_gets_fewer_alerts_at_once() -> None:
    fake, clock = FakeAlertmanager(), ManualClock()
    fake.most_alerts = 100
    async with sending(fake, clock) as client:
        client.fire(alerts(*(f"n{number}" for number in range(1100))))

        async def all_are_accepted() -> bool:
            await clock.advance(60.0)
            return sum(map(len, fake.accepted)) == 1100

        await until(all_are_accepted)


async def test_a_renewed_token_is_used(tmp_path: Path) -> None:
    fake, clock = FakeAlertmanager(), ManualClock()
    file = tmp_path / "token"
    async with sending(fake, clock, file) as client:
        client.fire(alerts("a"))
        await until(lambda: bool(clock.sleepers))
        assert fake.requests == 0  # the file does not exist: nothing is sent without the token
        file.write_text("first\n")
        await clock.advance(60.0)
        await until(lambda: fake.tokens == ["Bearer first"])
        file.write_text("second\n")
        client.fire(alerts("b"))
        await until(lambda: fake.tokens == ["Bearer first", "Bearer second"])
