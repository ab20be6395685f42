"""`springtide archive`: write windows to Parquet files."""

import asyncio

import click

from pipeline.archive.archiver import archive
from pipeline.cli.help_sections import Command
from pipeline.cli.options import KAFKA_CLIENT, settings_options
from pipeline.clock import SystemClock
from pipeline.kafka.topic_admin import require_topics
from pipeline.metrics import serve_metrics
from pipeline.metrics_server import Readiness
from pipeline.settings import Settings
from pipeline.tasks import work_until_stopped
from pipeline.topics.access import ROLES


@click.command(
    cls=Command,
    exit_codes={
        0: "stopped by a signal; with --until-end: everything is archived",
        1: "failure: Kafka is unavailable at the start, the directory is in use by another "
        "archiver, damaged or of another topic; with --until-end also a full disk",
        3: "the topic is missing",
    },
)
@click.option(
    "--until-end",
    is_flag=True,
    help="Archive what the topic has now, and exit. Without it the archiver follows the topic.",
)
@settings_options(
    *KAFKA_CLIENT, "kafka.partitions", "archive.*", shown=("archive.directory", "archive.keep_days")
)
def command(settings: Settings, until_end: bool) -> None:
    """Write springtide.windows to Parquet files in folders of days (UTC).

    The topic keeps windows for three days, the archive for good, or for --keep-days. pandas, polars
    and DuckDB read the files as they are; a row is an entity of a window: a node, a pod, a tier or
    a host application.

    The position in the topic is part of the files. An archiver that was killed continues where its
    newest files end: no window is missing, none is there twice. Windows are in a file after
    --file-seconds at the latest, or when the archiver is stopped by a signal.

    \b
    Examples:
      springtide archive --directory /var/lib/springtide/archive
      springtide archive --directory archive --keep-days 90 --file-seconds 900
      springtide archive --directory archive --until-end
    """
    asyncio.run(_run(settings, until_end))


async def _run(settings: Settings, until_end: bool) -> None:
    await require_topics(settings.kafka, ROLES["archive"].topics)
    readiness = Readiness(lambda: "starting")
    if not until_end:
        section = settings.archive
        serve_metrics("archive", section.metrics_host, section.metrics_port, readiness)
    await work_until_stopped(archive(settings, SystemClock(), readiness, until_end=until_end))
