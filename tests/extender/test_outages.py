"""Outages: of usage, after which requests alone limit nodes, and of the watcher."""

import asyncio
import logging
import math
from collections import Counter
from typing import Any

import pytest

from pipeline.clock import ManualClock
from pipeline.errors import RecordError
from pipeline.extender.decisions import Decisions, Rules
from pipeline.extender.outage_reports import checks, log_outages
from pipeline.extender.plugin_scores import BEST_FIT
from pipeline.processors.placement.enabled_plugins import read_config
from pipeline.sources.compacted_writer import heartbeat_entry
from pipeline.table import FeedState, Table
from pipeline.table.apply_records import apply
from pipeline.table.data_outages import DataOutages
from pipeline.table.node_columns import TableNode
from pipeline.table.table_metrics import TableMetrics
from pipeline.tasks import cancel_tasks
from pipeline.topics.codec import encode_json
from pipeline.topics.heartbeats import WatcherTrouble
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.pods import PodRecord
from pipeline.topics.registry import HEARTBEATS, NODES
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


def fleet(*, is_watched: bool = True, **ages: float) -> Table:
    """Nodes with last windows of these ages; others have fresh ones. Their records are those of the
    watcher, or of another source."""
    table = Table(counting=RULES.counting)
    for name in NAMES:
        table.put_node(TableNode(node=name, allocatable=ROOM, is_watched=is_watched))
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


def test_a_rack_that_dies_for_good_in_an_outage_is_refused_after_it() -> None:
    """Fresh nodes are judged by their usage all the time."""
    names = [f"n{index}" for index in range(10)]
    table, dead = Table(counting=RULES.counting), names[:3]
    for name in names:
        table.put_state(node_state(name))
    decisions = Decisions(table, RULES)

    def refused_at(seconds: float, hot: str) -> list[str]:
        for name in names[3:]:
            state = node_state(
                name, cpu=3.9 if name == hot else 1.0, age=10 - seconds, offset=int(seconds)
            )
            table.put_state(state)
        return decisions.filter(pod(), names, NOW + seconds).refused

    assert decisions.filter(pod(), names, NOW + 600).refused == []
    for seconds in range(610, 610 + 1800, 60):
        assert refused_at(seconds, "n7") == ["n7"]
    assert refused_at(610 + 1800, "n8") == [*dead, "n8"]
    assert decisions.outages.usage(NOW + 610 + 1800) is None


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


def beat(table: Table, at: float | None) -> None:
    entry = heartbeat_entry(at)
    apply(table, HEARTBEATS, entry.key, entry.value)


@pytest.mark.parametrize("ahead", [0.0, -3600.0, 9000.0, -1e9])
def test_the_watcher_is_dead_without_a_heartbeat_for_30_seconds(ahead: float) -> None:
    """Its clock, which may be wrong, shows nothing."""
    table = fleet()
    outages = DataOutages(table, 180.0)
    for seconds in range(0, 300, 5):
        beat(table, NOW + ahead + seconds)
        assert outages.watcher(NOW + seconds) is None
    assert outages.watcher(NOW + 295 + 30) is None
    assert outages.watcher(NOW + 295 + 31) == WatcherTrouble(True, 31.0)
    beat(table, NOW + ahead + 400)
    assert outages.watcher(NOW + 400) is None


def test_a_watcher_that_sends_no_heartbeats_is_reported_unless_another_source_took_over() -> None:
    """It may be older than this extender, or a tombstone may have hidden the last one."""
    for is_watched in (True, False):
        outages = DataOutages(fleet(is_watched=is_watched), 180.0)
        assert outages.watcher(NOW) is None
        assert (outages.watcher(NOW + 31) is not None) == is_watched
    table = fleet(is_watched=False)
    beat(table, NOW)
    outages = DataOutages(table, 180.0)
    assert outages.watcher(NOW) is None
    assert outages.watcher(NOW + 90) is None, "the last heartbeat of a watcher that was replaced"


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (FeedState(), "has not answered yet"),
        (FeedState(connected=True, contact=NOW), "answers"),
        (FeedState(contact=NOW - 60), "does not answer"),
    ],
)
def test_a_broker_is_silent_only_after_it_has_answered(state: FeedState, text: str) -> None:
    of_name = {check.name: check for check in checks(DataOutages(fleet(), 180.0), state, NOW)}
    assert (of_name["broker"].ok, of_name["broker"].text) == (state.connected, text)


def test_a_tombstone_does_not_hide_a_dead_watcher() -> None:
    table = fleet()
    outages = DataOutages(table, 180.0)
    beat(table, NOW)
    assert outages.watcher(NOW) is None
    apply(table, HEARTBEATS, b"cluster", None)
    assert outages.watcher(NOW + 31) == WatcherTrouble(True, 31.0)


def test_reading_the_topics_again_revives_no_watcher() -> None:
    table = fleet()
    outages = DataOutages(table, 180.0)
    beat(table, NOW)
    assert outages.watcher(NOW) is None
    for at, expected in ((NOW, WatcherTrouble(True, 41.0)), (NOW + 35, None)):
        again = fleet()
        beat(again, at)
        again.bring_up_to_date(NOW + 40)
        table.adopt(again)
        assert outages.watcher(NOW + 41) == expected


def test_a_watcher_that_lists_again_is_behind_and_not_dead() -> None:
    table = fleet()
    outages = DataOutages(table, 180.0)
    beat(table, NOW)
    for seconds in range(0, 95, 5):
        beat(table, NOW)
        expected = None if seconds <= 30 else WatcherTrouble(False, float(seconds))
        assert outages.watcher(NOW + seconds) == expected
    beat(table, NOW + 95)
    assert outages.watcher(NOW + 95) is None


