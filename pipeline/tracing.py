"""Trace windows from the sample of a node to the decision, by OpenTelemetry spans. Off by default.

A worker decides by the id of a trace whether its window is traced. Other roles continue the trace
of a record that has the header `traceparent`; a record without it is not traced.

While tracing is off, or a window is not traced, its context is None and nothing else is computed.
Like metrics, spans belong to the process.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from pipeline.errors import MissingExtraError
from pipeline.logs import get_logger
from pipeline.metrics import counter
from pipeline.settings import TracingSettings
from pipeline.spans import Span, SpanContext, context_in, is_sampled, root_of_trace, trace_of_window

if TYPE_CHECKING:
    from pipeline.span_export import SpanExport

log = get_logger(__name__)

SPANS: Final = counter(
    "tracing_spans",
    "Spans of traced windows by outcome: exported, failed (the collector is away or refused them), "
    "dropped (too many waited).",
    ["outcome"],
)

_export: "SpanExport | None" = None
_ratio = 0.0


class Received(NamedTuple):
    """The context of a record, and when the record was received (UTC seconds)."""

    context: SpanContext
    at: float


@contextmanager
def exporting(role: str, settings: TracingSettings) -> Iterator[None]:
    """Export the spans of a role within the context, if a collector is set; at the end deliver what
    waits, for a few seconds at most. Raises `MissingExtraError` without the extra `tracing`."""
    global _export, _ratio
    if settings.endpoint is None:
        yield
        return
    try:
        from pipeline.span_export import SpanExport
    except ModuleNotFoundError as error:
        raise MissingExtraError("OpenTelemetry", "tracing", module=error.name) from error
    export = _export = SpanExport(role, settings.endpoint, SPANS)
    _ratio = settings.sample_ratio
    log.info("tracing", collector=settings.endpoint, sample_ratio=settings.sample_ratio)
    try:
        yield
    finally:
        _export = None
        export.stop()


def is_on() -> bool:
    """Whether this process exports spans."""
    return _export is not None


def now() -> float:
    """The time of spans: UTC seconds. No decision depends on it."""
    return time.time()


def record(span: Span) -> None:
    """Export a span, without waiting: if the queue is full it is lost, and counted."""
    if _export is not None:
        _export.put(span)


def window_context(node: str, window_end_ms: int, origin: str = "") -> SpanContext | None:
    """The context of the first span of a window, which `origin` measured; None if the window is not
    traced."""
    if _export is None:
        return None
    trace_id = trace_of_window(node, window_end_ms, origin)
    return root_of_trace(trace_id) if is_sampled(trace_id, _ratio) else None


def context_of(headers: Iterable[tuple[str, bytes | None]]) -> SpanContext | None:
    """The context in the headers of a record; None if it is not traced, or tracing is off."""
    return None if _export is None else context_in(headers)


def note(
    received: dict[str, Received], key: str, headers: Iterable[tuple[str, bytes | None]]
) -> None:
    """Keep the context of the newest record of `key`, none if that record is not traced."""
    if (context := context_of(headers)) is not None:
        received[key] = Received(context, now())
    elif received:
        received.pop(key, None)
