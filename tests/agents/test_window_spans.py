"""Which records of a worker continue the trace of a window, and which do not."""

from collections.abc import Iterator

import pytest

from pipeline import tracing
from pipeline.settings import TracingSettings
from pipeline.spans import context_in
from pipeline.topics.windows import decode_window
from tests.agents.fakes import MemoryBroker, MemoryProducer
from tests.agents.hot_logs import hot_log, published_alerts
from tests.agents.logs import make_log
from tests.agents.test_alerts import cursor_over
from tests.otlp_collector import Collector, otlp_collector


@pytest.fixture
def collector() -> Iterator[Collector]:
    with otlp_collector() as collector:
        settings = TracingSettings(endpoint=collector.url, sample_ratio=1.0)
        with tracing.exporting("worker", settings):
            yield collector


def traces_of(output: MemoryProducer, topic: str) -> dict[int, int]:
    """The traces that the records of a topic continue, by offset."""
    return {
        offset: context.trace_id
        for (name, _, offset), headers in output.headers.items()
        if name == topic and (context := context_in(headers)) is not None
    }


def traces_of_windows(broker: MemoryBroker) -> list[int]:
    contexts = []
    for record in broker.records("t.windows"):
        header = decode_window(record.value or b"").header
        origin = f"{header.machine_id}/{header.source}/{header.epoch}"
        contexts.append(tracing.window_context(header.node, header.window_end_ms, origin))
    return [context.trace_id for context in contexts if context is not None]


async def test_results_continue_the_trace_of_their_window(collector: Collector) -> None:
    broker, _ = make_log(3, "a", "b")
    model, output = cursor_over(broker)
    for record in broker.records("t.windows"):
        await model.process([record])
    windows = traces_of_windows(broker)
    assert len({*windows}) == 6
    assert traces_of(output, "t.node-state") == dict(enumerate(windows))
    assert traces_of(output, "t.predictions")[0] == windows[0]


async def test_an_alert_continues_the_trace_of_the_window_that_changed_it(
    collector: Collector,
) -> None:
    broker, _ = hot_log(1, "a", "b")
    model, output = cursor_over(broker)
    for record in broker.records("t.windows"):
        await model.process([record])
    windows, alerts = traces_of_windows(broker), published_alerts(broker)
    assert len(alerts) == 8
    assert traces_of(output, "t.alerts") == {
        number: windows[alert.offset] for number, alert in enumerate(alerts)
    }


async def test_alerts_of_older_windows_of_a_backlog_are_in_no_trace(collector: Collector) -> None:
    """The worker has the context of the newest window of a node only."""
    broker, _ = hot_log(1, "a")
    model, output = cursor_over(broker)
    await model.process(broker.records("t.windows"))
    assert len(published_alerts(broker)) == 4
    assert traces_of(output, "t.alerts") == {}
    assert traces_of(output, "t.node-state") == {0: traces_of_windows(broker)[-1]}


async def test_a_departed_node_leaves_no_context(collector: Collector) -> None:
    broker, log = make_log(2, "a", "b")
    model, _ = cursor_over(broker)
    log.depart("a")
    await model.process(broker.records("t.windows"))
    assert model.traces.keys() == {"b"}
