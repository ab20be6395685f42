"""`springtide actuator`: write Mid and Batch resources to Nodes."""

import asyncio

import click

from actuators.cluster.cluster_actuator import ClusterActuator
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
        1: "failure: Kafka is unavailable at the start, RBAC denies a request, custom resource "
        "definitions are missing, or the scheduler configuration is invalid",
        3: "topics are missing",
    },
)
@settings_options(
    *KAFKA_CLIENT, *KUBERNETES_CLIENT, "kafka.partitions", "actuator.*",
    "extender.stale_after_seconds", "extender.scheduler_config_file", "extender.scheduler_name",
    shown=("actuator.mode",),
)  # fmt: skip
def command(settings: Settings) -> None:
    """Write mid-cpu, mid-memory, batch-cpu and batch-memory to the status of Nodes.

    The amounts come from springtide.resources, and become capacity and allocatable of the extended
    resources in kubernetes.io. In mode observe, the default, the actuator publishes what it would
    write on springtide.actions and logs a summary each minute. --mode recommend writes an
    annotation, --mode act the resources. The actuator removes what it wrote in another mode, for a
    node that the policy excludes, and when data is stale: give a standby the mode of the leader.

    When a node may take a pod that the extender refused before, the actuator changes an annotation
    of the Node, so that the scheduler retries waiting pods at once. Nodes that annotateNodes of
    TimeSharedThresholds selects get the usage thresholds of the time of day as an annotation.

    A Node is written when its offer changes by more than resourceDiffThreshold, or by anything
    after updateTimeThresholdSeconds; never more than --writes-per-second in all. Several actuators
    elect a leader by a Lease. While the API server is unavailable the actuator waits; while Kafka
    is, its data ages until it is stale. Needs the permissions of deploy/chart/rbac/actuator.yaml.

    \b
    Examples:
      springtide actuator --mode observe
      springtide actuator --mode act --writes-per-second 50
    """

    async def work(api: Api, lease: Lease, clock: Clock) -> None:
        actuator = ClusterActuator(api, settings, clock, lease)
        with readiness.leading(actuator.trouble):
            await actuator.run()

    readiness = Readiness()
    asyncio.run(run_leader("actuator", settings, settings.actuator, work, readiness=readiness))
