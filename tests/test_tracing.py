"""Spans on their way to a collector that works, is slow, lies, or is away."""

import builtins
import json
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from pipeline import span_export, tracing
from pipeline.errors import MissingExtraError
from pipeline.logs import JsonFormatter
from pipeline.settings import TracingSettings
from pipeline.spans import Span, SpanContext, root_of_trace, trace_of_window
from tests.metric_values import sum_of
from tests.otlp_collector import Collector, attributes, otlp_collector
from tests.processes import eventually


@pytest.fixture
def collector() -> Iterator[Collector]:
    with otlp_collector() as collector:
        yield collector


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Batches are sent at once. The log of OpenTelemetry is as before."""
    monkeypatch.setattr(span_export, "BATCH_SECONDS", 0.02)
    level = logging.getLogger("opentelemetry").level
    yield
    logging.getLogger("opentelemetry").setLevel(level)


def span(number: int = 0, **more: Any) -> Span:
    context = root_of_trace(trace_of_window("node-1", number))
    return Span("join", context.child("join"), context, 1.25, 2.5, {"k8s.node.name": "a"}, **more)


def counts() -> dict[str, float]:
    outcomes = ("exported", "failed", "dropped")
    return {outcome: sum_of(tracing.SPANS, outcome=outcome) for outcome in outcomes}


def added(before: dict[str, float]) -> dict[str, float]:
    return {name: count - before[name] for name, count in counts().items() if count > before[name]}


def settings(url: str, ratio: float = 1.0) -> TracingSettings:
    return TracingSettings(endpoint=url, sample_ratio=ratio)


def test_a_span_arrives_whole(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-token=secret")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.cluster.name=blue")
    before, link = counts(), SpanContext(5, 6)
    with tracing.exporting("worker", settings(collector.url + "/")):
        tracing.record(span(links=[link], error="no room"))
    ((service, sent),) = collector.spans()
    context, parent = span().context, root_of_trace(trace_of_window("node-1", 0))
    assert (service, sent.name) == ("springtide-worker", "join")
    assert sent.trace_id == context.trace_id.to_bytes(16)
    assert sent.span_id == context.span_id.to_bytes(8)
    assert sent.parent_span_id == parent.span_id.to_bytes(8)
    assert (sent.start_time_unix_nano, sent.end_time_unix_nano) == (1_250_000_000, 2_500_000_000)
    assert attributes(sent.attributes) == {"k8s.node.name": "a"}
    assert [int.from_bytes(each.trace_id) for each in sent.links] == [5]
    assert (sent.status.code, sent.status.message) == (Status.STATUS_CODE_ERROR, "no room")
    resource = attributes(collector.received[0].resource_spans[0].resource.attributes)
    assert resource["k8s.cluster.name"] == "blue"
    assert collector.headers[0]["x-token"] == "secret"
    assert added(before) == {"exported": 1}


def test_nothing_is_computed_or_sent_while_tracing_is_off(collector: Collector) -> None:
    header = root_of_trace(trace_of_window("node-1", 0)).headers
    with tracing.exporting("worker", TracingSettings(sample_ratio=1.0)):
        assert not tracing.is_on()
        assert tracing.window_context("node-1", 0) is None
        assert tracing.context_of(header) is None
        tracing.record(span())
    assert collector.requests == 0


def test_log_lines_about_a_traced_record_have_its_ids() -> None:
    received = {"a": tracing.Received(SpanContext(10, 11), 0.0)}
    formatter = JsonFormatter()

    def line() -> dict[str, Any]:
        record = logging.makeLogRecord({"msg": "done"})
        return dict(json.loads(formatter.format(record)))

    with tracing.logged(tracing.cause(received, "a")):
        assert (line()["trace_id"], line()["span_id"]) == (f"{10:032x}", f"{11:016x}")
        with tracing.logged(tracing.cause(received, "b")):
            assert line()["trace_id"] == f"{10:032x}"
    with tracing.logged(tracing.cause(received, "b")):
        assert "trace_id" not in line()


def test_the_ratio_decides_which_windows_are_traced(collector: Collector) -> None:
    for ratio, is_traced in ((0.0, False), (1.0, True)):
        with tracing.exporting("worker", settings(collector.url, ratio)):
            assert (tracing.window_context("node-1", 0) is not None) == is_traced
    # Other roles follow the header, whatever their own ratio is.
    with tracing.exporting("planner", settings(collector.url, 0.0)):
        context = root_of_trace(trace_of_window("node-1", 0))
        assert tracing.context_of(context.headers) == context


def test_the_newest_record_of_a_key_decides_about_its_context(collector: Collector) -> None:
    received: dict[str, tracing.Received] = {}
    with tracing.exporting("planner", settings(collector.url)):
        tracing.note(received, "a", root_of_trace(trace_of_window("a", 0)).headers)
        assert received["a"].context == root_of_trace(trace_of_window("a", 0))
        tracing.note(received, "a", [])
        assert received == {}


@pytest.mark.parametrize("status", [301, 400, 500])
def test_spans_that_a_collector_does_not_take_are_counted(
    collector: Collector, status: int
) -> None:
    before, collector.status = counts(), status
    with tracing.exporting("worker", settings(collector.url)):
        for number in range(3):
            tracing.record(span(number))
    assert added(before) == {"failed": 3}


def test_a_collector_that_hangs_costs_no_time_and_a_bounded_number_of_spans(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span_export, "STOP_SECONDS", 0.2)
    before = counts()
    collector.may_answer.clear()
    with tracing.exporting("worker", settings(collector.url)):
        tracing.record(span())
        assert eventually(lambda: collector.requests == 1)
        used = time.process_time()
        for number in range(3 * span_export.MOST_SPANS):
            tracing.record(span(number))
        # 20 us is usual. A wait for the collector would take no CPU, but its ten seconds.
        assert time.process_time() - used < 5
        assert added(before) == {"dropped": 2 * span_export.MOST_SPANS + 1}
        assert collector.requests == 1
        ended = time.monotonic()
    assert time.monotonic() - ended < span_export.STOP_SECONDS + 5
    assert not tracing.is_on()


def test_a_collector_that_is_away_costs_its_spans_and_not_the_end_of_the_role(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    with otlp_collector() as gone:
        url = gone.url
    before = counts()
    with tracing.exporting("worker", settings(url)):
        tracing.record(span())
        assert eventually(lambda: added(before) == {"failed": 1})


def test_an_answer_without_an_end_is_not_read(collector: Collector) -> None:
    """A lying collector could fill the memory with it."""
    before, collector.is_endless = counts(), True
    with tracing.exporting("worker", settings(collector.url)):
        tracing.record(span())
        assert eventually(lambda: added(before) == {"exported": 1})
        assert eventually(lambda: collector.left == 1)


def test_long_texts_lists_and_many_links_are_cut(collector: Collector) -> None:
    links, long = [SpanContext(1, number) for number in range(1, 999)], "x" * 99_999
    large = span(links=links, error=long)._replace(
        attributes={"text": long, "texts": [long] * 999, "number": 7}
    )
    with tracing.exporting("worker", settings(collector.url)):
        tracing.record(large)
    ((_, sent),) = collector.spans()
    cut = "x" * span_export.MOST_CHARACTERS
    assert len(sent.links) == span_export.MOST_ITEMS
    assert sent.status.message == cut
    assert attributes(sent.attributes) == {
        "text": cut, "texts": [cut] * span_export.MOST_ITEMS, "number": 7
    }  # fmt: skip


def test_a_missing_extra_has_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *more: Any) -> Any:
        if name.startswith("opentelemetry") or name == "pipeline.span_export":
            raise ModuleNotFoundError(f"No module named {name!r}", name="opentelemetry")
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", without)
    exporting = tracing.exporting("worker", settings("http://127.0.0.1:1"))
    with pytest.raises(MissingExtraError) as raised, exporting:
        pass
    assert "[tracing]" in (raised.value.hint or "")
    with tracing.exporting("worker", TracingSettings()):
        assert not tracing.is_on()
