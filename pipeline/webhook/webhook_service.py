"""Run the webhook: listen with TLS, follow the cluster, and shut down without losing a review."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import msgspec
from aiohttp import web

from pipeline.clock import Clock
from pipeline.errors import BadRequestError, NotReadyError, OverloadedError, SettingsError
from pipeline.event_loop_lag import measure_event_loop_lag
from pipeline.http_server import limits as connection_limits
from pipeline.http_server.connections import (
    CLOSED,
    OPEN,
    ConnectionMetrics,
    Connections,
    Listener,
)
from pipeline.http_server.server_tls import Tls
from pipeline.kube.api_client import Api
from pipeline.logs import get_logger
from pipeline.metrics import counter, gauge, histogram
from pipeline.open_files import raise_file_limit
from pipeline.processors.admission.admission_review import ReviewRequest, read_review
from pipeline.settings import WebhookSettings
from pipeline.tasks import cancel_tasks
from pipeline.webhook import limits
from pipeline.webhook.cluster_objects import ClusterObjects
from pipeline.webhook.reviews import Answer, Reviews

METRICS: Final = ConnectionMetrics(
    gauge("webhook_connections", OPEN), counter("webhook_connections_closed", CLOSED, ["reason"])
)
_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
SECONDS: Final = histogram(
    "webhook_review_seconds", "Seconds from request headers to answer.", ["path"], buckets=_BUCKETS
)
REVIEWS: Final = counter(
    "webhook_reviews",
    "Reviews by what was answered: allowed, changed, refused; in mode observe would_change and "
    "would_refuse; unconcerned (another kind), unreadable (no pod), or the status of an error.",
    ["path", "result"],
)
MUTATE_PODS: Final = "/mutate-pods"
VALIDATE_PODS: Final = "/validate-pods"
VALIDATE_PROFILES: Final = "/validate-profiles"

Review = Callable[[ReviewRequest], Awaitable[Answer]]

_log = get_logger(__name__)


class Webhook:
    """The routes over the objects of the cluster."""

    def __init__(self, objects: ClusterObjects, settings: WebhookSettings) -> None:
        self._objects, reviews = objects, Reviews(objects, settings)
        self._requires_certificate = settings.tls_client_ca_file is not None
        self._places = asyncio.Semaphore(limits.REVIEWS_AT_ONCE)
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_draining = False
        self._reviews: dict[str, Review] = {
            MUTATE_PODS: reviews.mutate_pod,
            VALIDATE_PODS: reviews.validate_pod,
            VALIDATE_PROFILES: reviews.validate_profile,
        }

    def app(self) -> web.Application:
        app = web.Application(client_max_size=limits.MAX_REVIEW_BYTES)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        for path in self._reviews:
            app.router.add_post(path, self._review)
        return app

    def drain(self) -> None:
        """Report at /readyz that this replica leaves, and close connections after answers."""
        self._is_draining = True

    async def finish(self) -> None:
        """Wait for answers under way, bounded in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limits.FINISH_SECONDS):
                await self._idle.wait()

    async def _healthz(self, _: web.Request) -> web.Response:
        return _json(200, {"status": "ok"})

    async def _readyz(self, _: web.Request) -> web.Response:
        if self._is_draining:
            return _json(503, {"status": "not ready", "message": "draining"})
        if not self._objects.is_read:
            return _json(503, {"status": "not ready", "message": "reading profiles"})
        return _json(200, {"status": "ready", "message": "profiles are read"})

    async def _review(self, request: web.Request) -> web.Response:
        began = time.perf_counter()
        self._under_way += 1
        self._idle.clear()
        try:
            response, result = await self._answered(request)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()
        REVIEWS.labels(request.path, result).inc()
        SECONDS.labels(request.path).observe(time.perf_counter() - began)
        if self._is_draining:
            response.force_close()
        return response

    async def _answered(self, request: web.Request) -> tuple[web.Response, str]:
        try:
            body, result = await self._reviewed(request)
            return web.Response(body=body, content_type="application/json"), result
        except BadRequestError as error:
            return refusal(400, error.message, error.hint), "400"
        except (NotReadyError, OverloadedError) as error:
            return refusal(503, error.message, error.hint), "503"
        except web.HTTPRequestEntityTooLarge:
            most = limits.MAX_REVIEW_BYTES / 2**20
            return refusal(413, f"the review is larger than {most:g} MiB"), "413"
        except web.HTTPException as error:
            return refusal(error.status, error.text or error.reason), str(error.status)
        except Exception:
            # A bug: the API server admits the pod by its failure policy.
            _log.exception("review failed", path=request.path)
            return refusal(500, "internal error of the webhook", "see its log"), "500"

    async def _reviewed(self, request: web.Request) -> Answer:
        if self._requires_certificate and not _has_certificate(request):
            raise web.HTTPForbidden(
                text="show a certificate that webhook.tls_client_ca_file has signed"
            )
        if not self._objects.is_read:
            raise NotReadyError("profiles are not read yet", hint="/readyz tells when they are")
        review = self._reviews[request.path]
        # None for a body in chunks; a compressed one has any size in the end.
        size = None if "Content-Encoding" in request.headers else request.content_length
        if size is not None and size <= limits.SMALL_REVIEW_BYTES:
            return await review(read_review(await _body(request)))
        try:
            async with asyncio.timeout(limits.PLACE_SECONDS):
                await self._places.acquire()
        except TimeoutError:
            raise OverloadedError(
                f"{limits.REVIEWS_AT_ONCE} large reviews are under way", hint="start more replicas"
            ) from None
        try:
            return await review(read_review(await _body(request)))
        finally:
            self._places.release()


