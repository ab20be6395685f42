"""`springtide provider`: usage that others have measured, onto the samples topic."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import click
import msgspec

from pipeline.cli.options import KAFKA_CLIENT, settings_options
from pipeline.cli.role_runner import lead_until_stopped, work_until_stopped
from pipeline.clock import Clock, SystemClock
from pipeline.errors import KubernetesError, ProviderError, UsageError
from pipeline.kube.api_access import NO_CLUSTER
from pipeline.kube.api_client import Api, open_api
from pipeline.kube.lease import Lease
from pipeline.logs import get_logger
from pipeline.processors.provided.fetched_usage import Fetched, window_before
from pipeline.processors.provided.promql import queries
from pipeline.settings import Settings
from pipeline.sources.providers.metrics_server import open_metrics_server
from pipeline.sources.providers.prometheus_provider import grid_of, open_prometheus
from pipeline.sources.providers.protocol import Provider
from pipeline.sources.providers.samples_provider import open_stream
from pipeline.sources.providers.status_page import Status, serve
from pipeline.sources.providers.window_rounds import provide
from pipeline.times import format_time

log = get_logger(__name__)

LEASE = "springtide-provider"
_NOTHING: Final = {
    "stream": "see whether exporters run: `springtide doctor`",
    "prometheus": "see what is asked with --show-queries; the labels --node-label and "
    "--pod-node-label must hold the nodes' names",
    "metrics-server": "see what `kubectl top nodes` says",
}


@click.command(
    epilog="Exit codes: 0 stopped by a signal, 1 failure (not allowed by RBAC; with --once: "
    "nothing could be fetched), 2 settings, 3 topics are missing. While Kafka, the API server or "
    "the source is away it waits; windows of that time are left out."
)
@click.option(
    "--once",
    is_flag=True,
    help="Print the last window as JSON lines, one a node or pod, and end; nothing is published.",
)
@click.option(
    "--show-queries", is_flag=True, help="Print the PromQL that Prometheus is asked, and end."
)
@settings_options(
    *KAFKA_CLIENT,
    "kubernetes.kubeconfig",
    "kubernetes.context",
    "kubernetes.namespace",
    "kafka.partitions",
    "provider.*",
)
def command(settings: Settings, once: bool, show_queries: bool) -> None:
    """Publish usage of nodes and pods from Prometheus or metrics-server, as exporters do.

    For clusters, or nodes, without our exporter: every minute one sample of each node goes to
    springtide.samples, and everything behind it works as ever, as well as the source sees. Nodes of
    which an exporter publishes are left alone. What a source does not know is unknown, not 0.

    With --kind stream, the default, exporters publish by themselves: there is nothing to do but
    --once, which shows what they said. Of several providers one works (by a Lease); without an API
    server give --no-lease and run one. GET /readyz, /healthz and /metrics are on --port.

    \b
    Examples:
      springtide provider --kind prometheus --url http://prometheus-k8s.monitoring:9090
      springtide provider --kind metrics-server
      springtide provider --kind prometheus --once --no-lease | head -3
      springtide provider --show-queries --node-label node
    """
    if show_queries:
        for query in queries(settings.provider.queries, grid_of(settings.provider)):
            click.echo(f"{query.key}\n  {query.text.replace(chr(10), '')}")
    elif once:
        fetched = asyncio.run(_fetch_once(settings, SystemClock()))
        _print(fetched)
        if not fetched.nodes and not fetched.pods:
            raise ProviderError(
                f"of the last window nothing could be had of any node or pod: {_why_not(fetched)}",
                hint=_NOTHING[settings.provider.kind],
            )
    elif settings.provider.kind == "stream":
        raise UsageError(
            "exporters publish by themselves, nothing is to be brought",
            hint="give --kind prometheus or --kind metrics-server, or --once to look",
        )
    else:
        asyncio.run(_run(settings, SystemClock()))


async def _run(settings: Settings, clock: Clock) -> None:
    status = Status(settings.provider, clock)

    async def work(api: Api | None) -> None:
        status.leads = True
        try:
            async with _open(settings, clock, api) as provider:
                await provide(provider, settings, clock, status)
        finally:
            status.leads = False

    async def lead(api: Api, lease: Lease) -> None:
        await work(api)

    async with serve(settings.provider, status) as port:
        log.info("provider starts", kind=settings.provider.kind, port=port)
        if not settings.provider.lease:
            await work_until_stopped(work(None))
            return
        try:
            await lead_until_stopped(settings, LEASE, clock, lead)
        except KubernetesError as error:
            if settings.provider.kind == "prometheus" and error.hint == NO_CLUSTER:
                error.hint = f"{NO_CLUSTER}; without a cluster give --no-lease, and run one"
            raise


@asynccontextmanager
async def _open(settings: Settings, clock: Clock, api: Api | None) -> AsyncIterator[Provider]:
    match settings.provider.kind:
        case "stream":
            async with open_stream(settings.kafka) as stream:
                yield stream
        case "prometheus":
            async with open_prometheus(settings.provider, clock) as prometheus:
                yield prometheus
        case "metrics-server":
            every_seconds = settings.provider.poll_seconds
            if api is not None:
                async with open_metrics_server(api, every_seconds) as server:
                    yield server
                return
            async with (
                open_api(settings.kubernetes, clock) as own,
                open_metrics_server(own, every_seconds) as server,
            ):
                yield server


async def _fetch_once(settings: Settings, clock: Clock) -> Fetched:
    """The last window whose delay is over; of metrics-server, which tells but the last reading, the
    one that ends now."""
    length_ms = settings.provider.window_seconds * 1000
    now_ms = round(clock.now() * 1000)
    async with _open(settings, clock, None) as provider:
        window = window_before(now_ms - round(settings.provider.delay_seconds * 1000), length_ms)
        if settings.provider.kind == "metrics-server":
            window = window._replace(start_ms=now_ms - length_ms, end_ms=now_ms)
        log.info("one window", end=format_time(window.end_ms / 1000))
        return await provider.fetch(window)


def _why_not(fetched: Fetched) -> str:
    if fetched.failed:
        return f"questions that failed, with the reasons above: {len(fetched.failed)}"
    left_out = ", ".join(f"{count} {why}" for why, count in sorted(fetched.left_out.items()))
    return f"left out were {left_out}" if left_out else "every answer was empty"


def _print(fetched: Fetched) -> None:
    write = sys.stdout.buffer.write
    for node in sorted(fetched.nodes):
        write(msgspec.json.encode({"kind": "node", "node": node, **fetched.nodes[node]}) + b"\n")
    for pod in sorted(fetched.pods):
        write(msgspec.json.encode({"kind": "pod", **pod._asdict(), **fetched.pods[pod]}) + b"\n")
    for column, why in fetched.failed.items():
        log.warning("a column could not be had", column=column, why=why)
    log.info("fetched", nodes=len(fetched.nodes), pods=len(fetched.pods),
             left_out=dict(fetched.left_out), bad_values=dict(fetched.bad_values))  # fmt: skip
    sys.stdout.flush()
