"""Outages: of usage, after which requests alone limit nodes, and of the watcher."""

import asyncio
import logging
import math
from collections import Counter
from typing import Any

import pytest

from pipeline.clock import ManualClock
from pipeline.errors import RecordError
from pipeline.extender.decisions import BEST_FIT, Decisions, Rules
from pipeline.extender.outage_reports import log_outages
from pipeline.processors.placement.enabled_plugins import read_config
from pipeline.sources.compacted_writer import heartbeat_entry
from pipeline.table import FeedState, Table
from pipeline.table.apply_records import apply
from pipeline.table.data_outages import DataOutages
from pipeline.table.node_columns import TableNode
from pipeline.table.table_metrics import TableMetrics
from pipeline.tasks import cancel_tasks
from pipeline.topics.pods import PodRecord
from pipeline.topics.registry import HEARTBEATS
from pipeline.topics.resource_amounts import Resources
from tests.extender.conftest import Start, extender
from tests.table.records import NOW, ROOM, any_pod, node_state, running

NAMES = ["a", "b", "c", "d"]
KOORDINATOR: dict[str, Any] = {
    "plugins": {"multiPoint": {"enabled": [{"name": "LoadAwareScheduling"}]}}
}
RULES = Rules(read_config(KOORDINATOR))
"""With Koordinator's arguments, which refuse a node that does not report."""


def pod(uid: str = "new", cpu: int = 500) -> PodRecord:
    return any_pod(uid, requests=Resources(cpu_millicores=cpu, memory_bytes=1 << 30))


def fleet(**ages: float) -> Table:
    """Nodes with last windows of these ages; others have fresh ones."""
    table = Table(counting=RULES.counting)
    for name in NAMES:
        table.put_node(TableNode(node=name, allocatable=ROOM))
        table.put_state(node_state(name, age=ages.get(name, 10.0)))
    return table


def refused(table: Table, now: float = NOW) -> list[str]:
    return Decisions(table, RULES).filter(pod(), NAMES, now).refused


def test_a_silent_node_is_refused_and_an_outage_refuses_none() -> None:
    assert refused(fleet(a=180.0)) == ["a"]
    assert refused(fleet(a=180.0, b=190.0)) == ["a", "b"]
    assert refused(fleet(a=180.0, b=190.0, c=210.0)) == []
    assert refused(fleet(), NOW + 600) == []


def test_hot_nodes_stay_refused_until_their_usage_is_too_old() -> None:
    table = fleet(b=180.0, c=190.0, d=210.0)
    table.put_state(node_state("a", cpu=3.9, offset=1))
    assert refused(table) == ["a"]
    assert refused(table, NOW + 200) == []


def test_node_that_was_silent_before_the_outage_stays_refused() -> None:
    assert refused(fleet(a=4000.0), NOW + 300) == ["a"]


def test_an_outage_ends_when_three_quarters_of_the_nodes_report_again() -> None:
    table = fleet()
    decisions, now = Decisions(table, RULES), NOW + 600
    for reporting, silent in enumerate(([], [], [], ["d"], [])):
        assert decisions.filter(pod(), NAMES, now).refused == silent, reporting
        assert (decisions.outages.usage(now) is None) == (reporting >= 3)
        if reporting < 4:
            table.put_state(node_state(NAMES[reporting], age=-600.0, offset=1))


def test_nodes_that_were_silent_before_an_outage_are_refused_in_and_after_it() -> None:
    table = fleet(a=86_400.0, b=86_400.0)
    decisions = Decisions(table, RULES)

    def refused_at(now: float) -> list[str]:
        return decisions.filter(pod(), NAMES, now).refused

    assert refused_at(NOW) == ["a", "b"]
    assert refused_at(NOW + 200) == ["a", "b"]
    assert decisions.outages.usage(NOW + 200) is not None
    for name in NAMES[2:]:
        table.put_state(node_state(name, age=-300.0, offset=1))
    assert refused_at(NOW + 310) == ["a", "b"]
    assert decisions.outages.usage(NOW + 310) is None


def test_nodes_without_a_node_record_make_no_outage() -> None:
    table = fleet(a=180.0)
    for index in range(5):
        table.put_state(node_state(f"foreign-{index}", age=180.0))
    assert refused(table) == ["a"]


def test_in_an_outage_pods_are_packed_by_requests_with_those_on_their_way() -> None:
    table = fleet()
    for name, cpu in (("b", 2000), ("c", 3800)):
        table.put_pod(running(pod(f"on-{name}", cpu), name))
    decisions, now, placed = Decisions(table, RULES), NOW + 600, []
    for index in range(6):
        each = pod(f"p{index}")
        assert decisions.filter(each, NAMES, now).refused == []
        result = decisions.prioritize(each, NAMES, now)
        assert result.plugins.keys() == {BEST_FIT}
        placed.append(NAMES[result.best or 0])
        decisions.place(each, placed[-1], now)
    # `c` has no room; `b` fills up; then the next one fills up.
    assert placed == ["b"] * 4 + ["a"] * 2


