"""A collector on loopback that takes OTLP over HTTP, and can be slow, broken or away."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class Collector:
    """What was received, and how to answer: `status`, and after `may_answer`; an
    endless answer continues until the client leaves."""

    url: str = ""
    status: int = 200
    is_endless: bool = False
    requests: int = 0
    left: int = 0
    headers: list[dict[str, str]] = field(default_factory=list)
    received: list[ExportTraceServiceRequest] = field(default_factory=list)
    may_answer: threading.Event = field(default_factory=threading.Event)

    def spans(self) -> list[tuple[str, Span]]:
        """The received spans, each with the name of its service."""
        return [
            (str(attributes(resource.resource.attributes)["service.name"]), span)
            for request in list(self.received)
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


def attributes(pairs: object) -> dict[str, object]:
    """Attributes of a resource or span by name."""
    return {pair.key: _value(pair.value) for pair in pairs}  # type: ignore[attr-defined]


def _value(value: AnyValue) -> object:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return None if kind is None else getattr(value, kind)


@contextmanager
def otlp_collector() -> Iterator[Collector]:
    """A collector that answers at once with 200, until its fields say otherwise."""
    collector = Collector()
    collector.may_answer.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            collector.requests += 1
            collector.may_answer.wait()
            if collector.status == 200 and self.path == "/v1/traces":
                collector.received.append(ExportTraceServiceRequest.FromString(data))
                collector.headers.append(dict(self.headers))
            self.send_response(collector.status)
            if 300 <= collector.status < 400:
                self.send_header("Location", collector.url)
            self.end_headers()
            while collector.is_endless:
                try:
                    self.wfile.write(bytes(65_536))
                except OSError:
                    collector.left += 1
                    break

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        collector.may_answer.set()
        server.shutdown()
        server.server_close()
        thread.join()
