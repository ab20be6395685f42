"""Send spans to an OpenTelemetry collector by OTLP over HTTP: the only module that imports
OpenTelemetry.

A thread of OpenTelemetry's batch processor sends. At most `MOST_SPANS` wait or are being sent, the
others are dropped, so that a collector that is slow or away costs no more memory and no time of the
role. Every span is counted: exported, failed or dropped.
"""

import logging
import os
import threading
from collections.abc import Sequence
from typing import Any, Final

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace import SpanContext as OtelContext
from prometheus_client import Counter

from pipeline import __version__
from pipeline.logs import get_logger
from pipeline.spans import Span, SpanContext, Value

MOST_SPANS: Final = 2048
"""Spans that wait or are being sent."""
BATCH_SPANS: Final = 512
BATCH_SECONDS: Final = 2.0
STOP_SECONDS: Final = 5.0
"""How long the end of a role may wait for the collector."""
MOST_CHARACTERS: Final = 1000
"""Longer texts of attributes are cut."""
MOST_ITEMS: Final = 32
"""Links of a span, and texts of an attribute that has several; further ones are left out."""

log = get_logger(__name__)


class _Session(requests.Session):
    """Reads no body of an answer: one could be without an end. A redirect is an error, because it
    would count as success."""

    def request(self, *arguments: Any, **options: Any) -> requests.Response:
        response = super().request(*arguments, **options | {"stream": True})
        response._content = b""
        response.close()
        if 300 <= response.status_code < 400:
            raise requests.HTTPError(f"the collector redirects: {response.status_code}")
        return response


class SpanExport(SpanExporter):
    """The spans of one role, on their way to the collector at `endpoint`; `spans` counts them."""

    def __init__(self, role: str, endpoint: str, spans: Counter) -> None:
        self._spans = spans
        # It logs each failed attempt, with what the collector answered.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        url = f"{endpoint.rstrip('/')}/v1/traces"
        self._exporter = OTLPSpanExporter(endpoint=url, session=_Session())
        self._url = url
        # OTEL_RESOURCE_ATTRIBUTES adds others, such as the name of the cluster.
        self._resource = Resource.create({
            "service.name": f"springtide-{role}",
            "service.version": __version__,
            "service.instance.id": f"{os.uname().nodename}-{os.getpid()}",
        })  # fmt: skip
        self._scope = InstrumentationScope("springtide", __version__)
        self._lock = threading.Lock()
        self._waiting = 0
        self._processor = BatchSpanProcessor(
            self, MOST_SPANS, BATCH_SECONDS * 1000, BATCH_SPANS, export_timeout_millis=1
        )

    def put(self, span: Span) -> None:
        """Queue a span, or drop it if too many wait."""
        with self._lock:
            is_full = self._waiting >= MOST_SPANS
            self._waiting += not is_full
        if is_full:
            self._spans.labels("dropped").inc()
            log.warning("spans are lost: too many wait for the collector", per="full")
            return
        self._processor.on_end(self._readable(span))

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch, in the processor's thread."""
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            with self._lock:
                self._waiting -= len(spans)
            has_failed = result is not SpanExportResult.SUCCESS
            outcome = "failed" if has_failed else "exported"
            self._spans.labels(outcome).inc(len(spans))
            if has_failed:
                log.warning("spans are lost: the collector is away or refuses them", per="failed",
                            url=self._url, spans=len(spans))  # fmt: skip
        return result

    def shutdown(self) -> None:
        """Close the connection; called by the processor."""
        self._exporter.shutdown()

    def stop(self) -> None:
        """Send what waits, within five seconds; what then remains is lost."""
        # The processor itself would wait for thirty.
        stopping = threading.Thread(target=self._processor.shutdown, daemon=True)
        stopping.start()
        stopping.join(STOP_SECONDS)
        if self._waiting:
            log.warning("spans are lost: the collector did not take them in time",
                        spans=self._waiting, seconds=STOP_SECONDS)  # fmt: skip

    def _readable(self, span: Span) -> ReadableSpan:
        attributes = {name: _cut(value) for name, value in span.attributes.items()}
        failed = Status(StatusCode.ERROR, span.error[:MOST_CHARACTERS])
        return ReadableSpan(
            span.name,
            _context(span.context),
            None if span.parent is None else _context(span.parent),
            self._resource,
            attributes,
            kind=SpanKind.SERVER if span.is_server else SpanKind.INTERNAL,
            links=[Link(_context(link)) for link in span.links[:MOST_ITEMS]],
            status=failed if span.error else Status(StatusCode.UNSET),
            start_time=round(span.began * 1e9),
            end_time=round(max(span.began, span.ended) * 1e9),
            instrumentation_scope=self._scope,
        )


def _cut(value: Value) -> Value:
    if isinstance(value, str):
        return value[:MOST_CHARACTERS]
    if isinstance(value, Sequence):
        return [text[:MOST_CHARACTERS] for text in value[:MOST_ITEMS]]
    return value


def _context(context: SpanContext) -> OtelContext:
    return OtelContext(
        context.trace_id, context.span_id, is_remote=False,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )  # fmt: skip
