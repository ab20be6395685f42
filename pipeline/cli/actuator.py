"""`springtide actuator`: make Nodes of a cluster offer what was worked out for them."""

import asyncio

import click

from actuators.cluster.cluster_actuator import Actuator
from pipeline.cli.options import KAFKA_CLIENT, KUBERNETES_CLIENT, settings_options
from pipeline.cli.role_runner import lead_until_stopped
from pipeline.clock import SystemClock
from pipeline.kafka.topic_admin import require_topics
from pipeline.kube.api_client import Api
from pipeline.kube.lease import Lease
from pipeline.logs import get_logger
from pipeline.metrics import serve_metrics
from pipeline.settings import Settings
from pipeline.sources.scheduler_config import placement_of

log = get_logger(__name__)

LEASE = "springtide-actuator"


@click.command(
    epilog="Exit codes: 0 stopped by a signal, 1 failure (Kafka cannot be reached at the start; "
    "not allowed by RBAC; no custom resource definitions), 2 settings, 3 topics are missing. While "
    "the API server is away it waits. While Kafka is away, what it knows grows old: it is taken "
    "back as stale in time."
)
@settings_options(
    *KAFKA_CLIENT,
    *KUBERNETES_CLIENT,
    "kafka.partitions",
    "actuator.*",
    "extender.cpu_threshold_percent",
    "extender.memory_threshold_percent",
    "extender.scheduler_config_file",
    "extender.scheduler_name",
)
def command(settings: Settings) -> None:
    """Write what springtide.resources says to the status of Nodes: mid-cpu, mid-memory, batch-cpu
    and batch-memory of kubernetes.io, as capacity and as allocatable.

    It starts in mode observe: what would be written is told on springtide.actions, summed up in the
    log each minute, and not written. --mode recommend writes an annotation, --mode act the
    resources. What a mode wrote is taken back when it runs in another, observe included: give a
    standby the mode of the leader. So it is when a node takes part no longer, or data is stale.

    A node that was above the extender's thresholds, or its own, and is not any more gets an
    annotation changed, so that the scheduler tries waiting pods again at once. Give it the
    thresholds, or the --scheduler-config-file, of the extender.

    A Node is written to when its offer changes by more than resourceDiffThreshold, or by anything
    after updateTimeThresholdSeconds; never more than --writes-per-second in all. Of several
    actuators one works (by a Lease). Needs what deploy/rbac/actuator.yaml allows.

    \b
    Examples:
      springtide actuator --mode observe
      springtide actuator --mode act --writes-per-second 50
    """
    asyncio.run(_run(settings))


async def _run(settings: Settings) -> None:
    clock = SystemClock()
    actuator, placement = settings.actuator, placement_of(settings.extender)
    await require_topics(settings.kafka)
    metrics = serve_metrics("actuator", actuator.metrics_host, actuator.metrics_port)
    if metrics is not None:
        log.info("metrics page", host=metrics.host, port=metrics.port)

    async def work(api: Api, lease: Lease) -> None:
        await Actuator(api, settings, placement, clock, lease).run()

    await lead_until_stopped(settings, LEASE, clock, work)
