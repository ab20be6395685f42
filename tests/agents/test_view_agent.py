"""The view agent over a shard made by hand: what is written when, and what it survives."""

from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.agents import view_agent
from pipeline.agents.view_agent import VIEWS, Views
from pipeline.clock import ManualClock
from pipeline.kafka.producer import Keyed
from pipeline.processors.join.pod_facts import pod_row as row_of_pod
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.node_views import NodeViewRecord
from pipeline.topics.nodes import NodeRecord
from tests.processors.joined import known_pod


class Written:
    """What was appended, in place of Kafka."""

    def __init__(self) -> None:
        self.records: list[Keyed] = []

    async def append(self, _topic: str, _partition: int, records: list[Keyed]) -> None:
        self.records += records

    def take(self) -> list[Keyed]:
        taken, self.records = self.records, []
        return taken


class Agent:
    def __init__(self, *names: str) -> None:
        inventory = SimpleNamespace(
            written={name: encode_json(NodeRecord(node=name)) for name in names},
            departed=dict[str, None](),
            pods={},
        )
        shard: Any = SimpleNamespace(
            ownership=SimpleNamespace(owned=True, epoch=3, partition=0),
            join=SimpleNamespace(inventory=inventory),
            model=SimpleNamespace(take_reported=lambda: (), reports={}),
        )
        self.inventory, self.clock, self.output = inventory, ManualClock(0.0), Written()
        output: Any = self.output
        self.views = Views(shard, output, "views", self.clock)

    async def written(self) -> list[NodeViewRecord | None]:
        await self.views.write()
        return [
            None if one.value is None else decode_json(NodeViewRecord, one.value)
            for one in self.output.take()
        ]


def count(what: str) -> float:
    return VIEWS.labels(what)._value.get()


async def test_a_view_is_written_once_while_it_says_nothing_new() -> None:
    agent = Agent("n1")
    (first,) = await agent.written()
    assert first is not None
    agent.views.touch("x.nodes", b"n1")
    assert await agent.written() == []
    agent.inventory.written["n1"] = encode_json(NodeRecord(node="n1", uid="other"))
    agent.views.touch("x.nodes", b"n1")
    agent.inventory.written["n1"] = encode_json(
        NodeRecord(node="n1", annotations={"node.koordinator.sh/a": "b"})
    )
    (second,) = await agent.written()
    assert second is not None
    assert second.generation > first.generation


async def test_a_record_that_breaks_its_schema_costs_its_node_alone() -> None:
    agent = Agent("n1", "n2")
    agent.inventory.written["n1"] = b'{"version":1,"node":"n1","taints":[{"key":"a"}]}'
    before = count("unreadable")
    assert [view and view.node for view in await agent.written()] == ["n2"]
    assert count("unreadable") == before + 1


async def test_a_pod_that_makes_a_view_too_large_is_cut_and_the_node_keeps_its_view(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(view_agent, "MAX_RECORD_BYTES", 16_384 + 10_000)
    agent, before = Agent("n1"), (count("cut"), count("oversized"))
    small, large = (
        row_of_pod(known_pod(uid, annotations={f"{n}.koordinator.sh/x": "y" * 4000 for n in many}))
        for uid, many in (("a", "1"), ("b", "123"))
    )
    agent.inventory.pods["n1"] = {"a": small, "b": large}
    (view,) = await agent.written()
    assert view is not None
    agent.views.touch("x.pods", b"n1/b")
    assert await agent.written() == []
    assert [(pod.uid, pod.cut, len(pod.annotations)) for pod in view.pods] == [
        ("a", False, 1),
        ("b", True, 0),
    ]
    assert (count("cut"), count("oversized")) == (before[0] + 1, before[1])


async def test_a_view_that_is_too_large_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_agent, "MAX_RECORD_BYTES", 16_384)
    agent, before = Agent("n1"), count("oversized")
    for _ in range(3):
        agent.views.touch("x.nodes", b"n1")
        assert await agent.written() == []
    assert count("oversized") == before + 1


async def test_all_are_written_anew_from_time_to_time() -> None:
    """What a writer before us had under way may lie above what we wrote."""
    agent = Agent("n1", "n2")
    first = {view.node: view.generation for view in await agent.written() if view}
    await agent.clock.advance(599.0)
    agent.views._write_anew()
    assert await agent.written() == []
    await agent.clock.advance(1.0)
    agent.views._write_anew()
    again = {view.node: view.generation for view in await agent.written() if view}
    assert again.keys() == first.keys()
    assert min(again.values()) > max(first.values())


async def test_a_node_that_departed_gets_a_tombstone_once() -> None:
    agent = Agent("n1")
    await agent.written()
    del agent.inventory.written["n1"]
    agent.views.touch("x.nodes", b"n1")
    assert await agent.written() == [None]
    agent.views.touch("x.nodes", b"n1")
    assert await agent.written() == []
