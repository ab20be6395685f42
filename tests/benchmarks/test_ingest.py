"""The ingest benchmark counts what was done while its clock ran, and runs every stage by itself."""

import asyncio
import json
import os
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import ingest
from pipeline.settings import Settings
from pipeline.topics.admin import ConsumerGroup


class NodeStates:
    """A consumer to which node states say that so many windows of partitions are applied, those of
    one tuple at each look."""

    def __init__(self, *found: tuple[int, ...]) -> None:
        self._found = list(found)

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def assign(self, places: list[Any]) -> None:
        self._places = places

    async def getmany(self, timeout_ms: int) -> dict[Any, list[Any]]:
        return {
            place: [SimpleNamespace(value=json.dumps({"offset": applied - 1}).encode())]
            for place, applied in zip(self._places, self._found.pop(0), strict=True)
            if applied
        }


def drained(
    monkeypatch: pytest.MonkeyPatch,
    *found: tuple[int, ...],
    states: tuple[tuple[str, int], ...] = (),
) -> ingest.Drained:
    """What is counted where each look finds so much, and the group to be so; the members it should
    have are none, since no process of the test is a worker."""
    groups = iter([*states, ("Stable", 0)])

    async def find_group(*_: object) -> ConsumerGroup:
        state, members = next(groups)
        return ConsumerGroup(state, frozenset(map(str, range(members))))

    monkeypatch.setattr(ingest, "AIOKafkaConsumer", lambda **_: NodeStates(*found))
    monkeypatch.setattr(ingest, "find_group", find_group)
    whole = dict(enumerate([100] * len(found[0])))
    return asyncio.run(ingest.drained(Settings(), whole, [], os.getpid()))


def test_what_was_done_before_the_clock_started_is_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert drained(monkeypatch, (0,), (30,), (70,), (100,)).windows == 70


def test_the_clock_waits_for_the_group_and_for_all_partitions_and_ends_with_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = [(2, 0), (5, 5), (10, 10), (20, 10), (30, 20), (60, 50), (100, 70)]
    states = ("Stable", 1), ("PreparingRebalance", 0)
    assert drained(monkeypatch, *looks, states=states).windows == 170 - 50


def test_no_rate_is_given_where_a_partition_was_done_at_the_first_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(SystemExit, match="take more windows"):
        drained(monkeypatch, (0,), (100,))


def test_every_stage_has_its_time() -> None:
    """Of what they cost nothing is said: a clock may not even tick in so short a run."""
    spent = ingest.stages([value for _, value in ingest.samples(2, 3, 2, 1_800_000_000_000)])
    assert {name.partition(":")[0] for name in spent} == {"join", "model"}
    assert min(spent.values()) >= 0.0
