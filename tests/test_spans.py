"""Ids, headers and sampling of traces."""

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased
from opentelemetry.trace import get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from pipeline.spans import SpanContext, context_in, is_sampled, root_of_trace, trace_of_window

ids = st.builds(SpanContext, st.integers(1, (1 << 128) - 1), st.integers(1, (1 << 64) - 1))


def test_ids_are_the_same_in_every_run_and_version() -> None:
    root = root_of_trace(trace_of_window("node-1", 1_700_000_030_000, "machine//7"))
    assert root.headers == [
        ("traceparent", b"00-13c39df0a436cdb3a533ab57e4bb2686-6e79664d42c6845d-01"),
    ]
    assert root.child("join") == root.child("join") != root.child("predict")
    assert root.child("plan", "a") != root.child("plan", "b")


def test_another_node_window_or_origin_has_another_trace() -> None:
    windows = [
        ("a", 30_000, "m"), ("b", 30_000, "m"), ("a", 60_000, "m"), ("a", 30_000, "n"),
    ]  # fmt: skip
    assert len({trace_of_window(*window) for window in windows}) == len(windows)


@given(ids)
def test_opentelemetry_reads_our_header_and_we_read_its_header(context: SpanContext) -> None:
    carrier = {name: value.decode() for name, value in context.headers}
    parent = TraceContextTextMapPropagator().extract(carrier)
    read = get_current_span(parent).get_span_context()
    assert (read.trace_id, read.span_id, read.trace_flags.sampled) == (*context, True)
    written: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(written, parent)
    assert context_in([(name, value.encode()) for name, value in written.items()]) == context


@given(ids, st.floats(0, 1))
def test_a_window_is_sampled_as_by_opentelemetry(context: SpanContext, ratio: float) -> None:
    decision = TraceIdRatioBased(ratio).should_sample(None, context.trace_id, "").decision
    assert is_sampled(context.trace_id, ratio) == (decision is Decision.RECORD_AND_SAMPLE)


def test_the_share_of_sampled_windows_is_the_ratio() -> None:
    traces = [trace_of_window(f"node-{n}", 30_000 * w) for n in range(100) for w in range(100)]
    sampled = sum(is_sampled(trace, 0.1) for trace in traces)
    # Five standard deviations of 10,000 draws.
    assert 850 < sampled < 1150


@given(
    st.binary(max_size=70) | st.from_regex(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
)
def test_an_invalid_header_is_no_context(value: bytes) -> None:
    context = context_in([("traceparent", value)])
    if context is not None:
        assert value[2:53] == context.headers[0][1][2:53]
        assert int(value[53:55], 16) % 2


def test_headers_without_a_sampled_context() -> None:
    trace, span = b"1" * 32, b"2" * 16
    for value in (
        None, b"", b"00-%s-%s-00" % (trace, span), b"00-%s-%s-01" % (b"0" * 32, span),
        b"00-%s-%s-01" % (trace, b"0" * 16), b"ff-%s-%s-01" % (trace, span),
        b"00-%s-%s-01-more" % (trace, span), b"00-%s-%s-01\n" % (trace, span),
    ):  # fmt: skip
        assert context_in([("other", b"x"), ("traceparent", value)]) is None
    for later in (b"cc-%s-%s-01", b"cc-%s-%s-01-what-ever"):
        assert context_in([("traceparent", later % (trace, span))]) is not None
    assert context_in([("traceparent", b"00-%s-%s-01" % (trace, span))]) is not None
