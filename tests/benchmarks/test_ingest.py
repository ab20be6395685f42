"""The ingest benchmark counts what was done while its clock ran, and runs every stage by itself."""

import asyncio
import json
import os
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import ingest
from pipeline.kafka.topic_admin import ConsumerGroup
from pipeline.settings import Settings

Look = tuple[tuple[int, int], ...]
"""Of each partition, how many windows are joined and how many are applied."""


class Logs:
    """A consumer to which each look shows the next of `looks`."""

    def __init__(self, looks: Sequence[Look]) -> None:
        self._looks = iter(looks)
        self._now: Look = ()

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def assign(self, places: list[Any]) -> None:
        self._places = places

    async def getmany(self, timeout_ms: int) -> dict[Any, list[Any]]:
        self._now = next(self._looks)
        return {
            place: [SimpleNamespace(value=json.dumps({"offset": applied - 1}).encode())]
            for place, (_, applied) in zip(self._places, self._now, strict=True)
            if applied
        }

    async def end_offsets(self, places: list[Any]) -> dict[Any, int]:
        return {place: at for place, (at, _) in zip(places, self._now, strict=True)}


def drained(
    monkeypatch: pytest.MonkeyPatch, *looks: Look, states: tuple[tuple[str, int], ...] = ()
) -> ingest.Drained:
    """What is counted of partitions of 100 samples, where the group is so at the first looks and
    balanced afterwards; the members it should have are none, since no process here is a worker."""
    groups = iter([*states, ("Stable", 0)])

    async def find_group(*_: object) -> ConsumerGroup:
        state, members = next(groups)
        return ConsumerGroup(state, frozenset(map(str, range(members))))

    monkeypatch.setattr(ingest, "AIOKafkaConsumer", lambda **_: Logs(looks))
    monkeypatch.setattr(ingest, "find_group", find_group)
    whole = dict.fromkeys(range(len(looks[0])), 100)
    return asyncio.run(ingest.drained(Settings(), whole, [], os.getpid()))


def test_what_was_applied_before_the_clock_started_is_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert drained(monkeypatch, ((0, 0),), ((40, 30),), ((70, 60),), ((100, 90),)).windows == 60


def test_the_clock_waits_until_the_group_is_balanced(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = [((n, n),) for n in (2, 10, 20, 30, 60, 100)]
    states = ("Stable", 1), ("PreparingRebalance", 0)
    assert drained(monkeypatch, *looks, states=states).windows == 100 - 30


def test_the_clock_starts_when_all_partitions_are_joined_and_applied_and_ends_with_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = (
        ((20, 10), (10, 10)),  # balanced
        ((30, 10), (10, 20)),  # what was loaded is applied, nothing is joined
        ((30, 20), (20, 20)),  # all have moved: from here
        ((60, 50), (60, 30)),
        ((60, 40), (70, 50)),  # an older state after a newer one
        ((90, 80), (100, 90)),  # to here
    )
    assert drained(monkeypatch, *looks).windows == 170 - 40


def test_no_rate_is_given_where_a_partition_was_done_at_the_first_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(SystemExit, match="take more windows"):
        drained(monkeypatch, ((0, 0),), ((100, 100),))


def test_every_stage_has_its_time() -> None:
    """Of what they cost nothing is said: a clock may not even tick in so short a run."""
    spent = ingest.stages([value for _, value in ingest.samples(2, 3, 2, 1_800_000_000_000)])
    assert {name.partition(":")[0] for name in spent} == {"join", "model"}
    assert min(spent.values()) >= 0.0
