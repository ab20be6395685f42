"""`springtide watcher`: copy nodes, pods, workloads and policy of a cluster to topics."""

import asyncio

import click

from pipeline.cli.help_sections import Command
from pipeline.cli.options import KAFKA_CLIENT, KUBERNETES_CLIENT, settings_options
from pipeline.cli.role_runner import run_leader
from pipeline.clock import Clock
from pipeline.kube.api_client import Api
from pipeline.kube.lease import Lease
from pipeline.metrics_server import Readiness
from pipeline.settings import Settings
from pipeline.sources.cluster.watcher import watch_cluster


@click.command(
    cls=Command,
    exit_codes={
        0: "stopped by a signal",
        1: "failure: RBAC denies a request, or the cluster lacks a kind",
        3: "topics are missing",
    },
)
@settings_options(
    *KAFKA_CLIENT, *KUBERNETES_CLIENT, "kubernetes.descheduler_config_name", "kafka.partitions",
    "watcher.*",
    shown=("kubernetes.kubeconfig", "kubernetes.context"),
)  # fmt: skip
def command(settings: Settings) -> None:
    """Copy Nodes, Pods, workloads and PodDisruptionBudgets of a cluster to topics.

    The watcher keeps a record for each object on springtide.nodes, springtide.pods and
    springtide.workloads, and a tombstone for each deleted object, including those that were
    deleted while no watcher ran. It resolves the ConfigMaps slo-controller-config and
    koord-descheduler-config for each node and adds the result to the node's record. An edit is in
    force within seconds; an invalid one changes nothing and is reported as an Event.

    Several watchers elect a leader by a Lease, and the broker refuses the writes of a former
    leader. While Kafka or the API server is unavailable the watcher waits. Needs the permissions
    of deploy/chart/rbac/watcher.yaml.

    \b
    Examples:
      springtide watcher                           # in a pod: as its service account
      springtide watcher --kubeconfig ~/.kube/config --context test
    """

    async def work(api: Api, lease: Lease, clock: Clock) -> None:
        await watch_cluster(api, settings, clock, readiness)

    readiness = Readiness()
    asyncio.run(
        run_leader(
            "watcher", settings, settings.watcher, work, waits_for_kafka=True, readiness=readiness
        )
    )
