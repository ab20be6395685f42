"""The last actions about each node, from records in any order and with repeats."""

import tracemalloc
from typing import Any

import msgspec
import pytest

from pipeline.errors import RecordError
from pipeline.processors.console import node_actions
from pipeline.processors.console.node_actions import ACTIONS_OF_A_NODE, NodeActions
from pipeline.topics.actions import ActionRecord
from pipeline.topics.codec import encode_json
from tests.table.records import NOW


def action(node: str = "a", **more: Any) -> bytes:
    usual: dict[str, Any] = {
        "at": "2023-11-14T22:13:00Z", "actuator": "node-actuator", "action": "cpu_suppress",
        "outcome": "done", "why": "usage of Prod is high",
    }  # fmt: skip
    return encode_json(ActionRecord(node=node, **(usual | more)))


def test_actions_of_a_node_are_answered_newest_first_and_once() -> None:
    actions = NodeActions()
    places = {"besteffort cpu.max": "max", "gone": "5"}
    newer = action(before=places, after={"besteffort cpu.max": "200000"})
    assert actions.take(b"a", newer, NOW - 5, NOW)
    assert actions.take(b"a", action(actuator="evictor", plan="p1"), NOW - 9, NOW)
    assert not actions.take(b"a", newer, NOW - 5, NOW)
    assert not actions.take(b"a", action(actuator="cluster", why='"evictor"'), NOW, NOW)
    assert not actions.take(b"a", None, NOW, NOW)
    first, second = actions.of("a")
    assert (first.actuator, first.at_seconds, second.plan) == ("node-actuator", NOW - 5, "p1")
    assert [(of.name, of.before, of.after) for of in first.changes] == [
        ("besteffort cpu.max", "max", "200000"), ("gone", "5", None),
    ]  # fmt: skip
    assert (actions.of("b"), len(actions)) == ([], 2)


def test_a_broker_whose_clock_is_ahead_dates_nothing_in_the_future() -> None:
    actions = NodeActions()
    actions.take(b"a", action(), NOW + 900, NOW)
    assert actions.of("a")[0].at_seconds == NOW


def test_the_marks_of_the_log_by_the_evictor_are_of_no_node() -> None:
    actions = NodeActions()
    assert not actions.take(b"", action("", actuator="evictor", action="mark the log"), NOW, NOW)
    assert len(actions) == 0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"b", action()),
        (None, action()),
        (b"A B", action("A B")),
        (b"a", b'{"actuator": "evictor"}'),
        (b"a", action(action="x" * 513)),
    ],
)
def test_invalid_records_are_refused(key: bytes | None, value: bytes) -> None:
    actions = NodeActions()
    with pytest.raises(RecordError):
        actions.take(key, value, NOW, NOW)
    assert len(actions) == 0


def test_texts_and_numbers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_actions, "MOST_BYTES", 200_000)
    actions = NodeActions()
    places = {f"{i}" * 500: "v" * 5000 for i in range(20)}
    long: dict[str, Any] = {"why": "w" * 5000, "error": "e" * 5000, "before": places}
    for i in range(ACTIONS_OF_A_NODE + 5):
        actions.take(b"a", action(**long), NOW + i, NOW + i)
    kept = actions.of("a")
    assert [of.at_seconds - NOW for of in kept] == [*range(ACTIONS_OF_A_NODE + 4, 4, -1)]
    assert (len(kept[0].why), len(kept[0].error), len(kept[0].changes)) == (301, 301, 8)
    assert kept[0].more_changes == 12
    assert len(msgspec.json.encode(kept[0])) < 4000
    for i in range(80):
        actions.take(b"n%d" % i, action(f"n{i}"), NOW, NOW)
    # The node whose last action came first makes room.
    assert (len(actions), actions.of("a")) == (80, [])


@pytest.mark.parametrize("letter", ["x", "\U0001f600"])
@pytest.mark.parametrize("length", [1, 2000])
def test_memory_is_at_most_what_is_counted(letter: str, length: int) -> None:
    text, actions = letter * length, NodeActions()
    names = [f"{letter * min(length, 100)}{i}" for i in range(20)]
    records = [
        action(
            f"n{i}", why=f"{text}{i}", error=text, plan=text[:512], action=text[:512],
            before=dict.fromkeys(names, text), after=dict.fromkeys(names, text),
        )
        for i in range(100)
    ]  # fmt: skip
    tracemalloc.start()
    try:
        for i, record in enumerate(records):
            actions.take(f"n{i}".encode(), record, NOW, NOW)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(actions) == 100
    assert 0.5 * actions.nbytes < used < actions.nbytes


def test_an_action_that_is_read_again_is_known_whatever_the_clock() -> None:
    actions = NodeActions()
    assert actions.take(b"a", action(), NOW + 5, NOW)
    assert not actions.take(b"a", action(), NOW + 5, NOW + 900)
    assert actions.take(b"a", action(), NOW + 6, NOW + 900)
    assert [of.at_seconds - NOW for of in actions.of("a")] == [6, 0]
