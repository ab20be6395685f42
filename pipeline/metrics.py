"""Declare metrics, and serve the metrics page of a role.

Names are `springtide_<role>_<name>_<unit>`, counters end in `_total`; units are seconds, bytes and
cores. Modules declare their metrics at import, in the process-wide `REGISTRY`:

    WINDOWS = counter("exporter_windows", "Windows published.", ["result"])

`DECLARED` has all of them, for docs/reference/metrics.md. A label must be in `LABELS`, which says
what bounds the number of its values.
"""

import asyncio
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import Final, Literal, NamedTuple

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Metric,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from pipeline import __version__
from pipeline.errors import SettingsError
from pipeline.logs import get_logger
from pipeline.metric_labels import LABELS
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

Kind = Literal["counter", "gauge", "histogram"]


class Declaration(NamedTuple):
    """A metric: its name in queries, and the module that declares it."""

    name: str
    kind: Kind
    documentation: str
    labels: tuple[str, ...]
    module: str


DECLARED: Final[dict[str, Declaration]] = {}
"""The declared metrics by name, also those whose series are made at each scrape."""

# Else each counter and histogram has a second series with the time of its creation.
disable_created_metrics()  # type: ignore[no-untyped-call]
ProcessCollector(registry=REGISTRY)
PlatformCollector(registry=REGISTRY)


def _declare(name: str, kind: Kind, documentation: str, labels: Sequence[str]) -> None:
    """Note a declaration of the caller's caller. Raises ValueError for a label that has no bound in
    `LABELS`."""
    if unbounded := [label for label in labels if label not in LABELS]:
        raise ValueError(
            f"{name}: state the bound of {unbounded[0]!r} in pipeline/metric_labels.py"
        )
    # As collections.namedtuple finds the module of its caller.
    module = sys._getframe(2).f_globals["__name__"]
    DECLARED[name] = Declaration(name, kind, documentation, tuple(labels), module)


def counter(name: str, documentation: str, labels: Sequence[str] = ()) -> Counter:
    """Declare the counter `springtide_<name>_total`."""
    _declare(f"{NAMESPACE}_{name}_total", "counter", documentation, labels)
    return Counter(name, documentation, labels, namespace=NAMESPACE, registry=REGISTRY)


def foreign_gauge(name: str, documentation: str, labels: Sequence[str]) -> Gauge:
    """Declare a gauge of another project under its own name, for its dashboards. A counter of the
    client library would end in `_total`, so that a counter of theirs is a gauge that only grows."""
    _declare(name, "gauge", documentation, labels)
    return Gauge(name, documentation, labels, registry=REGISTRY)


def gauge(name: str, documentation: str, labels: Sequence[str] = ()) -> Gauge:
    """Declare the gauge `springtide_<name>`; the name ends in its unit."""
    _declare(f"{NAMESPACE}_{name}", "gauge", documentation, labels)
    return Gauge(name, documentation, labels, namespace=NAMESPACE, registry=REGISTRY)


def histogram(
    name: str, documentation: str, labels: Sequence[str] = (), *, buckets: Sequence[float]
) -> Histogram:
    """Declare the histogram `springtide_<name>`; buckets are in the unit that ends the name."""
    _declare(f"{NAMESPACE}_{name}", "histogram", documentation, labels)
    return Histogram(
        name, documentation, labels, namespace=NAMESPACE, registry=REGISTRY, buckets=buckets
    )


def scraped_counter(
    name: str, documentation: str, labels: Sequence[str] = ()
) -> Callable[[], CounterMetricFamily]:
    """Declare the counter `springtide_<name>_total`, whose series a collector makes at each scrape:
    it yields what the result returns, with its series added."""
    _declare(f"{NAMESPACE}_{name}_total", "counter", documentation, labels)
    return partial(CounterMetricFamily, f"{NAMESPACE}_{name}", documentation, labels=labels)


def scraped_gauge(
    name: str, documentation: str, labels: Sequence[str] = ()
) -> Callable[[], GaugeMetricFamily]:
    """Declare the gauge `springtide_<name>`, whose series a collector makes at each scrape."""
    _declare(f"{NAMESPACE}_{name}", "gauge", documentation, labels)
    return partial(GaugeMetricFamily, f"{NAMESPACE}_{name}", documentation, labels=labels)


def foreign_scraped_gauge(
    name: str, documentation: str, labels: Sequence[str]
) -> Callable[[], GaugeMetricFamily]:
    """Declare a gauge of another project under its own name, likewise."""
    _declare(name, "gauge", documentation, labels)
    return partial(GaugeMetricFamily, name, documentation, labels=labels)


_BUILD = gauge(
    "build_info",
    "Constant 1 with the version, Python version and role as labels.",
    ["version", "python", "role"],
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
