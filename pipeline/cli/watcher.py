"""`springtide watcher`: keep nodes, pods and workloads of a cluster on the topics."""

import asyncio

import click

from pipeline.cli.options import KAFKA_CLIENT, KUBERNETES_CLIENT, settings_options
from pipeline.cli.role_runner import lead_until_stopped
from pipeline.clock import SystemClock
from pipeline.kube.api_client import Api
from pipeline.kube.lease import Lease
from pipeline.logs import get_logger
from pipeline.metrics import serve_metrics
from pipeline.settings import Settings
from pipeline.sources.cluster.watcher import watch_cluster

log = get_logger(__name__)

LEASE = "springtide-watcher"


@click.command(
    epilog="Exit codes: 0 stopped by a signal, 1 failure (not allowed by RBAC; a kind that the "
    "cluster does not have), 2 settings, 3 topics are missing. While Kafka or the API server is "
    "away it waits, and lists everything anew where it has to."
)
@settings_options(*KAFKA_CLIENT, *KUBERNETES_CLIENT, "kafka.partitions", "watcher.*")
def command(settings: Settings) -> None:
    """Follow Nodes, Pods, workloads, PodDisruptionBudgets and the policy of a cluster.

    What they say is kept on springtide.nodes, springtide.pods and springtide.workloads: a record
    for each object, a tombstone for each that is gone, also for those that went while nobody
    watched. The ConfigMap slo-controller-config is resolved for each node and lies in its record:
    an edit is in force within seconds, and a broken one changes nothing and is reported as an
    Event.

    Of several, one works (by a Lease) and the others stand by; the broker refuses whoever lost the
    lease. Needs what deploy/rbac/watcher.yaml allows.

    \b
    Examples:
      springtide watcher                           # in a pod: as its service account
      springtide watcher --kubeconfig ~/.kube/config --context test
    """
    asyncio.run(_run(settings))


async def _run(settings: Settings) -> None:
    clock = SystemClock()
    watcher = settings.watcher
    metrics = serve_metrics("watcher", watcher.metrics_host, watcher.metrics_port)
    if metrics is not None:
        log.info("metrics page", host=metrics.host, port=metrics.port)

    async def work(api: Api, lease: Lease) -> None:
        await watch_cluster(api, settings, clock)

    await lead_until_stopped(settings, LEASE, clock, work)
