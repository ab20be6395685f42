"""What is logged of requests."""

from aiohttp import web
from aiohttp.abc import AbstractAccessLogger

from pipeline.logs import get_logger

_access = get_logger("pipeline.extender.access")


class AccessLog(AbstractAccessLogger):
    """One event a request; probes, scrapes and long polls only at level debug."""

    _quiet = frozenset({"/healthz", "/readyz", "/metrics"})

    def log(self, request: web.BaseRequest, response: web.StreamResponse, time: float) -> None:
        is_quiet = request.path in self._quiet or request.path.endswith("/view")
        write = _access.debug if is_quiet else _access.info
        write(
            "request",
            method=request.method,
            path=request.path[:200],
            status=response.status,
            request_bytes=request.content_length,
            response_bytes=response.body_length,
            milliseconds=round(time * 1000, 3),
            remote=request.remote,
        )
