"""Every role is restarted under load, one after the other, as an upgrade does it."""

import asyncio
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import aiohttp
import pytest

from pipeline.local.control_plane import ControlPlane
from pipeline.local.local_kafka import LocalKafka
from pipeline.settings import KafkaSettings
from pipeline.times import parse_time
from pipeline.topics.actions import ActionRecord
from pipeline.topics.eviction_plans import EvictionPlanRecord
from pipeline.topics.registry import ACTIONS, EVICTION_PLANS, SAMPLES
from pipeline.topics.sample_rows import read_header
from pipeline.topics.samples import SampleHeader
from pipeline.topics.windows import decode_window
from tests.broker import messages
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
    "extender-0", "extender-1", "worker-0", "archive-0", "watcher-0", "actuator-0", "planner-0",
    "evictor-0", "provider-0", "node-actuator-0", "exporter-0",
)  # fmt: skip
"""Readers before writers, as docs/how-to/upgrade.md says."""
END_SECONDS: Final = 60

Sample = tuple[int, int, SampleHeader]
"""Partition, offset and header."""


async def test_a_rolling_restart_loses_no_window_fails_no_request_and_repeats_no_action(
    plane: ControlPlane, permanent: Existing, broker: LocalKafka, tmp_path: Path
) -> None:
    with node_trees(EXPORTERS[:1]) as trees:
        async with running_world(
            plane, [broker], tmp_path, seed=0, nodes=10, names=ORDER, bugs=NO_BUGS, trees=trees
        ) as (world, made):  # fmt: skip
            urls = [url_of(world, name) for name in ORDER if name.startswith("extender")]
            requests = SchedulerRequests(urls, world.load.nodes)
            async with made.running(WINDOW_SECONDS), requests.running():
                await until(lambda: world.all_work_since(world.began), 120, lambda: state_of(world))
                for name in ORDER:
                    stopped_at = time.time()
                    await restart(world, name)
                restarted_at = time.time()
                await until(
                    lambda: world.all_work_since(restarted_at), 120, lambda: state_of(world)
                )
                # Its last window before SIGTERM may be seen after the restart.
                await until(lambda: exporter_starts(world.stage.settings.kafka, 2), 120)
            world.silence_sources()
            kafka = world.stage.settings.kafka
            samples = [
                (record.partition, record.offset, read_header(record.value))
                for record in await messages(kafka, SAMPLES)
            ]
            places = [(partition, offset, header.node) for partition, offset, header in samples]
            logs = await gather(world.stage, places, timeout=60)
            archived = await world.archived_log()
        limits = await asyncio.to_thread(world.undo_limits)
    run = Observation(
        settings=world.stage.settings, logs=logs, samples=places, offers=world.offers,
        allowed=list(allowed_offers(logs)), evictions=await world.evictions(),
        node_limits=limits, archived=archived,
    )  # fmt: skip
    await until(lambda: delete_others(plane, permanent), 120)
    assert {name: role.exit_codes for name, role in world.roles.items()} == {
        name: [0] for name in ORDER
    }
    assert requests.failures == []
    assert requests.answers.keys() == {*urls}
    assert problems(run) == []
    assert [*not_once(logs, samples)] == []
    assert [*exporter_gaps(samples, stopped_at)] == []
    assert [*repeated_offers(world.offers)] == []
    assert [*repeated_actions(await read_records(kafka, ACTIONS, ActionRecord))] == []
    assert [*repeated_plans(await read_plans(kafka))] == []


def url_of(world: World, name: str) -> str:
    return f"http://127.0.0.1:{world.ports[name]}"


async def restart(world: World, name: str) -> None:
    """Send SIGTERM; when the process has ended, start it, and wait until it is ready."""
    role = world.roles[name]
    process = role.process
    assert process is not None
    role.signal(signal.SIGTERM)
    await until(lambda: process.poll() is not None, END_SECONDS, role.tail)
    role.start()

    async def is_ready() -> bool:
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"{url_of(world, name)}/readyz") as answer,
            ):
                return answer.status == 200
        except aiohttp.ClientError:
            return False

    await until(is_ready, 120, role.tail)


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
