"""The last good view stays, and its age is known."""

import asyncio

import pytest

from actuators.node.newest_view import NewestView
from pipeline.clock import ManualClock
from pipeline.metrics import REGISTRY
from tests.actuators.node.views import NODE, view


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def newest(clock: ManualClock) -> NewestView:
    return NewestView(NODE, clock, asyncio.Event())


def generation(newest: NewestView) -> int | None:
    return None if newest.record is None else newest.record.generation


def refused() -> float:
    samples = (s for metric in REGISTRY.collect() for s in metric.samples)
    name = "springtide_refused_records_total"
    return sum(s.value for s in samples if s.name == name and s.labels["source"] == "node-views")


def test_only_a_newer_view_is_taken(newest: NewestView) -> None:
    assert [newest.receive(view(g)) for g in (5, 5, 4, 6, -1)] == [True, False, False, True, False]
    assert generation(newest) == 6


@pytest.mark.parametrize(
    "value",
    [b"", b"{", b"\xff", b"null", b"[" * 100_000, view(9, node="n2"), view(9)[:-20],
     view(9).replace(b'"version":1', b'"version":2'), view(9).replace(b"9", b'"9"'),
     view(9).replace(b'"pods":[]', b'"pods":[{"uid":1}]')],
)  # fmt: skip
def test_an_invalid_view_is_counted_and_changes_nothing(newest: NewestView, value: bytes) -> None:
    newest.receive(view(5))
    before = refused()
    assert not newest.receive(value)
    assert (generation(newest), refused() - before) == (5, 1)


async def test_the_age_is_the_time_since_the_source_confirmed_the_view(
    newest: NewestView, clock: ManualClock
) -> None:
    newest.confirm(clock.monotonic())
    assert newest.age_seconds() is None  # there is no view
    newest.receive(view(5))
    newest.confirm(clock.monotonic())
    await clock.advance(40)
    clock.jump(-3600)
    assert newest.age_seconds() == 40
    newest.receive(view(4))
    assert newest.age_seconds() == 40


def test_after_the_source_was_recreated_one_older_view_is_taken(newest: NewestView) -> None:
    newest.receive(view(5))
    newest.restart()
    assert not newest.receive(view(9, node="n2"))
    assert [newest.receive(view(g)) for g in (2, 1, 2, 3)] == [True, False, False, True]
