"""The view agent over a fake shard: when it writes views, and how it handles invalid ones."""

from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.agents import view_agent
from pipeline.agents.view_agent import VIEWS, NodeViews
from pipeline.agents.window_spans import TracedResults
from pipeline.clock import ManualClock
from pipeline.kafka.producer import HeadersByKey, Keyed
from pipeline.processors.join.pod_facts import pod_row as row_of_pod
from pipeline.spans import SpanContext
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.node_resources import NodeResourcesRecord
from pipeline.topics.node_views import NodeViewRecord
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.overcommit_policy import Overcommit
from pipeline.topics.resource_amounts import Resources
from tests.metric_values import value_of
from tests.processors.joined import known_pod


class Written:
    """An output that collects appended records."""

    def __init__(self) -> None:
        self.records: list[Keyed] = []
        self.headers: HeadersByKey = {}

    async def append(
        self, _topic: str, _partition: int, records: list[Keyed], headers: HeadersByKey
    ) -> None:
        self.records += records
        self.headers = headers

    def take(self) -> list[Keyed]:
        taken, self.records = self.records, []
        return taken


class Agent:
    def __init__(self, *names: str) -> None:
        cluster_state = SimpleNamespace(
            node_records={name: encode_json(NodeRecord(node=name)) for name in names},
            deleted_nodes=dict[str, None](),
            pods={},
        )
        shard: Any = SimpleNamespace(
            ownership=SimpleNamespace(owned=True, epoch=3, partition=0),
            join=SimpleNamespace(cluster_state=cluster_state),
            model=SimpleNamespace(take_published=self.take_published, reports={}, traces={}),
        )
        self.model, self.published = shard.model, set[str]()
        self.cluster_state, self.clock, self.output = cluster_state, ManualClock(0.0), Written()
        output: Any = self.output
        self.views = NodeViews(shard, output, "views", self.clock)

    def take_published(self) -> set[str]:
        taken, self.published = self.published, set()
        return taken

    async def written(self) -> list[NodeViewRecord]:
        """Write views; return them. A tombstone fails."""
        return [decode_json(NodeViewRecord, value or b"") for value in await self.values()]

    async def values(self) -> list[bytes | None]:
        await self.views.write()
        return [record.value for record in self.output.take()]


def count(what: str) -> float:
    return value_of(VIEWS.labels(what))


async def test_an_unchanged_view_is_written_once() -> None:
    agent = Agent("n1")
    (first,) = await agent.written()
    agent.views.touch("x.nodes", b"n1")
    assert await agent.written() == []
    agent.cluster_state.node_records["n1"] = encode_json(NodeRecord(node="n1", uid="other"))
    agent.views.touch("x.nodes", b"n1")
    agent.cluster_state.node_records["n1"] = encode_json(
        NodeRecord(node="n1", annotations={"node.koordinator.sh/a": "b"})
    )
    (second,) = await agent.written()
    assert second.generation > first.generation


async def test_an_invalid_record_affects_only_its_node() -> None:
    agent = Agent("n1", "n2")
    agent.cluster_state.node_records["n1"] = b'{"version":1,"node":"n1","taints":[{"key":"a"}]}'
    before = count("unreadable")
    assert [view.node for view in await agent.written()] == ["n2"]
    assert count("unreadable") == before + 1


async def test_the_largest_pod_of_an_oversized_view_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_agent, "MAX_RECORD_BYTES", 16_384 + 10_000)
    agent, before = Agent("n1"), (count("cut"), count("oversized"))
    small, large = (
        row_of_pod(known_pod(uid, annotations={f"{n}.koordinator.sh/x": "y" * 4000 for n in many}))
        for uid, many in (("a", "1"), ("b", "123"))
    )
    agent.cluster_state.pods["n1"] = {"a": small, "b": large}
    (view,) = await agent.written()
    agent.views.touch("x.pods", b"n1/b")
    assert await agent.written() == []
    assert [(pod.uid, pod.cut, len(pod.annotations)) for pod in view.pods] == [
        ("a", False, 1),
        ("b", True, 0),
    ]
    assert (count("cut"), count("oversized")) == (before[0] + 1, before[1])


async def test_an_oversized_view_is_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_agent, "MAX_RECORD_BYTES", 16_384)
    agent, before = Agent("n1"), count("oversized")
    for _ in range(3):
        agent.views.touch("x.nodes", b"n1")
        assert await agent.written() == []
    assert count("oversized") == before + 1


async def test_all_views_are_rewritten_periodically() -> None:
    """A previous owner may have overwritten views with writes in flight."""
    agent = Agent("n1", "n2")
    first = {view.node: view.generation for view in await agent.written()}
    await agent.clock.advance(599.0)
    agent.views.rewrite_when_due()
    assert await agent.written() == []
    await agent.clock.advance(1.0)
    agent.views.rewrite_when_due()
    again = {view.node: view.generation for view in await agent.written()}
    assert again.keys() == first.keys()
    assert min(again.values()) > max(first.values())


async def test_a_deleted_node_gets_one_tombstone() -> None:
    agent = Agent("n1")
    await agent.written()
    del agent.cluster_state.node_records["n1"]
    agent.views.touch("x.nodes", b"n1")
    assert await agent.values() == [None]
    agent.views.touch("x.nodes", b"n1")
    assert await agent.written() == []


async def test_only_a_view_that_a_traced_window_changed_continues_its_trace() -> None:
    agent = Agent("n1", "n2")
    await agent.written()
    context = SpanContext(5, 6)
    traced = TracedResults(context, context, 0, None, {})
    agent.model.traces = {"n1": traced, "n2": traced}
    amounts = Resources(cpu_millicores=1, memory_bytes=1)
    for name in ("n1", "n2"):
        resources = NodeResourcesRecord(
            node=name, as_of="2026-01-01T00:00:00Z", generation=1, offset=0, epoch=1,
            strategy=Overcommit(), predictor="percentile", batch=amounts,
        )  # fmt: skip
        agent.model.reports[name] = SimpleNamespace(resources=encode_json(resources))
    agent.published = {"n1"}
    agent.views.touch("x.nodes", b"n2")
    assert {view.node for view in await agent.written()} == {"n1", "n2"}
    assert agent.output.headers == {b"n1": context.headers}
    agent.cluster_state.node_records["n1"] = encode_json(NodeRecord(node="n1", labels={"a": "b"},
        annotations={"node.koordinator.sh/a": "b"}))  # fmt: skip
    agent.views.touch("x.nodes", b"n1")
    assert [view.node for view in await agent.written()] == ["n1"]
    assert agent.output.headers == {}
