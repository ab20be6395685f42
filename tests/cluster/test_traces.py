"""One connected trace from the sample of a node to what roles did at a real API server."""

import asyncio
import json
from collections import defaultdict
from typing import Any, Final

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from pipeline.local.control_plane import ControlPlane
from pipeline.local.hot_node_scenario import DESCHEDULER_CONFIGURATION
from pipeline.processors.overcommit.status_patch import read_amounts
from pipeline.settings import Settings
from pipeline.tasks import cancel_tasks
from pipeline.topics.codec import decode_json
from pipeline.topics.node_views import NodeViewRecord
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.registry import NODE_VIEWS, NODES
from tests.broker import latest
from tests.cluster.exporters import Exporters
from tests.cluster.objects import apply, deployment, items, named, node, write_policy
from tests.cluster.roles import Role, worker
from tests.otlp_collector import Collector, attributes, otlp_collector
from tests.processes import until

pytestmark = [pytest.mark.plane, pytest.mark.slow, pytest.mark.timeout(900)]

WINDOW_SECONDS: Final = 5
HISTORY: Final = 20
HOT: Final = "traced-hot"
PODS: Final = 2


def usage(_pod: str, _step: int) -> tuple[float, float]:
    """Two such pods use 81% of the cores of a node, one 41%."""
    return 13.0, 4.0 * 2**30


def traces(collector: Collector) -> list[dict[str, tuple[str, Span]]]:
    """The traces: of each span name, service and span. Of some of one name the last."""
    by_id: dict[bytes, dict[str, tuple[str, Span]]] = defaultdict(dict)
    for service, span in collector.spans():
        by_id[span.trace_id][span.name] = service, span
    return list(by_id.values())


def trace_with(collector: Collector, *names: str) -> dict[str, tuple[str, Span]]:
    """A trace with spans of all these names; empty if there is none."""
    return next((trace for trace in traces(collector) if trace.keys() >= {*names}), {})


def parents(trace: dict[str, tuple[str, Span]]) -> dict[str, str]:
    """The name of the parent of each span."""
    by_id = {span.span_id: name for name, (_, span) in trace.items()} | {b"": ""}
    return {name: by_id[span.parent_span_id] for name, (_, span) in trace.items()}


def text_of(span: Span, name: str) -> Any:
    return attributes(span.attributes)[name]


def logged(role: Role, event: str) -> set[bytes | None]:
    """The ids of traces in the lines of this event in the log of a role; None in a line without."""
    lines = [json.loads(line) for line in role.text().splitlines() if line.startswith("{")]
    ids = [line.get("trace_id") for line in lines if line["event"] == event]
    return {None if each is None else bytes.fromhex(each) for each in ids}


async def is_known(settings: Settings) -> bool:
    """Whether the worker knows the pods of the hot node, and its policies."""
    views = await latest(settings.kafka, NODE_VIEWS)
    nodes = await latest(settings.kafka, NODES)
    if HOT not in views or HOT not in nodes:
        return False
    record = decode_json(NodeRecord, nodes[HOT])
    is_complete = record.hot_nodes is not None and record.overcommit is not None
    return is_complete and len(decode_json(NodeViewRecord, views[HOT]).pods) == PODS


async def test_a_sample_is_traced_to_the_write_of_the_offer_and_to_the_eviction(
    plane: ControlPlane, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = settings.kubernetes.descheduler_config_name
    metadata = {"name": name, "namespace": "koordinator-system"}
    data = {name: json.dumps(DESCHEDULER_CONFIGURATION)}
    own = {"coldStartSamples": 3}
    policy = {"enable": True, "nodePredictPolicy": {"coldStartPeriodSeconds": 0}}
    write_policy(
        plane, settings.kubernetes.config_name, colocation_config=policy, springtide_config=own
    )
    apply(plane, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    apply(plane, *(node(each, cpu="32", memory="128Gi") for each in (HOT, "traced-cool")))
    apply(plane, deployment("web", PODS, on=HOT, cpu="4", memory="8Gi"))

    def is_running() -> bool:
        return [pod["status"]["phase"] for pod in items(plane, "pods")] == ["Running"] * PODS

    await until(is_running, 120)
    with otlp_collector() as collector:
        monkeypatch.setenv("SPRINGTIDE_TRACING_ENDPOINT", collector.url)
        monkeypatch.setenv("SPRINGTIDE_TRACING_SAMPLE_RATIO", "1")
        with (
            Role("watcher", settings), worker(settings), Role("planner", settings) as planner,
            Role("evictor", settings) as evictor,
            Role("actuator", settings, "--mode", "act", "--log-level", "debug") as actuator,
        ):  # fmt: skip
            for role in (planner, evictor, actuator):
                await role.logs("ready")
            await until(lambda: is_known(settings), 120)
            exporters = Exporters(
                plane, settings.kafka, windows=HISTORY, window_seconds=WINDOW_SECONDS, usage=usage
            )
            await exporters.send(HISTORY)
            sending = asyncio.create_task(exporters.run())
            try:
                await until(lambda: trace_with(collector, "sample", "offer"), 180, actuator.text)
                await until(lambda: trace_with(collector, "sample", "evict"), 180, planner.text)
            finally:
                await cancel_tasks(sending)
        offered = trace_with(collector, "sample", "join", "predict", "offer")
        evicted = trace_with(collector, "sample", "join", "predict", "plan", "evict")
    chain = {"sample": "", "join": "sample", "predict": "join"}
    assert parents(offered).items() >= {**chain, "offer": "predict"}.items()
    assert parents(evicted).items() >= {**chain, "plan": "predict", "evict": "plan"}.items()
    service, offer = offered["offer"]
    assert service == "springtide-actuator"
    assert text_of(offer, "springtide.outcome") == "done"
    # The Node has an offer that a trace explains.
    batch = read_amounts(named(plane, "nodes")[text_of(offer, "k8s.node.name")]["status"][
        "allocatable"])[0]  # fmt: skip
    written = [
        text
        for trace in traces(collector)
        for _, span in [trace.get("offer", ("", Span()))]
        for text in attributes(span.attributes).get("springtide.after", [])  # type: ignore[attr-defined]
    ]
    assert f"kubernetes.io/batch-cpu={batch}" in written
    plan, evict = evicted["plan"][1], evicted["evict"][1]
    assert (evicted["plan"][0], evicted["evict"][0]) == ("springtide-planner", "springtide-evictor")
    assert text_of(plan, "k8s.node.name") == HOT
    assert text_of(evict, "springtide.plan") == text_of(plan, "springtide.plan")
    assert text_of(evict, "springtide.outcome") == "observed"
    # It also rests on the window of the node that should take the pod.
    roots = {trace["sample"][1].trace_id for trace in traces(collector) if "sample" in trace}
    assert {link.trace_id for link in plan.links} <= roots
    assert len(plan.links) == 1
    assert offer.trace_id in logged(actuator, "offer")
    for role, event in ((planner, "plan"), (evictor, "plan"), (evictor, "eviction")):
        assert plan.trace_id in logged(role, event), role.text()
