"""Spans of requests: sampled or as the caller wants it, with what was decided, and in the log."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from pipeline import tracing
from pipeline.extender.decisions import Decisions
from pipeline.extender.record_writer import RecordWriter
from pipeline.logs import configure_logging
from pipeline.settings import ExtenderSettings, TracingSettings
from pipeline.spans import SpanContext, context_in
from pipeline.topics.wake_ups import WakeUpRecord
from tests.extender.conftest import ALL, POD, Start
from tests.otlp_collector import attributes, otlp_collector

CALLER = SpanContext(0xA1, 0xB2)
BODY = {"Pod": POD, "NodeNames": ALL}
"""hot is over the threshold of CPU, full over that of memory."""


class Traced:
    """Tracing with a ratio; `spans` ends it, and delivers what waits."""

    def __init__(self, ratio: float) -> None:
        self._collected = otlp_collector()
        self._collector = self._collected.__enter__()
        settings = TracingSettings(endpoint=self._collector.url, sample_ratio=ratio)
        self._exporting = tracing.exporting("extender", settings)
        self._exporting.__enter__()

    def spans(self) -> list[Span]:
        self._exporting.__exit__(None, None, None)
        return [span for _, span in self._collector.spans()]

    def stop(self) -> None:
        if tracing.is_on():
            self.spans()
        self._collected.__exit__(None, None, None)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    level = logging.getLogger("opentelemetry").level
    yield
    logging.getLogger("opentelemetry").setLevel(level)


@pytest.fixture
def always() -> Iterator[Traced]:
    traced = Traced(1.0)
    yield traced
    traced.stop()


@pytest.fixture
def never() -> Iterator[Traced]:
    """No request is sampled."""
    traced = Traced(0.0)
    yield traced
    traced.stop()


def header(context: SpanContext, flags: str = "01") -> dict[str, str]:
    return {"traceparent": context.headers[0][1].decode()[:-2] + flags}


async def test_the_span_of_filter_counts_refused_nodes_by_reason(
    start: Start, always: Traced
) -> None:
    client = await start()
    await client.post("/filter", json=BODY)
    (span,) = always.spans()
    assert (span.name, span.kind) == ("POST /filter", Span.SPAN_KIND_SERVER)
    assert span.parent_span_id == b""
    found = attributes(span.attributes)
    stages = {name: found.pop(f"springtide.{name}_seconds")
              for name in ("receive", "read", "decide", "write")}  # fmt: skip
    lasts = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
    assert 0 < sum(stages.values()) <= lasts + 0.001  # type: ignore[arg-type]
    assert found == {
        "http.request.method": "POST", "http.route": "/filter", "http.response.status_code": 200,
        "springtide.mode": "act", "springtide.pod": "d/p", "springtide.nodes": 7,
        "springtide.passed": 2, "springtide.refused": 2, "springtide.unknown": 2,
        "springtide.estimated": 1,
        "springtide.reasons": [
            "1 node(s) cpu usage exceed threshold", "1 node(s) memory usage exceed threshold",
        ],
    }  # fmt: skip


async def test_the_span_of_prioritize_has_the_best_node(start: Start, always: Traced) -> None:
    client = await start()
    await client.post("/prioritize", json=BODY)
    (span,) = always.spans()
    found = attributes(span.attributes)
    assert (found["springtide.best_node"], found["springtide.best_score"]) == ("idle", 8)


async def test_requests_that_nobody_samples_have_no_span(start: Start, never: Traced) -> None:
    client = await start()
    await client.post("/filter", json=BODY)
    await client.post("/filter", json=BODY, headers={"traceparent": "garbage"})
    assert never.spans() == []


async def test_a_caller_decides_about_its_requests(start: Start, never: Traced) -> None:
    client = await start()
    await client.post("/filter", json=BODY, headers=header(CALLER))
    await client.get("/v1/nodes", headers=header(CALLER))
    await client.get("/healthz", headers=header(CALLER))
    spans = never.spans()
    assert [span.name for span in spans] == ["POST /filter", "GET /v1/nodes"]
    for span in spans:
        assert span.trace_id == CALLER.trace_id.to_bytes(16)
        assert span.parent_span_id == CALLER.span_id.to_bytes(8)
    assert len({span.span_id for span in spans}) == 2


async def test_a_caller_that_does_not_trace_gets_no_span(start: Start, always: Traced) -> None:
    client = await start()
    await client.post("/filter", json=BODY, headers=header(CALLER, "00"))
    assert always.spans() == []


async def test_a_refused_client_gets_no_span(start: Start, always: Traced, tmp_path: Any) -> None:
    """Else it could push the spans of others out of the queue."""
    tokens = tmp_path / "tokens"
    tokens.write_text("secret\n")
    client = await start(settings=ExtenderSettings(query_token_file=str(tokens)))
    response = await client.get("/v1/nodes", headers=header(CALLER))
    assert response.status == 401
    assert always.spans() == []


async def test_only_failures_of_the_extender_are_errors(
    start: Start, always: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await start()
    await client.post("/filter", data=b"{")
    monkeypatch.setattr(Decisions, "filter", lambda *_: 1 / 0)
    await client.post("/filter", json=BODY)
    bad, failed = always.spans()
    assert (bad.status.code, failed.status.code) == (
        Status.STATUS_CODE_UNSET, Status.STATUS_CODE_ERROR,
    )  # fmt: skip
    assert attributes(bad.attributes)["http.response.status_code"] == 400
    assert failed.status.message == "Internal Server Error"


async def test_log_lines_of_a_traced_request_have_its_ids(start: Start, always: Traced) -> None:
    root, lines = logging.getLogger(), io.StringIO()
    handlers, level = root.handlers[:], root.level
    try:
        configure_logging("info", "json", stream=lines)
        client = await start()
        await client.post("/filter", json=BODY)
        logging.getLogger("other").info("between requests")
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.captureWarnings(False)
    (span,) = always.spans()
    logged = [json.loads(line) for line in lines.getvalue().splitlines()]
    (answer,) = (line for line in logged if line["event"] == "answer")
    (between,) = (line for line in logged if line["event"] == "between requests")
    assert (answer["trace_id"], answer["span_id"]) == (span.trace_id.hex(), span.span_id.hex())
    assert "trace_id" not in between


async def test_records_of_a_traced_request_continue_its_trace(always: Traced) -> None:
    class Recorder:
        """Stands in for the producer: keeps the headers."""

        headers: list[Any]

        async def offer(self, *_: Any, headers: Any, **__: Any) -> None:
            self.headers = headers

    recorder: Any = Recorder()
    writer = RecordWriter(recorder, "x")
    wake_up = WakeUpRecord(node="n", at="2026-01-01T00:00:00Z")
    with tracing.entered(CALLER):
        writer.write_wake_up(wake_up)
        await writer.close()
    assert context_in(recorder.headers) == CALLER
    writer.write_wake_up(wake_up)
    await writer.close()
    assert recorder.headers == []
