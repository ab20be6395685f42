"""`springtide planner`: plan which pods leave hot nodes."""

import asyncio

import click

from actuators.planner.planner import Planner
from pipeline.cli.help_sections import Command
from pipeline.cli.options import (
    DECISION_RULES,
    KAFKA_CLIENT,
    KUBERNETES_CLIENT,
    settings_options,
)
from pipeline.cli.role_runner import run_leader
from pipeline.clock import Clock
from pipeline.extender.decision_rules import rules_of
from pipeline.kube.api_client import Api
from pipeline.kube.lease import Lease
from pipeline.logs import get_logger
from pipeline.metrics_server import Readiness
from pipeline.settings import Settings

log = get_logger(__name__)


@click.command(
    cls=Command,
    exit_codes={
        0: "stopped by a signal",
        1: "failure: Kafka is unavailable at the start, or RBAC denies a request",
        3: "topics are missing",
    },
)
@settings_options(
    *KAFKA_CLIENT, *DECISION_RULES, *KUBERNETES_CLIENT, "kafka.partitions", "planner.*",
    "kubernetes.descheduler_config_name",
)  # fmt: skip
def command(settings: Settings) -> None:
    """Plan which pods leave nodes with an open alert, and where they are expected to land.

    Plans are published on springtide.eviction-plans. `springtide evictor` executes them, if its
    mode is act and its limits allow it. `springtide plan` prints what would be planned now.

    The thresholds, caps and arguments are those of Koordinator's DeschedulerConfiguration in the
    ConfigMap koord-descheduler-config. Nothing is planned unless it enables LowNodeLoad, or another
    strategy, in plugins.balance. With dryRun plans are only logged.

    A hot node gets one plan at a time, and the next one when its usage shows the effect. A workload
    gives no pod for half an hour after an eviction. While usage or the watcher is silent, nothing
    is planned.

    Several planners elect a leader by a Lease. Needs the permissions of
    deploy/chart/rbac/planner.yaml.

    \b
    Examples:
      springtide planner
      springtide planner --scheduler-config-file scheduler.yaml
    """
    rules = rules_of(settings.extender)
    for note in rules.placement.notes:
        log.warning("scheduler configuration", note=note)

    async def work(api: Api, lease: Lease, clock: Clock) -> None:
        planner = Planner(api, settings, rules, clock, lease)
        with readiness.leading(planner.trouble):
            await planner.run()

    readiness = Readiness()
    asyncio.run(run_leader("planner", settings, settings.planner, work, readiness=readiness))
