"""`springtide notifier`: send the alerts of hot nodes to Alertmanager."""

import asyncio

import click

from actuators.alerts.notifier import notify
from pipeline.cli.help_sections import Command
from pipeline.cli.options import KAFKA_CLIENT, settings_options, silence_logs
from pipeline.clock import SystemClock
from pipeline.metrics import serve_metrics
from pipeline.metrics_server import Readiness
from pipeline.settings import Settings
from pipeline.tasks import work_until_stopped


@click.command(cls=Command, exit_codes={0: "stopped by a signal"})
@settings_options(*KAFKA_CLIENT, "notifier.*", shown=("notifier.alertmanager_urls",))
def command(settings: Settings) -> None:
    """Keep the open alerts of hot nodes firing in Alertmanager, by its API of version 2.

    An alert is sent when it opens, every --resend-seconds, and when it closes, to every address of
    --alertmanager-urls. Its labels are alertname (SpringtideHotNode), node, rule, severity and
    those of --labels. `springtide alerts` shows the same alerts.

    While an Alertmanager does not answer, the notifier tries again, and sends the present alerts.
    While Kafka is unavailable it repeats the alerts that it knows. Several notifiers send the same
    alerts, which Alertmanager counts once.

    \b
    Examples:
      springtide notifier --alertmanager-urls http://alertmanager:9093
      springtide notifier --alertmanager-urls http://am-0:9093,http://am-1:9093 \\
        --labels '{cluster: eu-1}'
    """
    # The feed logs once why it is not fed.
    silence_logs(settings, "aiokafka")
    section = settings.notifier
    readiness = Readiness(lambda: "starting")
    serve_metrics("notifier", section.metrics_host, section.metrics_port, readiness)
    asyncio.run(work_until_stopped(notify(settings, SystemClock(), readiness)))
