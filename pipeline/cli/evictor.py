"""`springtide evictor`: evict pods that a plan wants to leave their node."""

import asyncio

import click

from actuators.eviction.eviction_actuator import Evictor
from pipeline.cli.options import KAFKA_CLIENT, KUBERNETES_CLIENT, settings_options
from pipeline.cli.role_runner import lead_until_stopped
from pipeline.clock import SystemClock
from pipeline.kafka.topic_admin import require_topics
from pipeline.kube.api_client import Api
from pipeline.kube.lease import Lease
from pipeline.logs import get_logger
from pipeline.metrics import serve_metrics
from pipeline.settings import Settings

log = get_logger(__name__)

LEASE = "springtide-evictor"


@click.command(
    epilog="Exit codes: 0 stopped by a signal, 1 failure (Kafka cannot be reached at the start; "
    "not allowed by RBAC), 2 settings, 3 topics are missing. While the API server is away plans "
    "run out: they hold for seconds."
)
@settings_options(*KAFKA_CLIENT, *KUBERNETES_CLIENT, "kafka.partitions", "evictor.*")
def command(settings: Settings) -> None:
    """Carry out the plans on springtide.eviction-plans: where every node refuses a Prod pod, pods
    of Free, Batch or Mid leave one of them (extenders plan so with --push-out).

    It starts in mode observe: what would be done is told on springtide.actions. --mode recommend
    adds an Event of the pod that waits; --mode act evicts, by the Eviction API, so that disruption
    budgets hold. Before it does it looks again: does the pod still wait, is each of the others of
    such a class and of a lower priority, would the API server let all of them go. If not, none
    leaves; never more than --evictions-per-minute.

    To stop it at once:
      kubectl create configmap -n springtide-system springtide-stop-evictions

    Of several evictors one works (by a Lease). Needs what deploy/rbac/evictor.yaml allows.

    \b
    Examples:
      springtide evictor
      springtide evictor --mode act --evictions-per-minute 5
    """
    asyncio.run(_run(settings))


async def _run(settings: Settings) -> None:
    clock = SystemClock()
    evictor = settings.evictor
    await require_topics(settings.kafka)
    metrics = serve_metrics("evictor", evictor.metrics_host, evictor.metrics_port)
    if metrics is not None:
        log.info("metrics page", host=metrics.host, port=metrics.port)

    async def work(api: Api, lease: Lease) -> None:
        await Evictor(api, settings, clock, lease).run()

    await lead_until_stopped(settings, LEASE, clock, work)
