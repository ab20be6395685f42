"""`springtide extender`: serve filter and prioritize to kube-scheduler."""

import asyncio
import gc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

import click

from pipeline import tracing
from pipeline.cli.help_sections import Command
from pipeline.cli.options import KAFKA_CLIENT, settings_options, silence_logs
from pipeline.clock import SystemClock
from pipeline.errors import SettingsError
from pipeline.extender.console_reading import read_judged, read_results, relief_feed
from pipeline.extender.decision_rules import rules_of
from pipeline.extender.record_writer import RecordWriter
from pipeline.extender.service import serve
from pipeline.kafka.client import client_options
from pipeline.kafka.producer import Producer
from pipeline.settings import ExtenderSettings, Settings
from pipeline.table import NODE_AND_POD_TOPICS, Feed, Table
from pipeline.table.apply_records import apply_pod_points, apply_point
from pipeline.table.limits import REFILLED_SECONDS
from pipeline.table.table_feed import HISTORY_TOPICS, POD_HISTORY_TOPICS, VIEW_TOPICS
from pipeline.table.table_snapshot import is_ours
from pipeline.tasks import cancel_tasks, ignore_stop_signals, stop_events
from pipeline.topics.registry import DEAD_LETTERS

_USUAL_WINDOW_SECONDS: Final = 30.0


@click.command(
    cls=Command,
    exit_codes={0: "stopped by a signal", 2: "invalid usage or settings, such as a port in use"},
)
@settings_options(
    *KAFKA_CLIENT,
    "extender.*",
    shown=("extender.mode", "extender.scheduler_config_file"),
)
def command(settings: Settings) -> None:
    """Serve POST /filter and POST /prioritize of the kube-scheduler extender protocol.

    The extender refuses nodes whose last window used more of their allocatable than a threshold;
    `springtide why-not` prints the numbers. It scores the others from 0 to 10: the less usage, the
    higher. A node that is unknown or stale passes with score 0.

    In mode observe, the default, every node passes with score 0, and the extender logs and counts
    its actual decisions. --mode act applies them. `springtide scheduler config` prints the
    scheduler's side. GET /readyz, /healthz, /metrics and /v1/nodes are on the same port.

    With --push-out the extender plans which Free, Batch and Mid pods make room for a Prod pod that
    every node refuses; `springtide evictor` carries out the plans.

    While Kafka is unavailable the extender answers from the table that it has, and reports the
    table's age in its log, at /readyz and at /metrics. On SIGTERM it reports "draining" at /readyz,
    answers for 3 s more, and finishes open requests. Ctrl-C or a second signal skips the 3 s.

    \b
    Examples:
      springtide extender
      springtide extender --mode act --cpu-threshold-percent 70
      curl -s localhost:8888/v1/nodes/node-1 | jq .usage
    """
    # aiokafka logs each failed attempt of each feed; a feed logs once why it is not fed.
    silence_logs(settings, "aiokafka")
    with tracing.exporting("extender", settings.tracing):
        asyncio.run(_run(settings))


async def _run(settings: Settings) -> None:
    stop, at_once = stop_events()
    client, prefix = client_options(settings.kafka), settings.kafka.topic_prefix
    clock = SystemClock()
    producer = Producer(client)
    records = RecordWriter(producer, prefix)
    report_bad = partial(producer.offer_dead_letter, DEAD_LETTERS.full_name(prefix))
    rules = rules_of(settings.extender)
    make_feed = partial(Feed, client=client, prefix=prefix, clock=clock)
    feed = make_feed(
        Table(counting=rules.counting),
        on_bad=report_bad,
        topics=NODE_AND_POD_TOPICS,
        snapshot=_snapshot_path(settings.extender),
    )
    views = make_feed(Table(), topics=VIEW_TOPICS, name="node views", on_bad=report_bad)
    # The feed of the table reports its bad records.
    history = make_feed(
        Table(node_windows=settings.extender.history_windows),
        topics=HISTORY_TOPICS,
        name="history",
        apply_record=partial(apply_point, now=clock.now),
        recent_seconds=REFILLED_SECONDS,
    )
    pod_history = _pod_history(settings.extender, make_feed)
    plans, relief = relief_feed(client, prefix, clock)
    freezing = asyncio.create_task(_freeze_when_loaded(feed))
    try:
        await serve(
            feed, settings.extender, clock, stop, at_once=at_once, rules=rules, views=views,
            history=history, pod_history=pod_history,
            publish=records.write_plan if settings.extender.push_out else None,
            publish_wake_up=records.write_wake_up,
            plans=plans, relief=relief, read_judged=partial(read_judged, settings.kafka),
            read_results=partial(read_results, settings.kafka),
        )  # fmt: skip
        await records.close()
    finally:
        ignore_stop_signals()
        await cancel_tasks(freezing)
        await producer.stop()


def _pod_history(settings: ExtenderSettings, make_feed: Callable[..., Feed]) -> Feed | None:
    """The feed of recent usage of pods; None if the settings switch it off."""
    windows = settings.pod_history_windows
    if not windows:
        return None
    return make_feed(
        Table(pod_windows=windows),
        topics=POD_HISTORY_TOPICS,
        name="pod history",
        apply_record=apply_pod_points,
        recent_seconds=_USUAL_WINDOW_SECONDS * windows,
    )


def _snapshot_path(settings: ExtenderSettings) -> Path | None:
    """Return the file of snapshots. Raises `SettingsError` if it cannot be written, or if another
    file would be overwritten."""
    if settings.snapshot_file is None:
        return None
    file = Path(settings.snapshot_file)
    try:
        with TemporaryFile(dir=file.parent):
            is_free = not file.exists() or is_ours(file)
    except OSError as error:
        raise SettingsError(
            f"extender.snapshot_file: cannot read and write {file}: {error.strerror}",
            key="extender.snapshot_file",
            hint="give a file in an existing directory that the extender can read and write",
        ) from error
    if not is_free:
        raise SettingsError(
            f"extender.snapshot_file: {file} exists and is not a snapshot",
            key="extender.snapshot_file",
            hint="give another file, or remove this one, which would be overwritten",
        )
    return file


async def _freeze_when_loaded(feed: Feed) -> None:
    """Exclude the loaded table from garbage collection, which would otherwise delay answers by
    about 100 ms now and then."""
    await feed.wait_caught_up()
    gc.collect()
    gc.freeze()
