"""Keep the open alerts of hot nodes firing in Alertmanager.

The state table says which alerts are open, not which changed: an alert fires at once when it is
there, again every `resend_seconds`, and is resolved when it is there no more. Alertmanager ends an
alert that is not repeated, so a notifier that was away when an alert closed leaves none behind, and
several notifiers send the same. While the topics cannot be read, or a node is silent, its alerts
stay open: unknown is not cool.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import aiohttp

from actuators.alerts.alertmanager_client import AlertmanagerClient
from pipeline.clock import Clock
from pipeline.kafka.client import client_options
from pipeline.logs import get_logger
from pipeline.metrics import gauge
from pipeline.metrics_server import Readiness
from pipeline.processors.descheduling.relief_alerts import ReliefAlerts
from pipeline.processors.hot_nodes.firing_alerts import (
    FiringAlert,
    Labels,
    firing_alerts,
    firing_relief_alerts,
)
from pipeline.settings import NotifierSettings, Settings
from pipeline.table import Feed, Table
from pipeline.table.relief_alert_feed import relief_alert_feed
from pipeline.tasks import run_all
from pipeline.tls import https_context
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.registry import NODE_STATE

log = get_logger(__name__)

OPEN = gauge("notifier_open_alerts", "Alerts that are open.")
CAUGHT_UP = gauge("notifier_caught_up", "1 once all node states have been read, else 0.")

_LOOK_SECONDS: Final = 1.0


async def notify(settings: Settings, clock: Clock, readiness: Readiness) -> None:
    """Send the alerts of all nodes to each Alertmanager of the settings, until cancelled. It is
    ready once it has read them; while Kafka is away after that, it repeats those that it knows."""
    client, prefix = client_options(settings.kafka), settings.kafka.topic_prefix
    feed = Feed(
        Table(), client=client, prefix=prefix, clock=clock, topics=(NODE_STATE,), name="alerts"
    )
    relief = ReliefAlerts()
    relief_feed = relief_alert_feed(settings.kafka, relief, clock)
    context = https_context("notifier.ca_file", settings.notifier.ca_file)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
        clients = [
            AlertmanagerClient(url, settings.notifier, session, clock)
            for url in settings.notifier.alertmanager_urls.split(",")
        ]
        watching = _watch(feed, relief, clients, settings.notifier, clock)
        with readiness.leading(lambda: "" if feed.state.caught_up else feed.state.message):
            await run_all(
                [feed.run(), relief_feed.run(), watching, *(client.run() for client in clients)]
            )


async def _watch(
    feed: Feed, relief: ReliefAlerts, clients: Sequence[AlertmanagerClient],
    settings: NotifierSettings, clock: Clock,
) -> None:  # fmt: skip
    """Tell the clients which alerts fire and which ended. Alerts of the planner, which may not run,
    are not waited for."""
    await feed.wait_caught_up()
    CAUGHT_UP.set(1)
    log.info("ready", alertmanagers=len(clients))
    firing: Mapping[Labels, FiringAlert] = {}
    sent_at = -settings.resend_seconds
    while True:
        before, firing = (
            firing,
            {
                **firing_alerts(_states(feed.table), settings.labels),
                **firing_relief_alerts(relief.open(clock.monotonic()), settings.labels),
            },
        )
        OPEN.set(len(firing))
        is_due = clock.monotonic() - sent_at >= settings.resend_seconds
        sent_at = clock.monotonic() if is_due else sent_at
        new = firing if is_due else {key: firing[key] for key in firing.keys() - before.keys()}
        ended = {key: before[key] for key in before.keys() - firing.keys()}
        for client in clients:
            client.fire(new)
            client.resolve(ended, clock.now())
        await clock.sleep(_LOOK_SECONDS)


def _states(table: Table) -> Iterator[NodeStateRecord]:
    for records in table.rows()[1]:
        if records.state is not None:
            yield records.state
