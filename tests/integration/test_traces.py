"""Traces of a worker with a real broker, also after a kill: one trace of each window, with ids that
a replay repeats, and headers that later roles continue."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from pipeline.kafka.topic_admin import apply_topics
from pipeline.local.local_kafka import LocalKafka
from pipeline.local.port_probe import free_port
from pipeline.settings import KafkaSettings, Settings
from pipeline.spans import context_in, trace_of_window
from pipeline.topics.codec import encode_json
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.overcommit_policy import Overcommit
from pipeline.topics.registry import (
    NODE_STATE,
    NODE_VIEWS,
    NODES,
    PREDICTIONS,
    RESOURCES,
    SAMPLES,
    Topic,
)
from pipeline.topics.resource_amounts import Resources
from pipeline.topics.samples import SampleBatch, SampleHeader, encode_samples
from tests.broker import messages, own_topics, send
from tests.cgroup_tree import cgroup_tree
from tests.cluster.roles import Role
from tests.otlp_collector import Collector, attributes, otlp_collector
from tests.processes import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

NODE: Final = "n1"
SECONDS: Final = 6
GIB: Final = 2**30
ROOM: Final = Resources(cpu_millicores=8000, memory_bytes=32 * GIB)


class Node:
    """A node whose windows of six seconds end from a minute and a half ago on."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self.kafka = kafka
        self.end_ms = int(time.time() - 90) // SECONDS * SECONDS * 1000

    async def send(self) -> None:
        self.end_ms += SECONDS * 1000
        header = SampleHeader(
            node=NODE, machine_id="m", boot_id="", epoch=1, sequence=self.end_ms // 6000,
            window_start_ms=self.end_ms - SECONDS * 1000, window_end_ms=self.end_ms,
        )  # fmt: skip
        row = {
            "kind": "node", "id": "", "coverage": 1.0, "cpu_cores_avg": 2.0,
            "memory_bytes_avg": 4.0 * GIB, "capacity_cpu_cores": 8.0,
            "capacity_memory_bytes": 32.0 * GIB,
        }  # fmt: skip
        await send(self.kafka, SAMPLES, (NODE, encode_samples(SampleBatch(header, [row]))))

    def trace_id(self) -> bytes:
        """The trace of the newest window."""
        return trace_of_window(NODE, self.end_ms, "m//1").to_bytes(16)

    async def has_published(self, topic: Topic, trace_id: bytes) -> bool:
        """Whether a record of the topic continues the trace."""
        contexts = [context_in(record.headers) for record in await messages(self.kafka, topic)]
        return trace_id in [each.trace_id.to_bytes(16) for each in contexts if each is not None]

    async def has_view(self) -> bool:
        return bool(await messages(self.kafka, NODE_VIEWS))


@pytest.fixture
async def node(broker: LocalKafka) -> Node:
    kafka = own_topics(broker, 1)
    await apply_topics(kafka)
    record = NodeRecord(
        node=NODE, allocatable=ROOM, capacity=ROOM, overcommit=Overcommit()
    )  # fmt: skip
    await send(kafka, NODES, (NODE, encode_json(record)))
    return Node(kafka)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with otlp_collector() as collector:
        yield collector


def traced_worker(node: Node, monkeypatch: pytest.MonkeyPatch, url: str) -> Role:
    monkeypatch.setenv("SPRINGTIDE_TRACING_ENDPOINT", url)
    monkeypatch.setenv("SPRINGTIDE_TRACING_SAMPLE_RATIO", "1")
    group = ("--id", node.kafka.topic_prefix, "--instance-id", "worker-0")
    return Role("worker", Settings(kafka=node.kafka), "--no-supervise", *group)


def of_trace(collector: Collector, trace_id: bytes) -> dict[str, Span]:
    """The spans of a trace by name. Raises AssertionError for two of a name with distinct ids."""
    spans = [span for _, span in collector.spans() if span.trace_id == trace_id]
    assert len({span.name for span in spans}) == len({span.span_id for span in spans})
    return {span.name: span for span in spans}


async def test_a_window_has_one_trace_whose_ids_a_replay_repeats(
    node: Node, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    with traced_worker(node, monkeypatch, collector.url) as killed:
        await node.send()
        first = node.trace_id()
        await until(lambda: len(of_trace(collector, first)) == 3, 120, killed.text)
        killed.kill()
    spans = of_trace(collector, first)
    sample, join, predict = (spans[name] for name in ("sample", "join", "predict"))
    assert sample.parent_span_id == b""
    assert (join.parent_span_id, predict.parent_span_id) == (sample.span_id, join.span_id)
    assert sample.start_time_unix_nano == node.end_ms * 1_000_000
    assert sample.end_time_unix_nano <= join.end_time_unix_nano <= predict.end_time_unix_nano
    assert attributes(predict.attributes)["k8s.node.name"] == NODE
    assert attributes(predict.attributes)["springtide.is_replay"] is False
    for topic in (NODE_STATE, RESOURCES, PREDICTIONS):
        (record,) = await messages(node.kafka, topic)
        context = context_in(record.headers)
        assert context is not None
        assert context.span_id.to_bytes(8) == predict.span_id

    def is_replayed() -> object:
        newest = of_trace(collector, first)["predict"]
        return attributes(newest.attributes)["springtide.is_replay"]

    with traced_worker(node, monkeypatch, collector.url) as role:
        # No checkpoint was written: the log is replayed.
        await until(is_replayed, 120, role.text)
        after = of_trace(collector, first)
        assert {name: span.span_id for name, span in after.items()} == {
            name: span.span_id for name, span in spans.items()
        }
        # The end of a role delivers what waits.
        await node.send()
        await until(lambda: node.has_published(NODE_STATE, node.trace_id()), 60, role.text)
        assert role.stop() == 0
    assert len(of_trace(collector, node.trace_id())) == 3


async def test_a_collector_that_hangs_stops_no_worker(
    node: Node, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector.may_answer.clear()
    with traced_worker(node, monkeypatch, collector.url) as role:
        await node.send()
        await until(lambda: collector.requests, 120, role.text)
        for _ in range(3):
            await node.send()
        await until(lambda: node.has_published(NODE_STATE, node.trace_id()), 60, role.text)
        assert role.stop() == 0
        assert "spans are lost: the collector did not take them in time" in role.text()


@pytest.mark.cgroups
async def test_a_trace_goes_on_through_the_extender_to_the_round_of_the_node_actuator(
    node: Node, collector: Collector, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = Settings(kafka=node.kafka)
    port = free_port()
    with cgroup_tree("traces") as tree, traced_worker(node, monkeypatch, collector.url) as worker:
        tree.make("kubepods/besteffort")
        flags = (
            f"--extender-url=http://127.0.0.1:{port}", f"--node-name={NODE}",
            f"--cgroup-parent={tree.name}", "--mode=act", f"--state-file={tmp_path / 'state.json'}",
            f"--socket-path={tmp_path / 'exporter.sock'}", "--metrics-port=0",
        )  # fmt: skip
        with (
            Role("extender", settings, f"--port={port}", "--host=127.0.0.1"),
            Role("node-actuator", settings, *flags) as actuator,
        ):
            # The first view of a start may be written before any window.
            await until(lambda: node.has_view(), 120, worker.text)
            await node.send()
            trace = node.trace_id()
            await until(lambda: "hold" in of_trace(collector, trace), 120, actuator.text)
    spans = of_trace(collector, trace)
    assert spans["hold"].parent_span_id == spans["predict"].span_id
    assert attributes(spans["hold"].attributes)["k8s.node.name"] == NODE
