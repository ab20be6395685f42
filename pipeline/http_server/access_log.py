"""The access log, and a log of aiohttp's server that reports malformed HTTP at level info.

aiohttp would log a traceback for each such request, and any port scanner could fill the log.
"""

import logging
from typing import Final

from aiohttp import web
from aiohttp.abc import AbstractAccessLogger
from aiohttp.http_exceptions import HttpProcessingError

from pipeline.logs import get_logger

_access = get_logger("pipeline.http_server.access")

HTTP_LOGGER: Final = logging.getLogger("pipeline.http_server.http")
"""For aiohttp's server."""


class _MalformedRequests(logging.Filter):
    """Log a request that is no HTTP at level info, without a traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError | web.RequestPayloadError):
            record.levelno, record.levelname = logging.INFO, logging.getLevelName(logging.INFO)
            record.__dict__["fields"] = {"reason": " ".join(str(error).split())[:200]}
            record.msg, record.args, record.exc_info = "request is no HTTP", None, None
        return HTTP_LOGGER.isEnabledFor(record.levelno)


HTTP_LOGGER.addFilter(_MalformedRequests())


class AccessLog(AbstractAccessLogger):
    """Log one event per request; probes, scrapes and long polls at level debug."""

    _quiet = frozenset({"/healthz", "/readyz", "/metrics"})

    @property
    def enabled(self) -> bool:
        """Whether any event would be written; aiohttp asks once per connection."""
        return _access.isEnabledFor(logging.INFO)

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
