"""Spans and their contexts, as hashes and as W3C Trace Context. Pure: no clock, nothing is sent.

A trace belongs to one window of one node, or to one request. The id of a window's trace, and those
of its spans, are hashes of the node, the end of the window and the origin: a window that is
replayed gives the same ids, and a backend keeps one span of each.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

TRACEPARENT: Final = "traceparent"
"""The header of W3C Trace Context."""

# Version, trace, span, and flags, of which the last bit says that it is sampled.
_TRACEPARENT: Final = re.compile(
    rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
)
_HALF: Final = 1 << 64

Value = str | bool | int | float | Sequence[str]
"""A value of an attribute of a span."""


class SpanContext(NamedTuple):
    """The ids of a span that is sampled."""

    trace_id: int
    span_id: int

    def child(self, name: str, distinct: object = "") -> "SpanContext":
        """The context of the child of this name. `distinct` tells children of one name apart."""
        text = f"{self.trace_id:032x}/{self.span_id:016x}/{name}/{distinct}"
        return SpanContext(self.trace_id, _hashed(text, 8))

    @property
    def headers(self) -> list[tuple[str, bytes]]:
        """The headers of a record that continues the trace below this span."""
        return [(TRACEPARENT, f"00-{self.trace_id:032x}-{self.span_id:016x}-01".encode())]


class Span(NamedTuple):
    """A span that has ended, from `began` to `ended` (UTC seconds). `error` is empty without one;
    `links` are spans of other traces on which it also depends. `is_server` for a request that was
    answered."""

    name: str
    context: SpanContext
    parent: SpanContext | None
    began: float
    ended: float
    attributes: Mapping[str, Value]
    links: Sequence[SpanContext] = ()
    error: str = ""
    is_server: bool = False


def trace_of_window(node: str, window_end_ms: int, origin: str = "") -> int:
    """The id of the trace of a window; `origin` is what measured it."""
    return _hashed(f"{node}/{window_end_ms}/{origin}", 16)


def root_of_trace(trace_id: int) -> SpanContext:
    """The context of the first span of a trace."""
    return SpanContext(trace_id, _hashed(f"{trace_id:032x}", 8))


def is_sampled(trace_id: int, ratio: float) -> bool:
    """Whether a trace is in this share of all traces: the rule of OpenTelemetry's sampler
    TraceIdRatioBased, so that a trace of a smaller ratio is also one of each larger ratio."""
    return trace_id % _HALF < round(ratio * _HALF)


def context_in(headers: Iterable[tuple[str, bytes | None]]) -> SpanContext | None:
    """The context in the headers of a record; None if it has none, or an invalid one, or is not
    sampled."""
    for name, value in headers:
        if name == TRACEPARENT and value is not None:
            context, is_sampled = read_traceparent(value) or (None, False)
            return context if is_sampled else None
    return None


def read_traceparent(value: bytes) -> tuple[SpanContext, bool] | None:
    """The context in a value of the header, and whether it is sampled; None if it is invalid. Later
    versions may append fields, which are ignored."""
    match = _TRACEPARENT.fullmatch(value)
    if match is None or match[1] == b"ff" or (match[1] == b"00" and match[5] is not None):
        return None
    context = SpanContext(int(match[2], 16), int(match[3], 16))
    return (context, bool(int(match[4], 16) & 1)) if all(context) else None


def _hashed(text: str, size: int) -> int:
    """A number of `size` bytes. OpenTelemetry does not allow zero."""
    return int.from_bytes(blake2b(text.encode(), digest_size=size).digest()) or 1
