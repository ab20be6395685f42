"""The web server of metrics pages: a thread per request, bounded in time and in number. Roles with
a `Readiness` also have `/healthz` and `/readyz` there.

A client that connects and sends no request would hold a thread and a file for ever.
"""

import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import CollectorRegistry, make_wsgi_app

REQUEST_SECONDS: Final = 10.0
"""Time for a client to send its request, and to read the page."""
MOST_REQUESTS: Final = 32
"""Requests at a time; more connections are closed. There are a few Prometheus servers."""


class Readiness:
    """Whether a role is ready. With `trouble`, which says why it cannot work now and is called in
    another thread, it is ready when that is empty. Without, it elects a leader: it stands by, or
    leads and does its work."""

    def __init__(self, trouble: Callable[[], str] | None = None) -> None:
        self._trouble = trouble
        self._works = "leading" if trouble is None else "working"

    @contextmanager
    def leading(self, trouble: Callable[[], str]) -> Iterator[None]:
        """Lead within the context. `trouble` says why the role cannot work now, empty if it can; it
        is called in another thread."""
        self._trouble = trouble
        try:
            yield
        finally:
            self._trouble = None

    def document(self) -> tuple[bool, dict[str, str]]:
        """Whether the role is ready, and the body of `/readyz`."""
        trouble = self._trouble
        message = "" if trouble is None else trouble()
        text = "standing by" if trouble is None else message or self._works
        return not message, {"status": "not ready" if message else "ready", "message": text}


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_SECONDS  # of each read and write of the connection

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a scrape comes every few seconds."""


def _page(registry: CollectorRegistry, readiness: Readiness | None) -> WSGIApplication:
    """The metrics at / and /metrics. Other paths get 404: a probe of one must not succeed."""
    metrics: WSGIApplication = make_wsgi_app(registry)

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path in ("/", "/metrics"):
            return metrics(environ, start_response)
        if readiness is not None and path in ("/healthz", "/readyz"):
            is_ready, body = readiness.document() if path == "/readyz" else (True, {"status": "ok"})
            status = "200 OK" if is_ready else "503 Service Unavailable"
            start_response(status, [("Content-Type", "application/json")])
            return [json.dumps(body).encode()]
        start_response("404 Not Found", [("Content-Type", "text/plain")])
        return [b"no such path: the metrics are at /metrics\n"]

    return answer


class MetricsServer(ThreadingMixIn, WSGIServer):
    """Serves the metrics of a registry in threads, and a role's readiness if it has one. `stop`
    ends it."""

    daemon_threads = True

    def __init__(
        self, host: str, port: int, registry: CollectorRegistry, readiness: Readiness | None = None
    ) -> None:
        """Listen on an address; `port` 0 is any free port. Raises OSError and OverflowError."""
        self._places = threading.BoundedSemaphore(MOST_REQUESTS)
        resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = resolved[0][0]
        super().__init__((host, port), _Handler)
        self.set_app(_page(registry, readiness))
        threading.Thread(target=self.serve_forever, name="metrics", daemon=True).start()

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that are slow or leave: they are no error of ours."""

    def stop(self) -> None:
        """Stop serving, and close the port."""
        self.shutdown()
        self.server_close()
