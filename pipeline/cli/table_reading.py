"""Read the state table from Kafka, for commands that show it once or for as long as they run."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from pipeline.cli.kafka_requests import NOTICE_SECONDS
from pipeline.cli.safe_output import print_progress
from pipeline.clock import SystemClock
from pipeline.errors import KafkaError, NotReadyError, SpringtideError, TopicDriftError
from pipeline.kafka.client import client_options
from pipeline.settings import Settings
from pipeline.table import Feed, Table
from pipeline.table.apply_records import apply
from pipeline.table.table_feed import NODE_TOPICS, Apply
from pipeline.tasks import cancel_tasks
from pipeline.topics.registry import Topic


@asynccontextmanager
async def read_table(
    settings: Settings,
    table: Table,
    topics: Sequence[Topic] = NODE_TOPICS,
    *,
    waits_for_broker: bool = False,
    apply_record: Apply = apply,
    recent_seconds: float | None = None,
) -> AsyncIterator[Feed]:
    """Fill `table` from the topics, and keep it up to date until the context ends.

    Prints progress to standard error while it reads. Raises the `KafkaError` that stops it; with
    `waits_for_broker` it waits for a broker that is unavailable. `apply_record` and
    `recent_seconds` are those of the `Feed`.
    """
    async with feed_table(
        settings, table, topics, apply_record=apply_record, recent_seconds=recent_seconds
    ) as feed:
        await _wait_caught_up(feed, waits_for_broker=waits_for_broker)
        yield feed


@asynccontextmanager
async def feed_table(
    settings: Settings,
    table: Table,
    topics: Sequence[Topic] = NODE_TOPICS,
    *,
    apply_record: Apply = apply,
    recent_seconds: float | None = None,
) -> AsyncIterator[Feed]:
    """Feed `table` until the context ends: at first it is empty, and `Feed.state` says why."""
    feed = Feed(
        table,
        client=client_options(settings.kafka),
        prefix=settings.kafka.topic_prefix,
        clock=SystemClock(),
        topics=topics,
        apply_record=apply_record,
        recent_seconds=recent_seconds,
    )
    task = asyncio.create_task(feed.run())
    try:
        yield feed
    finally:
        await cancel_tasks(task)
        if not task.cancelled():
            task.result()  # a feed that was not cancelled has ended with an error


async def _wait_caught_up(feed: Feed, *, waits_for_broker: bool) -> None:
    start, is_first = time.monotonic(), True
    while not feed.state.caught_up:
        caught_up = asyncio.create_task(feed.wait_caught_up())
        failure = asyncio.create_task(feed.wait_failure())
        awaited = {caught_up} if waits_for_broker else {caught_up, failure}
        done, _ = await asyncio.wait(
            awaited, timeout=NOTICE_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        for task in (caught_up, failure):
            task.cancel()
        if failure in done:
            raise _reading_error(failure.result())
        if not done:
            text = f"reading node states ({feed.state.message}, {time.monotonic() - start:.0f} s)"
            print_progress(text, is_first=is_first)
            is_first = False


def _reading_error(failure: KafkaError) -> SpringtideError:
    if isinstance(failure, TopicDriftError):
        return NotReadyError(
            f"there are no node states: {failure.message}",
            hint=f"{failure.hint}, then start `springtide worker`",
        )
    return failure
