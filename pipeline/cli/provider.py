"""`springtide provider`: publish usage that another system measured."""

import asyncio
import sys
from collections.abc import Iterator

import click
import msgspec

from pipeline.cli.help_sections import Command
from pipeline.cli.options import KAFKA_CLIENT, settings_options
from pipeline.cli.role_runner import lead_until_stopped
from pipeline.clock import Clock, SystemClock
from pipeline.errors import KubernetesError, SampleSourceError, SettingsError, UsageError
from pipeline.kube.api_access import NO_CLUSTER
from pipeline.kube.api_client import Api
from pipeline.logs import get_logger
from pipeline.processors.imported_usage.fetched_usage import FetchedUsage, window_before
from pipeline.settings import Settings
from pipeline.sources.provider.registry import SOURCES
from pipeline.sources.provider.sample_source import SampleSource
from pipeline.sources.provider.status_page import Status, serve
from pipeline.sources.provider.window_rounds import provide
from pipeline.tasks import work_until_stopped
from pipeline.times import format_time

log = get_logger(__name__)

LEASE = "springtide-provider"


def _source_rows() -> Iterator[tuple[str, str]]:
    """Yield the name and help of each sample source, or why it is unusable."""
    for name in SOURCES.points:
        try:
            yield name, SOURCES.get(name).help
        except SettingsError as error:
            yield name, f"unusable: {error.message}"


@click.command(
    cls=Command,
    exit_codes={
        0: "stopped by a signal, or the requested output is printed",
        1: "failure: RBAC denies a request, or --once fetched nothing",
        3: "topics are missing",
    },
    tables={"Sample sources (--kind)": [*_source_rows()]},
)
@click.option(
    "--once",
    is_flag=True,
    help="Print the last window as JSON lines, one per node or pod, and exit. Publishes nothing.",
)
@click.option("--show-queries", is_flag=True, help="Print the queries of sources, and exit.")
@settings_options(
    *KAFKA_CLIENT, "kubernetes.kubeconfig", "kubernetes.context", "kubernetes.namespace",
    "kafka.partitions", "provider.*",
    shown=("provider.kind",),
)  # fmt: skip
def command(settings: Settings, once: bool, show_queries: bool) -> None:
    """Publish usage of nodes and pods that another system measured.

    For clusters or nodes without exporters: the provider publishes a sample of each node on
    springtide.samples every minute. It skips nodes that have an exporter. Values that the source
    does not have are unknown, not 0.

    Several providers elect a leader by a Lease; without an API server give --no-lease and run one.
    While Kafka, the API server or the source is unavailable the provider waits, and omits the
    windows of that time. GET /readyz, /healthz and /metrics are on --port.

    \b
    Examples:
      springtide provider --kind prometheus --url http://prometheus-k8s.monitoring:9090
      springtide provider --kind metrics-server
      springtide provider --kind prometheus --once --no-lease | head -3
      springtide provider --show-queries --node-label node
    """
    if show_queries:
        for name in SOURCES.points:
            for text in SOURCES.get(name).queries(settings.provider):
                click.echo(text)
        return
    source = SOURCES.get(settings.provider.kind)
    source.read_options(settings.provider)
    if once:
        fetched = asyncio.run(fetch_once(source, settings, SystemClock()))
        _print_usage(fetched)
        if not fetched.nodes and not fetched.pods:
            raise SampleSourceError(
                f"the last window has no usage of any node or pod: {_empty_reason(fetched)}",
                hint=source.hint,
            )
    elif source.publishes:
        raise UsageError(
            f"nothing to import: {source.text}",
            hint="give another sample source with --kind, or --once to print a window",
        )
    else:
        asyncio.run(_run(source, settings, SystemClock()))


async def _run(source: SampleSource, settings: Settings, clock: Clock) -> None:
    status = Status(settings.provider, clock)

    async def work(api: Api | None) -> None:
        status.leads = True
        try:
            async with source.open(settings, clock, api) as session:
                await provide(session, settings, clock, status)
        finally:
            status.leads = False

    async with serve(settings.provider, status) as port:
        log.info("provider starts", kind=source.name, port=port)
        if not settings.provider.lease:
            await work_until_stopped(work(None))
            return
        try:
            name = settings.provider.name
            lease = LEASE if name is None else f"{LEASE}-{name}"
            await lead_until_stopped(settings, lease, clock, lambda api, _: work(api))
        except KubernetesError as error:
            if not source.needs_cluster and error.hint == NO_CLUSTER:
                error.hint = (
                    f"{NO_CLUSTER}; without a cluster give --no-lease, and run one provider"
                )
            raise


async def fetch_once(source: SampleSource, settings: Settings, clock: Clock) -> FetchedUsage:
    """Fetch the last window whose delay is over; from a source without history, the window that
    ends now."""
    length_ms = settings.provider.window_seconds * 1000
    now_ms = round(clock.now() * 1000)
    async with source.open(settings, clock, None) as session:
        window = window_before(now_ms - round(settings.provider.delay_seconds * 1000), length_ms)
        if not source.has_history:
            window = window._replace(start_ms=now_ms - length_ms, end_ms=now_ms)
        log.info("fetching one window", end=format_time(window.end_ms / 1000))
        return await session.fetch(window)


def _empty_reason(fetched: FetchedUsage) -> str:
    if fetched.failed:
        return f"{len(fetched.failed)} queries failed, with the reasons above"
    left_out = ", ".join(f"{count} {reason}" for reason, count in sorted(fetched.left_out.items()))
    return f"left out: {left_out}" if left_out else "every answer was empty"


def _print_usage(fetched: FetchedUsage) -> None:
    write = sys.stdout.buffer.write
    for node in sorted(fetched.nodes):
        write(msgspec.json.encode({"kind": "node", "node": node, **fetched.nodes[node]}) + b"\n")
    for pod in sorted(fetched.pods):
        write(msgspec.json.encode({"kind": "pod", **pod._asdict(), **fetched.pods[pod]}) + b"\n")
    for column, reason in fetched.failed.items():
        log.warning("column not fetched", column=column, reason=reason)
    log.info("fetched", nodes=len(fetched.nodes), pods=len(fetched.pods),
             left_out=dict(fetched.left_out), bad_values=dict(fetched.bad_values))  # fmt: skip
    sys.stdout.flush()
