"""Declare metrics, and serve the metrics page of a role.

Names are `springtide_<role>_<name>_<unit>`, counters end in `_total`; units are seconds, bytes and
cores. Modules declare their metrics at import, in the process-wide `REGISTRY`:

    WINDOWS = counter("exporter_windows", "Windows published.", ["result"])
"""

import platform
from collections.abc import Sequence
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
from pipeline.logs import get_logger

log = get_logger(__name__)

NAMESPACE = "springtide"
REGISTRY = CollectorRegistry()
CONTENT_TYPE = CONTENT_TYPE_LATEST

ProcessCollector(registry=REGISTRY)
PlatformCollector(registry=REGISTRY)

_BUILD = Gauge(
    "build_info",
    "Constant 1 with the version, Python version and role as labels.",
    ["version", "python", "role"],
    namespace=NAMESPACE,
    registry=REGISTRY,
)


def counter(name: str, documentation: str, labels: Sequence[str] = ()) -> Counter:
    """Declare the counter `springtide_<name>_total`."""
    return Counter(name, documentation, labels, namespace=NAMESPACE, registry=REGISTRY)


def gauge(name: str, documentation: str, labels: Sequence[str] = ()) -> Gauge:
    """Declare the gauge `springtide_<name>`; the name ends in its unit."""
    return Gauge(name, documentation, labels, namespace=NAMESPACE, registry=REGISTRY)


def histogram(
    name: str, documentation: str, labels: Sequence[str] = (), *, buckets: Sequence[float]
) -> Histogram:
    """Declare the histogram `springtide_<name>`; buckets are in the unit that ends the name."""
    return Histogram(
        name, documentation, labels, namespace=NAMESPACE, registry=REGISTRY, buckets=buckets
    )


def declare_role(role: str) -> None:
    """Set the role of this process in `springtide_build_info`."""
    _BUILD.labels(__version__, platform.python_version(), role).set(1)


def page() -> bytes:
    """Return the metrics page in Prometheus' text format, for roles with their own web server."""
    return generate_latest(REGISTRY)


def serve_metrics(role: str, host: str, port: int | None) -> WSGIServer | None:
    """Serve the metrics page in a thread; `port` 0 is any free port, None is no page.

    Raises `SettingsError` if it cannot listen on the address.
    """
    declare_role(role)
    if port is None:
        return None
    try:
        server, _ = start_http_server(port, host, registry=REGISTRY)
    except (OSError, OverflowError) as error:
        raise SettingsError.listening(error, host, port, f"{role}.metrics_port") from error
    log.info("metrics page", host=host, port=server.server_port)
    return server
