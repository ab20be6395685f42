"""Declare metrics, and serve the metrics page of a role.

Names are `springtide_<role>_<name>_<unit>`, counters end in `_total`; units are seconds, bytes and
cores. Modules declare their metrics at import, in the process-wide `REGISTRY`:

    WINDOWS = counter("exporter_windows", "Windows published.", ["result"])
"""

import asyncio
import platform
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Final, NamedTuple

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Metric,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from pipeline import __version__
from pipeline.errors import SettingsError
from pipeline.logs import get_logger
from pipeline.metrics_server import MetricsServer, Readiness

log = get_logger(__name__)

NAMESPACE = "springtide"
REGISTRY = CollectorRegistry()
CONTENT_TYPE = CONTENT_TYPE_LATEST
TURN_SECONDS: Final = 0.0005
"""A page gives way to other work of the event loop after this time."""
_PAUSE_SECONDS: Final = 0.005
"""And continues after this time: an answer that takes some turns of the event loop would otherwise
wait for a part of the page in each of them."""

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


def foreign_counter(name: str, documentation: str, labels: Sequence[str]) -> Gauge:
    """Declare a counter of another project under its own name, for its dashboards. A counter of the
    client library would end in `_total`, so this is a gauge that only grows."""
    return Gauge(name, documentation, labels, registry=REGISTRY)


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


async def page() -> bytes:
    """Return the metrics page in Prometheus' text format, for roles with their own web server.

    The page is written metric by metric, and other work of the event loop goes on in between.
    """
    parts, began = [], perf_counter()
    for metric in REGISTRY.collect():
        parts.append(generate_latest(_OneMetric(metric)))
        if perf_counter() - began > TURN_SECONDS:
            await asyncio.sleep(_PAUSE_SECONDS)
            began = perf_counter()
    return b"".join(parts)


class _OneMetric(NamedTuple):
    """A registry of one metric."""

    metric: Metric

    def collect(self) -> Iterator[Metric]:
        yield self.metric


def serve_metrics(
    role: str, host: str, port: int | None, readiness: Readiness | None = None
) -> MetricsServer | None:
    """Serve the metrics page in a thread, with the `readiness` of a role that has one; `port` 0 is
    any free port, None is no page.

    Raises `SettingsError` if it cannot listen on the address.
    """
    declare_role(role)
    if port is None:
        return None
    try:
        server = MetricsServer(host, port, REGISTRY, readiness)
    except (OSError, OverflowError) as error:
        raise SettingsError.listening(error, host, port, f"{role}.metrics_port") from error
    log.info("metrics page", host=host, port=server.server_port)
    return server