def test_records_of_nodes_tell_whether_the_watcher_wrote_them() -> None:
    table, record = Table(), encode_json(NodeRecord(node="a"))
    apply(table, NODES, b"a", record, [("source", b"cluster")])
    assert table.is_watched
    apply(table, NODES, b"a", record, [("source", b"file")])
    assert not table.is_watched
    apply(table, NODES, b"a", record.replace(b"{", b'{"is_watched":true,', 1))
    assert not table.is_watched


async def test_readyz_names_outages_if_asked_for_details(start: Start) -> None:
    table, clock = fleet(a=400.0, b=400.0, c=400.0), ManualClock(NOW)
    beat(table, NOW)
    client = await start(extender(table, clock=clock, rules=RULES))
    await client.get("/readyz?verbose")
    await clock.advance(90.0)
    table.put_state(node_state("d", age=-90.0, offset=1))
    assert (await (await client.get("/readyz")).json())["checks"] == []
    response = await client.get("/readyz?verbose")
    checks = {check["name"]: check for check in (await response.json())["checks"]}
    assert response.status == 200, "an extender in an outage still decides"
    assert {name: check["ok"] for name, check in checks.items()} == {
        "table": True, "broker": True, "usage": False, "watcher": False,
    }  # fmt: skip
    assert checks["usage"]["text"] == "3 of 4 nodes lost their usage together"
    assert checks["watcher"]["text"] == "no heartbeat for 90 s"


async def test_an_outage_is_still_reported_after_30_days(start: Start) -> None:
    month = 30 * 86_400.0
    table, clock = fleet(), ManualClock(NOW)
    client = await start(extender(table, clock=clock, rules=RULES))
    for seconds in (600.0, month):
        await clock.advance(seconds)
        checks = (await (await client.get("/readyz?verbose")).json())["checks"]
        usage = {check["name"]: check for check in checks}["usage"]
        assert (usage["ok"], usage["text"]) == (False, "4 of 4 nodes lost their usage together")
    outages = DataOutages(table, 180.0)
    for seconds in (600.0, month):
        assert gauge(table, "usage_outage_nodes", NOW + seconds, outages) == 4.0


@pytest.mark.parametrize("source", ["", "x", "Cluster"])
def test_only_the_watcher_sends_heartbeats(source: str) -> None:
    table = fleet()
    outages = DataOutages(table, 180.0)
    beat(table, NOW)
    assert outages.watcher(NOW) is None
    value = heartbeat_entry(NOW + 90).value
    assert value is not None
    with pytest.raises(RecordError):
        apply(table, HEARTBEATS, source.encode(), value.replace(b"cluster", source.encode()))
    assert outages.watcher(NOW + 90) == WatcherTrouble(True, 90.0)


async def test_readyz_tells_a_watcher_that_is_behind_and_a_missing_topic(start: Start) -> None:
    table, clock = fleet(), ManualClock(NOW)
    beat(table, None)
    client = await start(extender(table, clock=clock, rules=RULES))
    await client.get("/readyz?verbose")
    await clock.advance(40.0)
    beat(table, None)
    (*_, watcher) = (await (await client.get("/readyz?verbose")).json())["checks"]
    text = "alive, but it has listed Nodes and Pods for 40 s"
    assert (watcher["ok"], watcher["text"]) == (False, text)
    client = await start(extender(fleet(), missing=("springtide.heartbeats",), rules=RULES))
    response = await client.get("/readyz?verbose")
    assert response.status == 200, "no decision needs them"
    (*_, watcher) = (await response.json())["checks"]
    text = "unknown: springtide.heartbeats is missing: run `springtide topics apply`"
    assert (watcher["ok"], watcher["text"]) == (False, text)


async def test_readyz_has_no_failed_check_on_a_good_day(start: Start) -> None:
    table = fleet()
    beat(table, NOW)
    client = await start(extender(table, clock=ManualClock(NOW), rules=RULES))
    checks = (await (await client.get("/readyz?verbose")).json())["checks"]
    assert all(check["ok"] for check in checks)
    assert checks[-1]["text"] == "alive"
    table = fleet(is_watched=False)
    client = await start(extender(table, clock=ManualClock(NOW), rules=RULES))
    (*_, watcher) = (await (await client.get("/readyz?verbose")).json())["checks"]
    assert watcher["ok"]
    assert watcher["text"] == "none: another source writes the nodes"


def gauge(table: Table, name: str, now: float = NOW, outages: DataOutages | None = None) -> float:
    outages = outages or DataOutages(table, 180.0)
    page = TableMetrics(table, FeedState(), ManualClock(now), 180.0, outages)
    (metric,) = [each for each in page.collect() if each.name == f"springtide_table_{name}"]
    return float(metric.samples[0].value)


def test_outages_are_on_the_metrics_page() -> None:
    assert math.isnan(gauge(fleet(is_watched=False), "heartbeat_age_seconds"))
    table = fleet()
    assert gauge(table, "usage_outage_nodes") == 0.0
    beat(table, NOW - 50)
    assert gauge(table, "heartbeat_age_seconds") == 0.0
    beat(table, NOW - 50)
    assert gauge(table, "heartbeat_age_seconds", NOW + 90) == 0.0
    assert gauge(table, "incomplete_seconds", NOW + 90) == 90.0
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
