"""What every role's metrics page has in common.

Names are `springtide_<role>_<what>_<unit>`, counters end in `_total`; seconds, bytes and cores
are the units. One registry a process: `REGISTRY`. A module makes its metrics at import:

    WINDOWS = counter("exporter_windows", "Windows published.", ["result"])
"""

import platform
from collections.abc import Sequence
from threading import Thread
from wsgiref.simple_server import WSGIServer

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    start_http_server,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from pipeline import __version__
from pipeline.errors import SettingsError

NAMESPACE = "springtide"
REGISTRY = CollectorRegistry()
CONTENT_TYPE = CONTENT_TYPE_LATEST

ProcessCollector(registry=REGISTRY)
PlatformCollector(registry=REGISTRY)

_BUILD = Gauge(
    "build_info",
    "1; the labels say what runs.",
    ["version", "python", "role"],
    namespace=NAMESPACE,
    registry=REGISTRY,
)


def counter(name: str, documentation: str, labels: Sequence[str] = ()) -> Counter:
    """A counter `springtide_<name>_total`."""
    return Counter(name, documentation, labels, namespace=NAMESPACE, registry=REGISTRY)


def gauge(name: str, documentation: str, labels: Sequence[str] = ()) -> Gauge:
    """A gauge `springtide_<name>`; the name ends in its unit."""
    return Gauge(name, documentation, labels, namespace=NAMESPACE, registry=REGISTRY)


def histogram(
    name: str, documentation: str, labels: Sequence[str] = (), *, buckets: Sequence[float]
) -> Histogram:
    """A histogram `springtide_<name>`; the name ends in its unit, the buckets are in that unit."""
    return Histogram(
        name, documentation, labels, namespace=NAMESPACE, registry=REGISTRY, buckets=buckets
    )


def declare_role(role: str) -> None:
    """Say in `springtide_build_info` which role this process has."""
    _BUILD.labels(__version__, platform.python_version(), role).set(1)


def page() -> bytes:
    """The metrics page in Prometheus' text format, for roles that have a web server anyway."""
    return generate_latest(REGISTRY)


class MetricsServer:
    """A running metrics page; `port` is the one it got, `close()` ends it."""

    def __init__(self, host: str, server: WSGIServer, thread: Thread) -> None:
        self.host = host
        self.port: int = server.server_port
        self._server = server
        self._thread = thread

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve_metrics(role: str, host: str, port: int | None) -> MetricsServer | None:
    """Serve the metrics page from a thread: `port` 0 is any free one, None is no page.

    Raises SettingsError if the address cannot be listened on.
    """
    declare_role(role)
    if port is None:
        return None
    try:
        server, thread = start_http_server(port, host, registry=REGISTRY)
    except (OSError, OverflowError) as error:
        raise SettingsError.listening(error, host, port, f"{role}.metrics_port") from error
    return MetricsServer(host, server, thread)
