"""Turn exceptions into JSON answers, and measure every answer."""

import time
from functools import cache
from typing import Final

from aiohttp import web

from pipeline.errors import BadRequestError, NotReadyError, OverloadedError
from pipeline.extender import limits
from pipeline.extender.http_responses import error_response
from pipeline.extender.routes import Handler
from pipeline.logs import get_logger
from pipeline.metrics import counter, histogram

VERBS: Final = ("filter", "prioritize", "preempt")

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
LATENCY = histogram(
    "extender_request_seconds", "Seconds from request headers to answer.", ["verb"],
    buckets=_SECONDS,
)  # fmt: skip
REQUESTS = counter("extender_requests", "Requests answered.", ["verb", "status"])

# The lookup of a metric by its labels takes longer than the increment.
_latency, _requests = cache(LATENCY.labels), cache(REQUESTS.labels)

_log = get_logger(__name__)


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn exceptions into JSON answers, and measure time and status."""
    began = time.perf_counter()
    response = await _answered(request, handler)
    resource = request.match_info.route.resource
    verb = resource.canonical.strip("/") if resource else "unknown"
    _latency(verb).observe(time.perf_counter() - began)
    _requests(verb, str(response.status)).inc()
    return response


async def _answered(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except BadRequestError as error:
        return error_response(400, error.message, error.hint)
    except (NotReadyError, OverloadedError) as error:
        return error_response(503, error.message, error.hint, {"Retry-After": "1"})
    except web.HTTPNotFound:
        offered = ", ".join(f"POST /{verb}" for verb in VERBS)
        hint = f"this extender has GET /console, {offered}; GET /openapi.json lists the others"
        return error_response(404, f"no such path: {request.path[:200]}", hint)
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        message = f"{request.method} is not allowed for {request.path[:200]}"
        return error_response(405, message, f"use {allowed}", {"Allow": allowed})
    except web.HTTPRequestEntityTooLarge as error:
        hint = "set nodeCacheCapable: true, so that only names are sent"
        if request.path == "/v1/explain":
            hint = f"send a pod, and names of at most {limits.MAX_NODES} nodes"
        return error_response(413, error.text or error.reason, hint)
    except web.HTTPException as error:
        return error_response(error.status, error.reason)
    except Exception:
        # A bug: it is counted like any answer, and a scheduler can read it.
        _log.exception("request failed", path=request.path[:200])
        return error_response(500, "internal error of the extender", "see its log")
