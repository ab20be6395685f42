"""`springtide exporter`: sample this node, publish windows; or print one window."""

import asyncio
import os
import sys

import click
import msgspec

from pipeline.cli.options import KAFKA_CLIENT, settings_options
from pipeline.clock import SystemClock
from pipeline.settings import Settings


@click.command(
    epilog="Exit codes: 0 stopped by a signal with every window in Kafka or lost after a bounded "
    "wait, 1 the kernel's files cannot be read, 2 settings. Reading other users' cgroups needs no "
    "more than read access; in a container mount the host's /sys/fs/cgroup, /proc and /sys and "
    "give --cgroup-root, --proc-root and --sys-root."
)
@click.option(
    "--once",
    is_flag=True,
    help="Print the next window as JSON lines (header, then a row per entity) and end; needs no "
    "Kafka.",
)
@settings_options(*KAFKA_CLIENT, "kafka.partitions", "exporter.*")
def command(settings: Settings, once: bool) -> None:
    """Sample this node every second and publish a window every 30.

    Node, pods, best-effort tier and host applications are read from cgroups (v1 and v2) and /proc.
    Pods are found by the names of their cgroups: no kubelet and no API server is asked. While Kafka
    is away windows wait in a bounded buffer. SIGTERM and Ctrl-C flush it, the window in hand
    included. The last minute is served on --socket-path: send {"seconds": 10}.

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
    for record in ({"kind": "header"} | batch.header.metadata(), *batch.rows):
        sys.stdout.buffer.write(msgspec.json.encode(record) + b"\n")
    sys.stdout.flush()
