"""Run a role until a signal stops it, alone or as the leader of several.

A signal cancels the work first and releases the lease afterwards, so that the next leader starts at
once and never beside the old one.
"""

import asyncio
import os
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from pipeline import tracing
from pipeline.clock import Clock, SystemClock
from pipeline.kafka.topic_admin import require_topics
from pipeline.kube.api_client import Api, open_api
from pipeline.kube.lease import Lease
from pipeline.kube.standby import check_kafka_of_standby
from pipeline.metrics import serve_metrics
from pipeline.metrics_server import Readiness
from pipeline.settings import (
    ActuatorSettings,
    EvictorSettings,
    PlannerSettings,
    Settings,
    WatcherSettings,
)
from pipeline.tasks import cancel_tasks, work_until_stopped
from pipeline.topics.access import ROLES


async def run_leader(
    role: str,
    settings: Settings,
    section: ActuatorSettings | EvictorSettings | PlannerSettings | WatcherSettings,
    work: Callable[[Api, Lease, Clock], Awaitable[None]],
    *,
    waits_for_kafka: bool = False,
    readiness: Readiness | None = None,
) -> None:
    """Run a role with its metrics page while it holds the Lease of its name, until a signal. A role
    with `readiness` answers at /readyz of that page.

    Raises what `work` raises, and the error if topics are missing or Kafka is unavailable at the
    start, unless the role `waits_for_kafka`.
    """
    clock = SystemClock()
    if not waits_for_kafka:
        await require_topics(settings.kafka, ROLES[role].topics)
    serve_metrics(role, section.metrics_host, section.metrics_port, readiness)
    name = f"springtide-{role}"
    check = partial(check_kafka_of_standby, settings, role, clock) if waits_for_kafka else None
    with tracing.exporting(role, settings.tracing):
        await lead_until_stopped(
            settings, name, clock, lambda api, lease: work(api, lease, clock), check
        )


async def lead_until_stopped(
    settings: Settings,
    name: str,
    clock: Clock,
    work: Callable[[Api, Lease], Awaitable[None]],
    check: Callable[[Lease], Coroutine[Any, Any, None]] | None = None,
) -> None:
    """Run `work` while this process holds the lease `name`, and `check` beside it, until SIGTERM or
    Ctrl-C. Raises what `work` or `check` raises."""
    identity = f"{os.uname().nodename}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
    async with open_api(settings.kubernetes, clock, name=name) as api:
        lease = Lease(api, settings.kubernetes.namespace, name, identity)
        leading = lease.lead(lambda: work(api, lease))
        await work_until_stopped(_beside(leading, check(lease)) if check else leading)


async def _beside(work: Coroutine[Any, Any, None], check: Coroutine[Any, Any, None]) -> None:
    """Run `work` until it ends, or until `check` fails."""
    tasks = asyncio.create_task(work), asyncio.create_task(check)
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await cancel_tasks(*tasks)