def test_in_an_outage_pods_without_requests_do_not_pile_up() -> None:
    table = fleet()
    decisions, now, placed = Decisions(table, RULES), NOW + 600, Counter[str]()
    for index in range(40):
        each = any_pod(f"p{index}", limits=Resources(cpu_millicores=500 * (index % 2)))
        node = NAMES[decisions.prioritize(each, NAMES, now).best or 0]
        placed[node] += 1
        decisions.place(each, node, now)
    # 250 and 425 millicores each, of 4000.
    assert max(placed.values()) <= 13


def beat(table: Table, at: float) -> None:
    entry = heartbeat_entry("cluster", at)
    apply(table, HEARTBEATS, entry.key, entry.value)


@pytest.mark.parametrize(
    ("age", "late"),
    [
        (None, None),
        (30.0, None),
        (-50.0, None),
        (31.0, 31.0),
        (9e5, 9e5),
        (-60.0, None),
        (-61.0, -61.0),
        (-9e8, -9e8),
    ],
)
def test_the_watcher_is_dead_without_a_heartbeat_for_30_seconds(
    age: float | None, late: float | None
) -> None:
    table = fleet()
    if age is not None:
        beat(table, NOW - age)
    assert Decisions(table, RULES).outages.watcher(NOW) == late


async def test_readyz_names_outages_if_asked_for_details(start: Start) -> None:
    table = fleet(a=400.0, b=400.0, c=400.0)
    beat(table, NOW - 90)
    client = await start(extender(table, clock=ManualClock(NOW), rules=RULES))
    assert (await (await client.get("/readyz")).json())["checks"] == []
    response = await client.get("/readyz?verbose")
    checks = {check["name"]: check for check in (await response.json())["checks"]}
    assert response.status == 200, "an extender in an outage still decides"
    assert {name: check["ok"] for name, check in checks.items()} == {
        "table": True, "broker": True, "usage": False, "watcher": False,
    }  # fmt: skip
    assert checks["usage"]["text"] == "3 of 4 nodes lost their usage together"
    assert checks["watcher"]["text"] == "the last heartbeat is 90 s old"


@pytest.mark.parametrize("source", ["", "x", "Cluster"])
def test_only_the_watcher_sends_heartbeats(source: str) -> None:
    table = fleet()
    beat(table, NOW - 90)
    value = heartbeat_entry("cluster", NOW).value
    assert value is not None
    with pytest.raises(RecordError):
        apply(table, HEARTBEATS, source.encode(), value.replace(b"cluster", source.encode()))
    assert Decisions(table, RULES).outages.watcher(NOW) == 90.0


async def test_readyz_tells_a_heartbeat_from_the_future(start: Start) -> None:
    """A dead watcher may have written it, so it shows no life."""
    table = fleet()
    beat(table, NOW + 9000)
    client = await start(extender(table, clock=ManualClock(NOW), rules=RULES))
    (*_, watcher) = (await (await client.get("/readyz?verbose")).json())["checks"]
    text = "the last heartbeat is 9000 s in the future: compare the clocks"
    assert (watcher["ok"], watcher["text"]) == (False, text)


async def test_readyz_has_no_failed_check_on_a_good_day(start: Start) -> None:
    table = fleet()
    beat(table, NOW)
    client = await start(extender(table, clock=ManualClock(NOW), rules=RULES))
    checks = (await (await client.get("/readyz?verbose")).json())["checks"]
    assert all(check["ok"] for check in checks)
    assert checks[-1]["text"] == "alive"
    client = await start(extender(fleet(), clock=ManualClock(NOW), rules=RULES))
    (*_, watcher) = (await (await client.get("/readyz?verbose")).json())["checks"]
    assert watcher["ok"]
    assert watcher["text"] == "no heartbeats: another source writes the nodes"


def gauge(table: Table, name: str) -> float:
    page = TableMetrics(table, FeedState(), ManualClock(NOW), 180.0, DataOutages(table, 180.0))
    (metric,) = [each for each in page.collect() if each.name == f"springtide_table_{name}"]
    return float(metric.samples[0].value)


def test_outages_are_on_the_metrics_page() -> None:
    table = fleet()
    assert gauge(table, "usage_outage_nodes") == 0.0
    assert math.isnan(gauge(table, "heartbeat_age_seconds"))
    beat(table, NOW - 90)
    assert gauge(table, "heartbeat_age_seconds") == 90.0
    assert gauge(fleet(a=400.0, b=400.0, c=410.0), "usage_outage_nodes") == 3.0


async def test_the_log_names_begin_and_end_of_each_outage_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    table, clock = fleet(), ManualClock(NOW)
    beat(table, NOW)
    task = asyncio.create_task(log_outages(DataOutages(table, 180.0), clock))
    for _ in range(400):
        await clock.advance(1.0)
    for name in NAMES:
        table.put_state(node_state(name, age=-400.0, offset=1))
    beat(table, NOW + 400)
    await clock.advance(1.0)
    await clock.advance(1.0)
    await cancel_tasks(task)
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "watcher is dead", "outage of usage", "outage of usage has ended", "watcher is back",
    ]  # fmt: skip
