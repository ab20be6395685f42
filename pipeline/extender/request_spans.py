"""A span for each traced request, with what was decided.

Requests of schedulers are sampled, unless their header `traceparent` says whether its caller traces
them. Other queries are traced only if their caller does. A client that authentication refuses gets
no span: it could fill the queue with its own.
"""

from http import HTTPStatus
from typing import Final

from aiohttp import web

from pipeline import tracing
from pipeline.extender.routes import Handler, access_of
from pipeline.spans import TRACEPARENT, Span, SpanContext

_REFUSED: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


@web.middleware
async def trace_requests(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer a request within its span, if it is traced."""
    access, traceparent = access_of(request), request.headers.get(TRACEPARENT)
    if access != "scheduler" and (access != "queries" or traceparent is None):
        return await handler(request)
    contexts = tracing.request_context(traceparent)
    if contexts is None:
        return await handler(request)
    context, caller = contexts
    began, status = tracing.now(), None
    with tracing.entered(context) as span:
        try:
            response = await handler(request)
            status = response.status
            return response
        finally:
            if status not in _REFUSED:
                _record(request, span, caller, began, status)


def _record(
    request: web.Request,
    span: tracing.CurrentSpan,
    caller: SpanContext | None,
    began: float,
    status: int | None,
) -> None:
    """Record the span of a request, whose names are OpenTelemetry's; `status` is None if the client
    left before the answer."""
    resource = request.match_info.route.resource
    route = resource.canonical if resource else ""
    attributes = {"http.request.method": request.method, "http.route": route, **span.attributes}
    error = "the client left"
    if status is not None:
        attributes["http.response.status_code"] = status
        error = HTTPStatus(status).phrase if status >= 500 else ""
    tracing.record(
        Span(
            f"{request.method} {route}".rstrip(), span.context, caller, began, tracing.now(),
            attributes, error=error, is_server=True,
        )
    )  # fmt: skip
