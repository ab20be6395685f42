"""Serve health and metrics of a provider over HTTP: `/healthz`, `/readyz`, `/metrics`."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from aiohttp import web

from pipeline.clock import Clock
from pipeline.errors import SettingsError
from pipeline.metrics import CONTENT_TYPE, declare_role, page
from pipeline.processors.imported_usage.fetched_usage import TimeWindow
from pipeline.settings import ProviderSettings
from pipeline.times import format_time

_MAX_WINDOWS: Final = 3
_IDLE_SECONDS: Final = 60.0


class Status:
    """The state of a provider. It is ready if it stands by or has recently published a window."""

    def __init__(self, settings: ProviderSettings, clock: Clock) -> None:
        self._max_age_seconds = settings.delay_seconds + _MAX_WINDOWS * settings.window_seconds
        self._clock = clock
        self.leads = False
        self.message = "starting"
        self._end_ms: int | None = None
        self._nodes = 0
        self._left_out: Mapping[str, int] = {}

    def published(self, window: TimeWindow, nodes: int, left_out: Mapping[str, int]) -> None:
        """Record a finished window and its number of nodes."""
        self.message = "publishing" if nodes else "no node has usage"
        self._nodes, self._left_out = nodes, left_out
        # A window is complete, too, if exporters serve all nodes.
        if nodes or set(left_out) == {"served by an exporter"}:
            self._end_ms = window.end_ms

    @property
    def is_ready(self) -> bool:
        """Whether the provider stands by or has published one of the last three windows."""
        if not self.leads:
            return True
        oldest_ms = self._clock.now() * 1000 - self._max_age_seconds * 1000
        return self._end_ms is not None and self._end_ms >= oldest_ms

    def document(self) -> dict[str, Any]:
        """Return the body of `/readyz`."""
        last = None if self._end_ms is None else format_time(self._end_ms / 1000)
        return {
            "status": "ready" if self.is_ready else "not ready",
            "message": self.message if self.leads else "standing by",
            "last_window_end": last,
            "nodes": self._nodes,
            "left_out": dict(self._left_out),
        }


@asynccontextmanager
async def serve(settings: ProviderSettings, status: Status) -> AsyncIterator[int | None]:
    """Serve the page; yield its port, None if no port is set.

    Raises `SettingsError` if the port is unavailable.
    """
    declare_role("provider")
    if settings.port is None:
        yield None
        return

    async def healthz(_request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def readyz(_request: web.Request) -> web.Response:
        return web.json_response(status.document(), status=200 if status.is_ready else 503)

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=await page(), headers={"Content-Type": CONTENT_TYPE})

    app = web.Application()
    for path, handler in (("/healthz", healthz), ("/readyz", readyz), ("/metrics", metrics)):
        app.router.add_get(path, handler)
    # aiohttp waits an hour for a request, so that idle connections would take every open file.
    runner = web.AppRunner(
        app, access_log=None, shutdown_timeout=1.0, keepalive_timeout=_IDLE_SECONDS
    )
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, settings.host, settings.port).start()
        except (OSError, OverflowError) as error:
            raise SettingsError.listening(
                error, settings.host, settings.port, "provider.port"
            ) from error
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
