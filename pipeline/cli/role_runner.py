"""Run a role until a signal stops it, alone or as the leader of several."""

import asyncio
import os
import signal
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from pipeline.clock import Clock
from pipeline.kube.api_client import Api, open_api
from pipeline.kube.lease import Lease
from pipeline.settings import Settings
from pipeline.tasks import cancel_tasks


async def lead_until_stopped(
    settings: Settings, name: str, clock: Clock, work: Callable[[Api, Lease], Awaitable[None]]
) -> None:
    """Run `work` while this process holds the lease `name`, until SIGTERM or Ctrl-C.

    Raises what `work` raises.
    """
    identity = f"{os.uname().nodename}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
    async with open_api(settings.kubernetes, clock) as api:
        lease = Lease(api, settings.kubernetes.namespace, name, identity)
        await work_until_stopped(lease.lead(lambda: work(api, lease)))


async def work_until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """Run `work` until it ends, or until SIGTERM or Ctrl-C. Raises what `work` raises."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    working = asyncio.create_task(work)
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        await cancel_tasks(working, stopping)
