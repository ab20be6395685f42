"""Measure how late the event loop of a role runs what is due: the lag of its event loop.

Every role does its work in one event loop. While a step of it takes long, answers, heartbeats and
timers wait. Every second a timer notes by how much it was late, as a process does in Go by
scheduling latencies and in Node.js by `monitorEventLoopDelay`.
"""

import asyncio
from typing import Final

from pipeline.metrics import histogram

INTERVAL_SECONDS: Final = 1.0

LAG: Final = histogram(
    "event_loop_lag_seconds",
    "Time by which a timer of the event loop, one each second, was late.",
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
)


def measure_event_loop_lag() -> None:
    """Measure the running event loop until it ends."""
    loop = asyncio.get_running_loop()
    due = loop.time() + INTERVAL_SECONDS
    loop.call_at(due, _observe, loop, due)


def _observe(loop: asyncio.AbstractEventLoop, due: float) -> None:
    LAG.observe(max(0.0, loop.time() - due))
    next_due = loop.time() + INTERVAL_SECONDS
    loop.call_at(next_due, _observe, loop, next_due)