async def serve(
    api: Api,
    settings: WebhookSettings,
    clock: Clock,
    stop: asyncio.Event,
    on_listening: Callable[[int], None] | None = None,
    *,
    at_once: asyncio.Event | None = None,
    linger_seconds: float = limits.LINGER_SECONDS,
) -> None:
    """Answer reviews until `stop` is set. Then, for `linger_seconds` or until `at_once` is set,
    /readyz answers 503 and reviews are still answered.

    `on_listening` gets the port when it is open. Raises `SettingsError` if it cannot be opened, and
    `ApiRefusedError` without the rights to read what profiles refer to.
    """
    measure_event_loop_lag()
    tls = _tls(settings)
    objects = ClusterObjects(api)
    webhook = Webhook(objects, settings)
    runner = web.AppRunner(webhook.app(), shutdown_timeout=connection_limits.CLOSE_SECONDS)
    await runner.setup()
    assert runner.server is not None
    most = raise_file_limit() - connection_limits.RESERVED_FILES
    connections = Connections(most, settings.connections_per_address, METRICS, "webhook")
    listener = Listener(runner.server, connections, tls, refusal)
    following = asyncio.create_task(objects.run(), name="cluster objects")
    reloading = asyncio.create_task(tls.watch_files(clock), name="tls")
    try:
        port = await listener.start(settings.host, settings.port)
        _log.info("listening", host=settings.host, port=port, mode=settings.mode)
        if on_listening is not None:
            on_listening(port)
        await _until(stop, following)
        webhook.drain()
        _log.info("draining", linger_seconds=linger_seconds)
        with suppress(TimeoutError):
            async with asyncio.timeout(linger_seconds):
                await _until(at_once or asyncio.Event(), following)
    finally:
        webhook.drain()
        await listener.stop()
        await webhook.finish()
        await runner.cleanup()
        await cancel_tasks(following, reloading)


def refusal(status: int, message: str, hint: str | None = None) -> web.Response:
    """An answer with an error."""
    return _json(status, {"error": message, **({"hint": hint} if hint else {})})


def _json(status: int, document: dict[str, str]) -> web.Response:
    body = msgspec.json.encode(document)
    return web.Response(status=status, body=body, content_type="application/json")


def _tls(settings: WebhookSettings) -> Tls:
    tls = Tls.from_settings(settings, "webhook")
    if tls is None:
        raise SettingsError(
            "webhook.tls_cert_file is missing: API servers call webhooks by HTTPS only",
            key="webhook.tls_cert_file",
            hint="set webhook.tls_cert_file and webhook.tls_key_file",
        )
    return tls


def _has_certificate(request: web.Request) -> bool:
    return request.transport is not None and bool(request.transport.get_extra_info("peercert"))


async def _body(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(limits.BODY_SECONDS):
            return await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout(
            text=f"the review did not arrive within {limits.BODY_SECONDS:g} s"
        ) from None
    except web.RequestPayloadError as error:
        raise BadRequestError(f"the body is not readable: {error!s:.200}") from error


async def _until(event: asyncio.Event, following: "asyncio.Task[None]") -> None:
    """Wait for the event. Raises the exception of `following`, which ends only by an error."""
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait({waiting, following}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    if following.done():
        following.result()
