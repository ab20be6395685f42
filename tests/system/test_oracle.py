"""The oracle accepts results that follow from the log, and only those; without a broker."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from pipeline.settings import ModelSettings, Settings
from pipeline.topics.windows import decode_window, encode_window
from tests.agents.fakes import MemoryBroker
from tests.agents.hot_logs import hot_log
from tests.agents.logs import CONFIG, make_log
from tests.agents.owners import Owner
from tests.processors.joined import GIB, NODE_ROW, header, joined, pod_row
from tests.system.harness import Logs, Record
from tests.system.oracle import (
    Expected,
    applied_twice,
    differences,
    event_differences,
    impossible_results,
    undisturbed,
)

Result = dict[str, Any]

SETTINGS = Settings(
    model=ModelSettings(
        expiration_seconds=CONFIG.expiration_seconds,
        horizon_seconds=CONFIG.horizon_seconds,
        accuracy_interval_seconds=CONFIG.accuracy_interval_seconds,
    )
)
"""The settings of the owners of partitions."""


def record(offset: int, value: bytes | None) -> Record:
    return Record(0, offset, b"node-1", value, 0.0, {})


@pytest.fixture(scope="module")
def expected() -> Expected:
    """Return the results of a node with five windows in which its pod uses more and more."""
    windows = [
        joined(
            NODE_ROW,
            pod_row("a", cpu_cores_p90=0.5 + end, memory_bytes_p90=GIB),
            of=header(end=end),
        )
        for end in range(5)
    ]
    log = [record(10 + at, encode_window(window)) for at, window in enumerate(windows)]
    return undisturbed({0: log}, Settings())


def published(expected: Expected, kind: str) -> dict[int, Result]:
    """Return the results that a worker of epoch 7 publishes, by offset."""
    return {
        offset: msgspec.json.decode(results) | {"epoch": 7}
        for (of, _, offset), results in expected.results.items()
        if of == kind
    }


def logs(kind: str, *values: Result | None) -> Logs:
    records = [
        record(at, None if value is None else msgspec.json.encode(value))
        for at, value in enumerate(values)
    ]
    return {"predictions": {}, "node-state": {}} | {kind: {0: records}}


KINDS = pytest.mark.parametrize("kind", ["predictions", "node-state"])


@KINDS
def test_results_that_follow_from_their_window_are_accepted_repeatedly(
    expected: Expected, kind: str
) -> None:
    results = published(expected, kind)
    assert min(results) == 10
    again = (results[10] | {"epoch": 9}, None)
    assert impossible_results(logs(kind, *results.values(), *again), expected) == []


@KINDS
@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda one, _: one | {"predictor": "another"}, "predictor: another != percentile"),
        (lambda one, other: other | {"offset": one["offset"]}, "as_of: "),
        (lambda one, _: one | {"offset": 9}, ""),
        (lambda one, _: {name: one[name] for name in one if name != "simulated"},
         "simulated: None"),
        (lambda one, _: one | {"more": 1}, ""),
    ],
    ids=["changed", "of another window", "of no window", "less", "more"],
)  # fmt: skip
def test_an_impossible_result_is_detected_even_if_overwritten(
    expected: Expected, kind: str, wrong: Callable[[Result, Result], Result], why: str
) -> None:
    first, *_, last = published(expected, kind).values()
    false = wrong(first, last)
    (found,) = impossible_results(logs(kind, false, first, last), expected)
    assert f"{kind} of offset {false['offset']} never was so" in found
    assert why in found


def gathered(broker: MemoryBroker) -> Logs:
    """Return the topics of partition 0."""
    topics = ("windows", "predictions", "node-state", "alerts", "accuracy", "checkpoints")
    return {
        topic: {
            0: [
                Record(0, read.offset, read.key or b"", read.value, read.appended_ms / 1000, {})
                for read in broker.records(f"t.{topic}")
            ]
        }
        for topic in topics
    }


@pytest.mark.parametrize("ending", ["retract", "depart"])
async def test_an_end_of_a_node_that_a_paused_worker_appends_late_changes_nothing(
    ending: str,
) -> None:
    """The node was deleted and returned while the worker was paused and another took over."""
    broker, log = make_log(3, "a")
    paused = await Owner(broker, "paused").load()
    deleted_ms = decode_window(broker.records("t.windows")[-1].value or b"").appended_ms
    other = await Owner(broker, "other").load()
    log.windows(3, "a")
    await other.apply()
    await getattr(paused.shard.join, ending)("a", deleted_ms)
    assert decode_window(broker.records("t.windows")[-1].value or b"").type != "window"
    log.windows(9, "a")
    for _ in range(10):
        await other.apply(1)
    await other.round()
    logs = gathered(broker)
    expected = undisturbed(logs["windows"], SETTINGS)
    assert differences(logs, expected) == []
    assert applied_twice(logs, expected) == []


async def hot_logs() -> tuple[Logs, Expected]:
    """Topics of two nodes whose alerts open and close twice, and the results of one pass."""
    broker, _ = hot_log(2, "a", "b")
    owner = await Owner(broker, "worker").load()
    await owner.apply()
    await owner.round()
    logs = gathered(broker)
    return logs, undisturbed(logs["windows"], SETTINGS)


async def test_every_change_of_an_alert_is_accepted_repeatedly() -> None:
    logs, expected = await hot_logs()
    changes = logs["alerts"][0]
    assert {node: len(own) for node, own in expected.events["alerts"].items()} == {"a": 8, "b": 8}
    about_pool = msgspec.json.decode(changes[0].value or b"") | {"rule": "all_nodes_hot"}
    changes += [*changes[5:], record(99, msgspec.json.encode(about_pool))]
    assert differences(logs, expected) == []


def without_a_change(changes: list[Record]) -> None:
    del changes[3]


def without_any_change(changes: list[Record]) -> None:
    changes.clear()


def with_another_severity(changes: list[Record]) -> None:
    change = msgspec.json.decode(changes[0].value or b"") | {"severity": "critical"}
    changes.append(record(99, msgspec.json.encode(change)))


def out_of_order(changes: list[Record]) -> None:
    changes.reverse()


@pytest.mark.parametrize(
    ("seed_mistake", "says"),
    [
        (without_a_change, "b: 1 of 8 changes of alerts missing"),
        (without_any_change, "b: all 8 changes of alerts missing"),
        (with_another_severity, "a: 1 changes of alerts that never were so"),
        (out_of_order, "changes of alerts are out of order"),
    ],
)
async def test_a_wrong_log_of_alerts_is_detected(
    seed_mistake: Callable[[list[Record]], None], says: str
) -> None:
    logs, expected = await hot_logs()
    seed_mistake(logs["alerts"][0])
    found = event_differences(logs, expected)
    assert any(says in problem for problem in found), found


async def test_every_judged_peak_is_accepted_repeatedly_and_a_missing_one_detected() -> None:
    broker, _ = make_log(20, "a", "b")
    owner = await Owner(broker, "worker").load()
    await owner.apply()
    await owner.round()
    logs = gathered(broker)
    expected = undisturbed(logs["windows"], SETTINGS)
    judged = logs["accuracy"][0]
    assert {node: len(own) for node, own in expected.events["accuracy"].items()} == {"a": 3, "b": 3}
    judged += judged[1:]
    assert differences(logs, expected) == []
    logs["accuracy"][0] = [each for each in judged if each.key != b"b"]
    assert any(
        "b: all 3 judged peaks missing" in problem for problem in event_differences(logs, expected)
    )
