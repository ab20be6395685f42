"""Publish wake-ups in the background: for pods that wait, as soon as a node may take one."""

from collections.abc import Callable
from typing import NoReturn

from pipeline.clock import Clock
from pipeline.extender import limits
from pipeline.extender.waiting_pods import WaitingPods
from pipeline.logs import get_logger
from pipeline.table import FeedState, Table
from pipeline.times import format_time
from pipeline.topics.wake_ups import WakeUpRecord

_log = get_logger(__name__)

PublishWakeUp = Callable[[WakeUpRecord], None]


async def publish_wake_ups(
    waiting: WaitingPods, table: Table, state: FeedState, clock: Clock, publish: PublishWakeUp
) -> NoReturn:
    """Publish a wake-up whenever a node may take a waiting pod, for ever.

    What the extender refused before it started is unknown, and while it was away requests failed:
    once the table is caught up, pending pods get a wake-up.
    """
    while not state.caught_up:
        await clock.sleep(limits.WAKE_UP_CHECK_SECONDS)
    # Rows outlive the Node record: windows of a deleted node may still arrive.
    node = next((name for name in table if table.snapshot(name).node is not None), None)
    if table.pending and node is not None:
        publish(WakeUpRecord(node=node, at=format_time(clock.now())))
    while True:
        wake_up = waiting.judge(clock.now())
        if wake_up is not None:
            _log.info("wake-up", node=wake_up.node, pod=wake_up.pod, waiting=len(waiting))
            publish(wake_up)
        await clock.sleep(limits.JUDGE_SECONDS if len(waiting) else limits.WAKE_UP_CHECK_SECONDS)
