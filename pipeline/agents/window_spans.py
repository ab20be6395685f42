"""The spans of a worker: `sample` from the end of a window until the broker has its sample, `join`
until the window is in the log, `predict` until its results are on their topics."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pipeline import tracing
from pipeline.spans import Span, SpanContext, Value
from pipeline.times import format_time
from pipeline.topics.windows import Window

RecordHeaders = Sequence[tuple[str, bytes]]


class TracedResults(NamedTuple):
    """The span `predict` of the newest applied window of a node. `began` is None once the span was
    recorded: results that are published again after a rebalance have its context, and no span."""

    context: SpanContext
    parent: SpanContext
    offset: int
    began: float | None
    attributes: Mapping[str, Value]


def record_joins(windows: Iterable[Window], partition: int, began: float) -> None:
    """Record the spans `sample` and `join` of windows that were just appended."""
    ended = tracing.now()
    for window in windows:
        if (root := _root(window)) is None:
            continue
        attributes = _attributes(window) | {"springtide.partition": partition}
        # The first by the clocks of the node and of the broker, both the same in every replay.
        end, appended = window.header.window_end_ms / 1000, window.appended_ms / 1000
        tracing.record(Span("sample", root, None, end, appended, attributes))
        tracing.record(Span("join", root.child("join"), root, began, ended, attributes))


def note_applied(
    traces: dict[str, TracedResults], window: Window, offset: int, began: float, *, is_replay: bool
) -> None:
    """Keep the context of the newest applied window of a node, none if it is not traced."""
    node = window.header.node
    if (root := _root(window)) is None:
        traces.pop(node, None)
        return
    parent = root.child("join")
    attributes = _attributes(window) | {
        "springtide.offset": offset,
        "springtide.is_replay": is_replay,
    }
    traces[node] = TracedResults(parent.child("predict"), parent, offset, began, attributes)


def record_published(traces: dict[str, TracedResults], node: str, *, prediction: bool) -> None:
    """Record the span `predict` of a node whose results were just published, once."""
    traced = traces.get(node)
    if traced is None or traced.began is None:
        return
    attributes = {**traced.attributes, "springtide.prediction": prediction}
    began, ended = traced.began, tracing.now()
    tracing.record(Span("predict", traced.context, traced.parent, began, ended, attributes))
    traces[node] = traced._replace(began=None)


def headers_by_key(
    traces: Mapping[str, TracedResults], nodes: Iterable[str]
) -> dict[bytes, RecordHeaders]:
    """The headers of the results of those of these nodes that are traced, by key of the record."""
    return {
        node.encode(): traced.context.headers
        for node in nodes
        if (traced := traces.get(node)) is not None
    }


def _root(window: Window) -> SpanContext | None:
    header = window.header
    origin = f"{header.machine_id}/{header.source}/{header.epoch}"
    return tracing.window_context(header.node, header.window_end_ms, origin)


def _attributes(window: Window) -> dict[str, Value]:
    header = window.header
    return {
        "k8s.node.name": header.node,
        "springtide.window_start": format_time(header.window_start_ms / 1000),
        "springtide.window_end": format_time(header.window_end_ms / 1000),
    }
