"""Every role is restarted under load, one after the other, as an upgrade does it."""

import asyncio
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

import aiohttp
import pytest

from actuators.alerts.alertmanager_client import LIFETIMES
from pipeline.local.control_plane import ControlPlane
from pipeline.local.local_kafka import LocalKafka
from pipeline.settings import KafkaSettings
from pipeline.times import parse_time
from pipeline.topics.actions import ActionRecord
from pipeline.topics.alerts import AlertRecord
from pipeline.topics.eviction_plans import EvictionPlanRecord
from pipeline.topics.registry import ACTIONS, ALERTS, EVICTION_PLANS, SAMPLES
from pipeline.topics.sample_rows import read_header
from pipeline.topics.samples import SampleHeader
from pipeline.topics.windows import decode_window
from tests.alerts.local_alertmanager import LocalAlertmanager, local_alertmanager
from tests.broker import messages
from tests.chaos.admitted_pods import AdmittedPods, WebhookService
from tests.chaos.alert_notifications import Notifications, notification_problems, notified
from tests.chaos.checker import Observation, Offer, problems
from tests.chaos.eviction_evidence import read_records
from tests.chaos.load import WINDOW_SECONDS
from tests.chaos.node_limits import node_trees
from tests.chaos.run import allowed_offers, state_of
from tests.chaos.scheduler_requests import SchedulerRequests
from tests.chaos.world import EXPORTER_WINDOW_SECONDS, EXPORTERS, NO_BUGS, World, running_world
from tests.cluster.objects import Existing, delete_others
from tests.processes import until
from tests.system.harness import Logs, gather

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(900)]

ORDER: Final = (
    "extender-0", "extender-1", "notifier-0", "worker-0", "archive-0", "watcher-0", "actuator-0",
    "planner-0", "evictor-0", "provider-0", "node-actuator-0", "exporter-0",
)  # fmt: skip
"""Readers before writers, as docs/how-to/upgrade.md says."""
WEBHOOKS: Final = ("webhook-0", "webhook-1")
"""Without Kafka, so that no other role waits for them: they are restarted meanwhile."""
RESEND_SECONDS: Final = 20
"""Alertmanager ends an alert that is not repeated four times as long."""
END_SECONDS: Final = 60

Sample = tuple[int, int, SampleHeader]
"""Partition, offset and header."""
Away = tuple[float, float]
"""When a role got SIGTERM, and when it was ready again (Unix times)."""


async def test_a_rolling_restart_loses_no_window_fails_no_request_and_repeats_no_action(
    plane: ControlPlane, permanent: Existing, broker: LocalKafka, tmp_path: Path
) -> None:
    service = WebhookService(WEBHOOKS, tmp_path)
    pods, names = AdmittedPods(plane), (*ORDER, *WEBHOOKS)
    with (
        node_trees(EXPORTERS[:1]) as trees,
        notified() as notifications,
        local_alertmanager(notifications.url) as alertmanager,
    ):
        more = {**service.flags, "notifier-0": notifier_flags(alertmanager)}
        async with (
            service.running(),
            running_world(
                plane, [broker], tmp_path, seed=0, nodes=10, names=names, bugs=NO_BUGS,
                trees=trees, more=more,
            ) as (world, made),
        ):  # fmt: skip
            urls = [url_of(world, name) for name in ORDER if name.startswith("extender")]
            requests = SchedulerRequests(urls, world.load.nodes)
            async with made.running(WINDOW_SECONDS), requests.running(), pods.running(service):
                await until(lambda: world.all_work_since(world.began), 120, lambda: state_of(world))
                restarted = dict[str, Away]()
                await asyncio.gather(
                    restart_each(world, service, ORDER, restarted),
                    restart_each(world, service, WEBHOOKS, restarted),
                )
                restarted_at = time.time()
                await until(
                    lambda: world.all_work_since(restarted_at), 120, lambda: state_of(world)
                )
                # Its last window before SIGTERM may be seen after the restart.
                await until(lambda: exporter_starts(world.stage.settings.kafka, 2), 120)
                # Without an end, the check of ends says nothing.
                await until(lambda: len(notifications.resolved), 120)
            world.silence_sources()
            kafka = world.stage.settings.kafka
            samples = [
                (record.partition, record.offset, read_header(record.value))
                for record in await messages(kafka, SAMPLES)
            ]
            places = [(partition, offset, header.node) for partition, offset, header in samples]
            logs = await gather(world.stage, places, timeout=60)
            archived = await world.archived_log()
            away = restarted["notifier-0"]
            alert_problems = await settled_alert_problems(kafka, notifications, away)
        limits = await asyncio.to_thread(world.undo_limits)
    run = Observation(
        settings=world.stage.settings, logs=logs, samples=places, offers=world.offers,
        allowed=list(allowed_offers(logs)), evictions=await world.evictions(),
        node_limits=limits, archived=archived,
    )  # fmt: skip
    await until(lambda: delete_others(plane, permanent), 120)
    assert {name: role.exit_codes for name, role in world.roles.items()} == {
        name: [0] for name in names
    }
    assert requests.failures == []
    assert requests.answers.keys() == {*urls}
    assert pods.failures == []
    assert pods.translated > 0
    assert alert_problems == []
    assert problems(run) == []
    assert [*not_once(logs, samples)] == []
    assert [*exporter_gaps(samples, restarted["exporter-0"][0])] == []
    assert [*repeated_offers(world.offers)] == []
    assert [*repeated_actions(await read_records(kafka, ACTIONS, ActionRecord))] == []
    assert [*repeated_plans(await read_plans(kafka))] == []


