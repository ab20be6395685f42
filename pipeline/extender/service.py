"""Run the service: listen, feed the tables, and shut down without refusing a request.

Requests are answered during shutdown, too. An exception of a feed ends the service.
"""

import asyncio
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from aiohttp import web

from pipeline.clock import Clock
from pipeline.event_loop_lag import measure_event_loop_lag
from pipeline.extender import limits
from pipeline.extender.annotation_warnings import watch_annotations
from pipeline.extender.console_documents import ReadJudged, ReadResults, ReliefReading
from pipeline.extender.decision_rules import rules_of
from pipeline.extender.decisions import Rules
from pipeline.extender.http_responses import error_response
from pipeline.extender.node_view_poll import NodeViewHandler
from pipeline.extender.outage_reports import log_outages
from pipeline.extender.scheduler_api import Extender, Publish
from pipeline.extender.series_api import NodeSeriesHandler
from pipeline.extender.wake_ups import PublishWakeUp, publish_wake_ups
from pipeline.http_server import limits as connection_limits
from pipeline.http_server.connections import (
    CLOSED,
    OPEN,
    ConnectionMetrics,
    Connections,
    Listener,
)
from pipeline.http_server.server_tls import Tls
from pipeline.logs import get_logger
from pipeline.metrics import counter, declare_role, gauge
from pipeline.open_files import raise_file_limit
from pipeline.settings import ExtenderSettings
from pipeline.table import Feed
from pipeline.table.table_metrics import show_table_metrics
from pipeline.tasks import cancel_tasks, run_all

METRICS: Final = ConnectionMetrics(
    gauge("extender_connections", OPEN), counter("extender_connections_closed", CLOSED, ["reason"])
)

_log = get_logger(__name__)


async def serve(
    feed: Feed,
    settings: ExtenderSettings,
    clock: Clock,
    stop: asyncio.Event,
    on_listening: Callable[[int], None] | None = None,
    *,
    at_once: asyncio.Event | None = None,
    linger_seconds: float = limits.LINGER_SECONDS,
    rules: Rules | None = None,
    views: Feed | None = None,
    history: Feed | None = None,
    pod_history: Feed | None = None,
    publish: Publish | None = None,
    publish_wake_up: PublishWakeUp | None = None,
    plans: Feed | None = None,
    relief: ReliefReading | None = None,
    read_judged: ReadJudged | None = None,
    read_results: ReadResults | None = None,
) -> None:
    """Feed the table and answer requests until `stop` is set; then shut down in two steps.

    First, for `linger_seconds` or until `at_once` is set, /readyz answers 503 "draining", requests
    are still answered, and each connection is closed after its answer. An extender that was never
    ready skips this step: no request was sent to it. Then no connection is accepted, and answers
    under way are finished.

    `publish` takes eviction plans; without it none are made. `publish_wake_up` takes wake-ups of
    waiting pods in mode act. `views` feeds a table of node views,
    `history` one of recent usage, `pod_history` one of pods, and `plans` feeds `relief`: plans and
    actions. `read_judged` and `read_results` read accuracy and what-if results for the console.
    Requests of a scheduler do not wait for these.
    `on_listening` gets the port when it is open. Raises `SettingsError` if it cannot be opened.
    """
    declare_role("extender")
    measure_event_loop_lag()
    sys.setswitchinterval(limits.THREAD_SWITCH_SECONDS)
    rules = rules or rules_of(settings)
    for note in rules.placement.notes:
        _log.warning("scheduler configuration", note=note)
    if settings.push_out and settings.mode != "act":
        _log.warning("push_out has no effect in mode observe: no node is refused")
    sources = [each for each in (feed, views, history, pod_history, plans) if each]
    node_views = NodeViewHandler(views.table.views, views.state) if views else None
    series = _series_handler(history, pod_history, clock)
    extender = Extender(
        feed.table, feed.state, settings, clock, rules, node_views, series, publish, relief,
        read_judged, [(each.name, each.state) for each in sources], read_results,
    )  # fmt: skip
    outages = extender.outages
    show_table_metrics(feed.table, feed.state, clock, settings.stale_after_seconds, outages)
    tls = Tls.from_settings(settings, "extender")
    runner = web.AppRunner(
        extender.app(),
        shutdown_timeout=connection_limits.CLOSE_SECONDS,
        # A client that disconnects frees its place among the waiting clients.
        handler_cancellation=True,
    )
    await runner.setup()
    assert runner.server is not None
    most = raise_file_limit() - connection_limits.RESERVED_FILES
    connections = Connections(most, settings.connections_per_address, METRICS, "extender")
    listener = Listener(runner.server, connections, tls, error_response)
    feeds = [each.run() for each in sources]
    background = [
        feed.save_periodically(), watch_annotations(feed.table, clock),
        log_outages(outages, clock), extender.authentication.watch_tokens(clock),
    ]  # fmt: skip
    if publish_wake_up is not None and settings.mode == "act":
        background.append(
            publish_wake_ups(extender.waiting, feed.table, feed.state, clock, publish_wake_up)
        )
    feeding = asyncio.create_task(run_all([*feeds, *background]), name="feed")
    reloading = asyncio.create_task(tls.watch_files(clock), name="tls") if tls else None
    try:
        port = await listener.start(settings.host, settings.port)
        scheme = "http" if tls is None else "https"
        _log.info("listening", scheme=scheme, host=settings.host, port=port, mode=settings.mode)
        if on_listening:
            on_listening(port)
        await _wait_for(stop, feeding)
        extender.drain()
        linger_seconds = linger_seconds if feed.state.caught_up else 0.0
        _log.info("draining", linger_seconds=linger_seconds, finish_seconds=limits.FINISH_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout(linger_seconds):
                await _wait_for(at_once or asyncio.Event(), feeding)
    finally:
        await _finish(extender, listener, runner)
        await cancel_tasks(feeding)
        await feed.save()
        if reloading is not None:
            await cancel_tasks(reloading)


async def _finish(extender: Extender, listener: Listener, runner: web.AppRunner) -> None:
    """Accept no more connections, finish the answers under way, and close what is left."""
    extender.drain()
    # aiohttp's shutdown stops reading bodies that are still arriving: finish before it.
    await listener.stop()
    await extender.finish(limits.FINISH_SECONDS)
    await runner.cleanup()


def _series_handler(
    history: Feed | None, pods: Feed | None, clock: Clock
) -> NodeSeriesHandler | None:
    """The routes over recent usage; None without a history of nodes."""
    if history is None:
        return None
    nodes = history.table.history, history.state
    of_pods = (None, None) if pods is None else (pods.table.pod_history, pods.state)
    return NodeSeriesHandler(*nodes, clock, *of_pods)


async def _wait_for(event: asyncio.Event, feeding: "asyncio.Task[None]") -> None:
    """Wait for the event. Raises the exception of the feed, which ends only by an error."""
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait({waiting, feeding}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    if feeding.done():
        feeding.result()
