"""`springtide evictor`: carry out eviction plans."""

import asyncio

import click

from actuators.eviction.eviction_actuator import Evictor
from pipeline.cli.help_sections import Command
from pipeline.cli.options import KAFKA_CLIENT, KUBERNETES_CLIENT, settings_options
from pipeline.cli.role_runner import run_leader
from pipeline.clock import Clock
from pipeline.kube.api_client import Api
from pipeline.kube.lease import Lease
from pipeline.metrics_server import Readiness
from pipeline.settings import Settings


@click.command(
    cls=Command,
    exit_codes={
        0: "stopped by a signal",
        1: "failure: Kafka is unavailable at the start, or RBAC denies a request",
        3: "topics are missing",
    },
)
@settings_options(
    *KAFKA_CLIENT, *KUBERNETES_CLIENT, "kafka.partitions", "evictor.*",
    "kubernetes.config_namespace", "kubernetes.descheduler_config_name",
    shown=("evictor.mode",),
)  # fmt: skip
def command(settings: Settings) -> None:
    """Evict pods by plan: to make room for Prod pods that every node refuses, or to relieve nodes.

    Extenders with --push-out publish plans on springtide.eviction-plans. In mode observe, the
    default, the evictor publishes what it would do on springtide.actions. --mode recommend adds an
    Event to the pod that waits, or that would leave. --mode act evicts by the Eviction API, which
    respects PodDisruptionBudgets.

    To make room, the evictor checks that the pod still waits, that each victim is Free, Batch or
    Mid and of lower priority, and that the API server would accept every eviction. Otherwise it
    evicts none. To relieve a node, it judges each pod alone, by Koordinator's protections. It
    evicts at most --evictions-per-minute, respects Koordinator's limits per node and workload, and
    ignores plans that have expired.

    If the cluster has PodMigrationJobs, it carries out those of users in the same way, and reports
    its evictions as jobs. Needs the permissions of deploy/chart/rbac/evictor-migration-jobs.yaml.

    \b
    To stop all evictions at once:
      kubectl create configmap -n springtide-system springtide-stop-evictions

    Several evictors elect a leader by a Lease. Needs the permissions of
    deploy/chart/rbac/evictor.yaml.

    \b
    Examples:
      springtide evictor
      springtide evictor --mode act --evictions-per-minute 5
    """

    async def work(api: Api, lease: Lease, clock: Clock) -> None:
        evictor = Evictor(api, settings, clock, lease)
        with readiness.leading(evictor.trouble):
            await evictor.run()

    readiness = Readiness()
    asyncio.run(run_leader("evictor", settings, settings.evictor, work, readiness=readiness))
