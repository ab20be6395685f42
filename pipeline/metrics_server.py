"""The web server of metrics pages: a thread per request, bounded in time and in number.

A client that connects and sends no request would hold a thread and a file for ever.
"""

import socket
import threading
from collections.abc import Iterable
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import CollectorRegistry, make_wsgi_app

REQUEST_SECONDS: Final = 10.0
"""Time for a client to send its request, and to read the page."""
MOST_REQUESTS: Final = 32
"""Requests at a time; more connections are closed. There are a few Prometheus servers."""


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_SECONDS  # of each read and write of the connection

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a scrape comes every few seconds."""


def _page(registry: CollectorRegistry) -> WSGIApplication:
    """The metrics at / and /metrics. Other paths get 404: a probe of one must not succeed."""
    metrics: WSGIApplication = make_wsgi_app(registry)

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] in ("/", "/metrics"):
            return metrics(environ, start_response)
        start_response("404 Not Found", [("Content-Type", "text/plain")])
        return [b"no such path: the metrics are at /metrics\n"]

    return answer


class MetricsServer(ThreadingMixIn, WSGIServer):
    """Serves the metrics of a registry in threads. `stop` ends it."""

    daemon_threads = True

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        """Listen on an address; `port` 0 is any free port. Raises OSError and OverflowError."""
        self._places = threading.BoundedSemaphore(MOST_REQUESTS)
        resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = resolved[0][0]
        super().__init__((host, port), _Handler)
        self.set_app(_page(registry))
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
