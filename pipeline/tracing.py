"""Trace windows from the sample of a node to the decision, and requests, by OpenTelemetry spans.
Off by default.

A worker decides by the id of a trace whether its window is traced. Other roles continue the trace
of a record that has the header `traceparent`; a record without it is not traced. Of requests
without that header a share is traced.

While tracing is off, or a window is not traced, its context is None and nothing else is computed.
Like metrics, spans belong to the process. JSON logs have the ids of the span that is current, or
that caused what is done (`logged`).
"""

import random
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, NamedTuple

from pipeline.errors import MissingExtraError
from pipeline.logs import CONTEXT_FIELDS, get_logger
from pipeline.metrics import counter
from pipeline.settings import TracingSettings
from pipeline.spans import (
    Span,
    SpanContext,
    Value,
    context_in,
    is_sampled,
    read_traceparent,
    root_of_trace,
    trace_of_window,
)

if TYPE_CHECKING:
    from pipeline.span_export import SpanExport

log = get_logger(__name__)

SPANS: Final = counter(
    "tracing_spans",
    "Spans by outcome: exported, failed (the collector is away or refused them), dropped (too many "
    "waited).",
    ["outcome"],
)

_export: "SpanExport | None" = None
_ratio = 0.0


class Received(NamedTuple):
    """The context of a record, and when the record was received (UTC seconds)."""

    context: SpanContext
    at: float


class CurrentSpan(NamedTuple):
    """A span that has begun: its context, and the attributes that it has so far."""

    context: SpanContext
    attributes: dict[str, Value]


_current: Final[ContextVar[CurrentSpan | None]] = ContextVar("current_span", default=None)


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


def cause(received: Mapping[str, Received], key: str) -> SpanContext | None:
    """The context of the newest record of `key`; None if that record is not traced."""
    return None if (newest := received.get(key)) is None else newest.context


def request_context(traceparent: str | None) -> tuple[SpanContext, SpanContext | None] | None:
    """The context of the span of a request, and of its caller's span; None if it is not traced. A
    caller decides by its header; of requests without a valid header a share is traced."""
    if traceparent is not None:
        caller = read_traceparent(traceparent.encode(errors="replace"))
        if caller is not None:
            parent, is_sampled_by_caller = caller
            own = parent._replace(span_id=_random_id(64))
            return (own, parent) if is_sampled_by_caller else None
    trace_id = _random_id(128)
    return (SpanContext(trace_id, _random_id(64)), None) if is_sampled(trace_id, _ratio) else None


@contextmanager
def entered(context: SpanContext) -> Iterator[CurrentSpan]:
    """Make a span the current one within the context."""
    span = CurrentSpan(context, {})
    before = _current.set(span)
    try:
        with logged(context):
            yield span
    finally:
        _current.reset(before)


@contextmanager
def logged(context: SpanContext | None) -> Iterator[None]:
    """Add the ids of a span to JSON logs within the context; None for what is not traced."""
    if context is None:
        yield
        return
    ids = {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}
    before = CONTEXT_FIELDS.set(ids)
    try:
        yield
    finally:
        CONTEXT_FIELDS.reset(before)


def current() -> CurrentSpan | None:
    """The current span; None if there is none, or tracing is off."""
    return None if _export is None else _current.get()


def headers() -> list[tuple[str, bytes]]:
    """The headers of a record that continues the trace of the current span; empty without one."""
    span = current()
    return [] if span is None else span.context.headers


def _random_id(bits: int) -> int:
    return random.getrandbits(bits) or 1
