"""The service from start to end: it listens, feeds the table, and leaves without being missed.

Owes the rest: whoever was sent here is answered, also while this goes; what the feeds raise ends
the service, loudly.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from aiohttp import web

from pipeline.clock import Clock
from pipeline.errors import SettingsError
from pipeline.extender.access_log import HTTP_LOGGER, AccessLog
from pipeline.extender.annotation_warnings import keep_telling
from pipeline.extender.decisions import Rules
from pipeline.extender.http_replies import error_reply
from pipeline.extender.node_view_poll import NodeViewHandler
from pipeline.extender.scheduler_api import Extender, Publish, rules_of
from pipeline.extender.series_api import NodeSeriesHandler
from pipeline.extender.server_tls import Tls
from pipeline.logs import get_logger
from pipeline.metrics import declare_role
from pipeline.settings import ExtenderSettings
from pipeline.table import Feed
from pipeline.table.table_metrics import watch
from pipeline.tasks import cancel_tasks, run_all

# A deleted pod is told to stop at the moment at which it is taken out of its Service; until all
# nodes and balancers know that, new connections still come. It takes them a second or two.
LINGER_SECONDS: Final = 3.0
FINISH_SECONDS: Final = 10.0

_log = get_logger(__name__)


async def serve(
    feed: Feed,
    settings: ExtenderSettings,
    clock: Clock,
    stop: asyncio.Event,
    on_listening: Callable[[int], None] | None = None,
    *,
    at_once: asyncio.Event | None = None,
    linger_seconds: float = LINGER_SECONDS,
    rules: Rules | None = None,
    views: Feed | None = None,
    history: Feed | None = None,
    publish: Publish | None = None,
) -> None:
    """Feed the table and answer questions until `stop` is set; then leave without being missed.

    For `linger_seconds` more, or until `at_once` is set, /readyz says 503 "draining", every
    connection is closed behind its answer, and whoever still comes is answered. An extender that
    never was ready leaves at once: nobody was sent to it. Then no connection is taken any more, and
    what is under way is finished.

    `publish` takes plans to make room for pods; without it there are none.
    `views` feeds a table of node views, `history` one of the recent past; whether these are caught
    up is of no interest to a scheduler.
    `on_listening` gets the port when it is open. Raises `SettingsError` if it cannot be.
    """
    declare_role("extender")
    rules = rules or rules_of(settings)
    for note in rules.placement.notes:
        _log.warning("scheduler configuration", note=note)
    if settings.push_out and settings.mode != "act":
        _log.warning("push_out has no effect in mode observe: nothing is refused, nothing planned")
    watch(feed.table, feed.state, clock, settings.stale_after_seconds)
    node_views = NodeViewHandler(views.table.views, views.state) if views else None
    series = NodeSeriesHandler(history.table.history, history.state, clock) if history else None
    extender = Extender(feed.table, feed.state, settings, clock, rules, node_views, series, publish)
    tls = Tls.of(settings)
    runner = web.AppRunner(
        extender.app(),
        access_log_class=AccessLog,
        logger=HTTP_LOGGER,
        shutdown_timeout=1.0,
        # For whoever is gone nothing is worked out, and no place is kept among those who wait.
        handler_cancellation=True,
    )
    await runner.setup()
    _refuse_expectations(runner)
    feeds = [one.run() for one in (feed, views, history) if one is not None]
    beside = [feed.keep_saved(), keep_telling(feed.table, clock)]
    feeding = asyncio.create_task(run_all([*feeds, *beside]), name="feed")
    reading = asyncio.create_task(tls.keep_read(clock), name="tls") if tls else None
    try:
        port = await _listen(runner, settings, tls)
        scheme = "http" if tls is None else "https"
        _log.info("listening", scheme=scheme, host=settings.host, port=port, mode=settings.mode)
        if on_listening:
            on_listening(port)
        await _until(stop, feeding)
        extender.drain()
        linger_seconds = linger_seconds if feed.state.caught_up else 0.0
        _log.info("draining", linger_seconds=linger_seconds, finish_seconds=FINISH_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout(linger_seconds):
                await _until(at_once or asyncio.Event(), feeding)
    finally:
        extender.drain()
        # aiohttp's own shutdown stops reading bodies that are still arriving: finish before it.
        for site in list(runner.sites):
            await site.stop()
        await extender.finish(FINISH_SECONDS)
        await runner.cleanup()
        await cancel_tasks(feeding)
        await feed.save()
        if reading is not None:
            await cancel_tasks(reading)


def _refuse_expectations(runner: web.AppRunner) -> None:
    """Answer 417 to whoever expects anything but 100-continue. aiohttp does so before it asks any
    middleware, in the words of who asks, and fails where these are no text."""
    server = runner.server
    assert server is not None
    handle = server.request_handler

    async def handled(request: web.BaseRequest) -> web.StreamResponse:
        if request.headers.get("Expect", "100-continue").lower() != "100-continue":
            return error_reply(417, "nothing but 100-continue can be expected")
        return await handle(request)

    server.request_handler = handled


async def _until(event: asyncio.Event, feeding: "asyncio.Task[None]") -> None:
    """Wait for the event; raises what the feed raises, which ends only by an error of ours."""
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait({waiting, feeding}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    if feeding.done():
        feeding.result()


async def _listen(runner: web.AppRunner, settings: ExtenderSettings, tls: Tls | None) -> int:
    context = None if tls is None else tls.context
    try:
        await web.TCPSite(runner, settings.host, settings.port, ssl_context=context).start()
    except OSError as error:
        raise SettingsError.listening(
            error, settings.host, settings.port, "extender.port", or_none=False
        ) from error
    port: int = runner.addresses[0][1]
    return port
