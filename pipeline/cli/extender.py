"""`springtide extender`: answer a scheduler's filter and prioritize questions."""

import asyncio
import gc
import signal
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile

import click

from pipeline.cli.options import KAFKA_CLIENT, settings_options
from pipeline.clock import SystemClock
from pipeline.errors import SettingsError
from pipeline.extender.plan_writer import PlanWriter
from pipeline.extender.scheduler_api import rules_of
from pipeline.extender.service import serve
from pipeline.kafka.client import client_options
from pipeline.kafka.lazy_producer import LazyProducer
from pipeline.settings import ExtenderSettings, Settings
from pipeline.table import AND_PODS, Feed, Table
from pipeline.table.apply_records import apply_point
from pipeline.table.dead_letter_writer import DeadLetterWriter
from pipeline.table.table_feed import HISTORY, VIEWS
from pipeline.table.table_snapshot import is_ours
from pipeline.table.usage_history import REFILLED_SECONDS
from pipeline.tasks import cancel_tasks


@click.command(
    epilog="Exit codes: 0 stopped by a signal, 1 failure, 2 settings (a port that is taken, a "
    "threshold out of range). While Kafka is away it stays up: it answers from what it has, whose "
    "age grows, and says so in its log, at /readyz and at /metrics."
)
@settings_options(*KAFKA_CLIENT, "extender.*")
def command(settings: Settings) -> None:
    """Serve POST /filter and POST /prioritize of the kube-scheduler extender protocol.

    Nodes whose last window used more of their allocatable than a threshold are refused, with the
    value and its age as the reason; the less used the rest, the higher they score (0 to 10). A node
    that is unknown or stale passes with score 0.

    It starts in mode observe: every node passes with score 0, and what would have been answered is
    logged and counted. --mode act makes the answers count. springtide scheduler config prints the
    scheduler's side. Other paths: GET /readyz, /healthz, /metrics, /v1/nodes
    (docs/reference/extender.md).

    With --push-out it plans who of Free, Batch and Mid would make room for a Prod pod that every
    node refuses; springtide evictor carries that out.

    SIGTERM: it says "draining" at /readyz and answers for 3 s more, then finishes what is under
    way. Ctrl-C or a second signal: without the 3 s.

    \b
    Examples:
      springtide extender
      springtide extender --mode act --cpu-threshold-percent 70
      curl -s localhost:8888/v1/nodes/node-1 | jq .usage
    """
    asyncio.run(_run(settings))


async def _run(settings: Settings) -> None:
    stop, at_once = asyncio.Event(), asyncio.Event()

    def signalled(number: signal.Signals) -> None:
        if number == signal.SIGINT or stop.is_set():
            at_once.set()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, signalled, number)
    client, prefix, clock = (
        client_options(settings.kafka),
        settings.kafka.topic_prefix,
        SystemClock(),
    )
    producer = LazyProducer(client)
    letters, plans = DeadLetterWriter(producer, prefix), PlanWriter(producer, settings.kafka)
    rules = rules_of(settings.extender)
    feed = Feed(
        Table(counting=rules.counting),
        client=client,
        prefix=prefix,
        clock=clock,
        on_bad=letters.send,
        topics=AND_PODS,
        snapshot=_snapshot(settings.extender),
    )
    beside = partial(Feed, client=client, prefix=prefix, clock=clock)
    views = beside(Table(), topics=VIEWS, name="node views", on_bad=letters.send)
    # Its bad records are told by the feed of the table.
    history = beside(
        Table(),
        topics=HISTORY,
        name="history",
        use=apply_point,
        recent_seconds=REFILLED_SECONDS,
    )
    frozen = asyncio.create_task(_freeze(feed))
    try:
        await serve(
            feed, settings.extender, clock, stop, at_once=at_once, rules=rules, views=views,
            history=history, publish=plans.write if settings.extender.push_out else None,
        )  # fmt: skip
        await plans.close()
    finally:
        await cancel_tasks(frozen)
        await producer.close()


def _snapshot(settings: ExtenderSettings) -> Path | None:
    """The file of snapshots. Raises `SettingsError` where none can be written, or where something
    else would be lost by that."""
    if settings.snapshot_file is None:
        return None
    file = Path(settings.snapshot_file)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=file.parent):
            pass
    except OSError as error:
        raise SettingsError(
            f"extender.snapshot_file: nothing can be written to {file.parent}: {error.strerror}",
            key="extender.snapshot_file",
            hint="name a file in a folder that the extender may write to",
        ) from error
    try:
        is_free = not file.exists() or is_ours(file)
    except OSError as error:
        raise SettingsError(
            f"extender.snapshot_file: {file} cannot be read: {error.strerror}",
            key="extender.snapshot_file",
            hint="name a file that the extender may read and write",
        ) from error
    if not is_free:
        raise SettingsError(
            f"extender.snapshot_file: {file} is there and is no snapshot",
            key="extender.snapshot_file",
            hint="name a file that is not there yet, or remove this one: it would be overwritten",
        )
    return file


async def _freeze(feed: Feed) -> None:
    """Spare the collector of garbage what stays: else it stops every answer for a tenth of a second
    now and then."""
    await feed.wait_caught_up()
    gc.collect()
    gc.freeze()
