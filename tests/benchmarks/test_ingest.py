"""The ingest benchmark counts what was done while its clock ran, and runs every stage by itself."""

import asyncio
import json
import os
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import ingest
from pipeline.settings import Settings


class NodeStates:
    """A consumer to which node states say that so many windows are applied, one at each look."""

    def __init__(self, *found: int) -> None:
        self._found = list(found)

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def assign(self, places: list[Any]) -> None:
        self._place = places[0]

    async def getmany(self, timeout_ms: int) -> dict[Any, list[Any]]:
        applied = self._found.pop(0)
        state = SimpleNamespace(value=json.dumps({"offset": applied - 1}).encode())
        return {self._place: [state]} if applied else {}


def drained(monkeypatch: pytest.MonkeyPatch, *found: int) -> ingest.Drained:
    monkeypatch.setattr(ingest, "AIOKafkaConsumer", lambda **_: NodeStates(*found))
    return asyncio.run(ingest.drained(Settings(), found[-1], [], os.getpid()))


def test_what_was_there_before_the_clock_started_is_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert drained(monkeypatch, 0, 30, 70, 100).windows == 70


def test_no_rate_is_given_where_all_was_there_at_the_first_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(SystemExit, match="take more windows"):
        drained(monkeypatch, 0, 100)


def test_every_stage_has_its_time() -> None:
    """Of what they cost nothing is said: a clock may not even tick in so short a run."""
    spent = ingest.stages([value for _, value in ingest.samples(2, 3, 2, 1_800_000_000_000)])
    assert {name.partition(":")[0] for name in spent} == {"join", "model"}
    assert min(spent.values()) >= 0.0
