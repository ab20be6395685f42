"""`springtide exporter`: sample this node and publish windows, or print one window."""

import asyncio
import os
import sys

import click
import msgspec

from pipeline.cli.help_sections import Command
from pipeline.cli.options import KAFKA_CLIENT, settings_options
from pipeline.clock import SystemClock
from pipeline.settings import Settings


@click.command(
    cls=Command,
    exit_codes={
        0: "stopped by a signal; windows that Kafka did not take within a bounded time are lost",
        1: "failure: the kernel's files cannot be read",
    },
)
@click.option(
    "--once",
    is_flag=True,
    help="Print the next window as JSON lines (a header, then a row per entity) and exit. Needs no "
    "Kafka.",
)
@settings_options(
    *KAFKA_CLIENT,
    "kafka.partitions",
    "exporter.*",
    shown=("exporter.node_name", "exporter.window_seconds", "exporter.cgroup_root"),
)
def command(settings: Settings, once: bool) -> None:
    """Sample this node every second and publish a window every 30 seconds.

    The exporter reads usage of the node, its pods, the best-effort tier and host applications from
    cgroups (v1 and v2) and /proc. It finds pods by the names of their cgroups, without a kubelet or
    an API server, and needs only read access. In a container mount the host's /sys/fs/cgroup, /proc
    and /sys, and give --cgroup-root, --proc-root and --sys-root.

    While Kafka is unavailable windows wait in a bounded buffer. On SIGTERM and Ctrl-C the exporter
    publishes the buffer and the current window. The last minute is served on --socket-path: send
    {"seconds": 10}.

    \b
    Examples:
      springtide exporter --bootstrap-servers kafka-0:9092
      springtide exporter --once --window-seconds 5
    """
    from node_exporter.exporter_service import collect_window, run

    if not once:
        asyncio.run(run(settings, os.environ))
        return
    batch = asyncio.run(collect_window(settings.exporter, os.environ, SystemClock()))
    header = {"kind": "header"} | msgspec.structs.asdict(batch.header)
    for record in (header, *batch.rows):
        sys.stdout.buffer.write(msgspec.json.encode(record) + b"\n")
    sys.stdout.flush()