def url_of(world: World, name: str) -> str:
    return f"http://127.0.0.1:{world.ports[name]}"


def notifier_flags(alertmanager: LocalAlertmanager) -> list[str]:
    urls = ["--alertmanager-urls", alertmanager.url]
    return [*urls, "--resend-seconds", str(RESEND_SECONDS)]


async def restart_each(
    world: World, service: WebhookService, names: Sequence[str], restarted: dict[str, Away]
) -> None:
    """Restart one role after the other."""
    for name in names:
        stopped_at = time.time()
        is_ready = service.is_ready if name in WEBHOOKS else partial(is_page_ready, world)
        await restart(world, name, partial(is_ready, name))
        restarted[name] = stopped_at, time.time()


async def settled_alert_problems(
    kafka: KafkaSettings, notifications: Notifications, away: Away
) -> list[str]:
    """The problems of notifications once nothing changes any more: an alert that closed while the
    notifier was away ends when it was not repeated."""
    found: list[str] = []

    async def is_settled() -> bool:
        records = [record for record, _ in await read_records(kafka, ALERTS, AlertRecord)]
        found[:] = notification_problems(records, notifications, away)
        return not found

    with suppress(AssertionError):
        await until(is_settled, LIFETIMES * RESEND_SECONDS + END_SECONDS)
    return found


async def restart(world: World, name: str, is_ready: Callable[[], Awaitable[bool]]) -> None:
    """Send SIGTERM; when the process has ended, start it, and wait until it is ready."""
    role = world.roles[name]
    process = role.process
    assert process is not None
    role.signal(signal.SIGTERM)
    await until(lambda: process.poll() is not None, END_SECONDS, role.tail)
    role.start()
    await until(is_ready, 120, role.tail)


async def is_page_ready(world: World, name: str) -> bool:
    """Whether the role answers 200 at /readyz, beside its metrics."""
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{url_of(world, name)}/readyz") as answer,
        ):
            return answer.status == 200
    except aiohttp.ClientError:
        return False


async def exporter_starts(kafka: KafkaSettings, count: int) -> bool:
    """Whether the topic has samples of so many starts of the exporter."""
    headers = [read_header(record.value) for record in await messages(kafka, SAMPLES)]
    return len({header.epoch for header in headers if header.node == EXPORTERS[0]}) == count


async def read_plans(kafka: KafkaSettings) -> list[EvictionPlanRecord]:
    """The plans of the planner."""
    plans = await read_records(kafka, EVICTION_PLANS, EvictionPlanRecord)
    return [plan for plan, _ in plans if plan.planner == "planner"]


def not_once(logs: Logs, samples: Sequence[Sample]) -> Iterator[str]:
    """Yield samples of which the log has no window, or several."""
    counts = Counter(
        (partition, window.sample_offset)
        for partition, records in logs["windows"].items()
        for window in (decode_window(record.value or b"") for record in records)
        if window.type == "window"
    )
    for partition, offset, header in samples:
        if counts[partition, offset] != 1:
            yield f"{header.node} {header.sequence}: {counts[partition, offset]} windows"


def exporter_gaps(samples: Sequence[Sample], stopped_at: float) -> Iterator[str]:
    """Yield windows that the exporter left out or repeated, and one that SIGTERM cut off."""
    starts = defaultdict[int, list[SampleHeader]](list)
    for _, _, header in samples:
        if header.node == EXPORTERS[0]:
            starts[header.epoch].append(header)
    for headers in starts.values():
        for before, after in pairwise(headers):
            if (before.window_end_ms, before.sequence + 1) != (
                after.window_start_ms, after.sequence,
            ):  # fmt: skip
                yield f"after {before} comes {after}"
    if len(starts) != 2:
        yield f"the exporter started {len(starts)} times"
    # What it measured of the last window is published: whole seconds.
    last_ms = max((header.window_end_ms for header in starts[min(starts)]), default=0)
    if last_ms < 1000 * (stopped_at - EXPORTER_WINDOW_SECONDS / 2):
        yield f"the last window ended {stopped_at - last_ms / 1000:.1f} s before SIGTERM"


def repeated_offers(offers: Sequence[Offer]) -> Iterator[str]:
    """Yield amounts that an actuator wrote to a node that had them."""
    for before, after in pairwise(sorted(offers, key=lambda offer: (offer.node, offer.at))):
        if (before.node, before.amounts) == (after.node, after.amounts):
            yield f"{after.node}: {after.amounts} again after {after.at - before.at:.1f} s"


def repeated_actions(actions: Sequence[tuple[ActionRecord, float]]) -> Iterator[str]:
    """Yield evictions that were recorded as done twice."""
    done = Counter(
        uid
        for action, _ in actions
        if (action.action, action.outcome) == ("evict", "done")
        for uid in action.before.values()
    )
    yield from (f"{uid}: evicted {count} times" for uid, count in done.items() if count > 1)


def repeated_plans(plans: Sequence[EvictionPlanRecord]) -> Iterator[str]:
    """Yield pods that the planner plans to move while its earlier plan is valid."""
    until_of: dict[str, float] = {}
    for plan in sorted(plans, key=lambda plan: plan.at):
        for pod in plan.pods:
            if parse_time(plan.at) < until_of.get(pod.uid, 0.0):
                yield f"{pod.uid}: planned again by {plan.id}"
            until_of[pod.uid] = parse_time(plan.valid_until)
