"""Refuse to start a second exporter for the same node, topics and file systems on one machine.

Its windows would have the same ends, and workers apply the first of each end only: usage would come
from either exporter by chance. Sockets and metrics pages of two exporters may differ, so neither
shows the mistake.
"""

import hashlib
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.errors import UsageError
from pipeline.settings import Settings


@contextmanager
def only_exporter_of(settings: Settings, node: str) -> Iterator[None]:
    """Hold the name of this exporter while the block runs. Raises `UsageError` if another process
    of this network namespace holds it."""
    kafka, exporter = settings.kafka, settings.exporter
    parts = (
        kafka.bootstrap_servers, kafka.topic_prefix, node, str(exporter.cgroup_root),
        exporter.cgroup_parent, str(exporter.proc_root),
    )  # fmt: skip
    digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()
    # An abstract socket: it disappears with its process, however that ends.
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as name:
        try:
            name.bind(f"\0springtide-exporter-{digest}")
        except OSError as error:
            raise UsageError(
                f"another exporter already measures node {node!r:.100} on this machine, for the "
                f"topics of {kafka.topic_prefix}",
                hint="stop one of the two: workers would apply windows of either by chance",
            ) from error
        yield
