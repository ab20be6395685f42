"""`springtide alerts`: open alerts from node states, past changes from the topic."""

import json
from collections.abc import Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from pipeline.cli import alerts
from pipeline.cli.main import cli
from pipeline.processors.descheduling.relief_alerts import Hopeless, ReliefAlerts, Subject
from pipeline.table import Table
from pipeline.table.node_columns import TableNode
from pipeline.times import format_time
from pipeline.topics.alerts import AlertRecord, Evidence, LevelChange, OpenAlert
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.hot_node_policy import HotNodePolicy
from tests.cli.fake_topic import fake_topic
from tests.table.records import NOW, node_state, table_of


def opened(rule: Any, severity: Any, ago: float) -> OpenAlert:
    return OpenAlert(
        rule=rule, severity=severity, since=format_time(NOW - ago), usage_percent=91.4,
        threshold_percent=70.0,
    )  # fmt: skip


def hot_table() -> Table:
    return table_of(
        node_state("calm", cpu=0.4),
        node_state("busy", alerts=(opened("node_cpu", "warning", 60.0),
                                   opened("prod_memory", "critical", 600.0))),
        node_state("old", age=400.0, alerts=(opened("node_cpu", "warning", 9000.0),)),
    )  # fmt: skip


CLOCK = SimpleNamespace(now=lambda: NOW, monotonic=lambda: 5.0)


def run(
    monkeypatch: pytest.MonkeyPatch, table: Table, *arguments: str, records: Sequence[bytes] = ()
) -> Result:
    """Run the command over a table, and these records of the topic of alerts."""

    @asynccontextmanager
    async def read_relief(_: Any, relief: ReliefAlerts, *__: Any, **___: Any) -> Any:
        for record in records:
            relief.take(decode_json(AlertRecord, record), 0.0)
        yield

    @asynccontextmanager
    async def read(*_: Any, **__: Any) -> Any:
        yield SimpleNamespace(table=table, state=SimpleNamespace(connected=True, message=""))

    monkeypatch.setattr(alerts, "read_table", read)
    monkeypatch.setattr(alerts, "read_relief_alerts", read_relief)
    monkeypatch.setattr(alerts, "SystemClock", lambda: CLOCK)
    return CliRunner().invoke(cli, ["alerts", *arguments])


def test_open_alerts_are_listed_critical_first(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, hot_table())
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0] == ["NODE", "RULE", "SEVERITY", "OPEN", "USAGE", "THRESHOLD", "AGE"]
    assert [line[:6] for line in lines[1:]] == [
        ["busy", "prod_memory", "critical", "10m", "91%", "85%"],
        ["old", "node_cpu", "warning", "2h", "91%", "70%"],
        ["busy", "node_cpu", "warning", "60s", "91%", "70%"],
    ]
    assert [line[7:] for line in lines[1:]] == [[], ["(stale)"], []]


def test_json_has_the_ids_of_the_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    document = json.loads(run(monkeypatch, hot_table(), "-o", "json").stdout)
    first = document["items"][0]
    assert first["id"] == f"busy/prod_memory/{format_time(NOW - 600)}"
    assert (first["node"], first["alert"]["severity"], first["stale"]) == (
        "busy",
        "critical",
        False,
    )


def test_no_alert_is_said_and_no_data_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    calm = run(monkeypatch, table_of(node_state("calm")), "--no-headers")
    assert (calm.exit_code, calm.stdout, calm.stderr) == (0, "", "no alert\n")
    document = run(monkeypatch, table_of(node_state("calm")), "-o", "json").stdout
    assert json.loads(document) == {"items": []}
    unknown = run(monkeypatch, Table())
    assert (unknown.exit_code, unknown.stdout) == (4, "")
    assert "springtide doctor" in unknown.stderr


def test_missing_thresholds_of_all_nodes_are_the_reason_for_no_alert(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = table_of(node_state("a"), node_state("b"))
    for name in ("a", "b"):
        assert table.put_node(TableNode(node=name))
    text = "no alert, because no node has thresholds: set them in a DeschedulerConfiguration\n"
    assert run(monkeypatch, table).stderr == text
    assert table.put_node(TableNode(node="b", hot_nodes=HotNodePolicy(high_percent={"cpu": 70})))
    assert run(monkeypatch, table).stderr == "no alert\n"


def test_watch_and_since_exclude_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, hot_table(), "--watch", "--since", "1h")
    assert result.exit_code == 2
    assert "exclude each other" in result.stderr


HOPELESS = [
    Hopeless(Subject("all_nodes_hot", "", "gold"), "gold", "no node is low"),
    Hopeless(Subject("nothing_can_be_done", "busy"), "silver", "d/a stays: it is bare\x1b[2J"),
]


def test_alerts_of_the_planner_are_listed_with_their_reasons(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records = [*map(encode_json, ReliefAlerts().opened(HOPELESS, NOW - 60)), encode_json(CHANGE)]
    result = run(monkeypatch, table_of(node_state("calm")), "--no-headers", records=records)
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["busy", "nothing_can_be_done", "warning", "60s", "-", "-", "-"],
        ["pool", "gold", "all_nodes_hot", "critical", "60s", "-", "-", "-"],
        ["busy:", "d/a", "stays:", "it", "is", "bare\\x1b[2J"],
        ["pool", "gold:", "no", "node", "is", "low"],
    ]
    text = run(monkeypatch, hot_table(), "-o", "json", records=records).stdout
    items = json.loads(text)["items"]
    assert len(items) == 5
    assert items[-1]["alert"]["why"] == "no node is low"


def test_alerts_about_levels_are_listed_by_their_workload(monkeypatch: pytest.MonkeyPatch) -> None:
    change = LevelChange(since="2023-11-14T16:00:00Z", before=0.25, after=0.5, detector="d")
    subject = Subject("workload_cpu_level", "", workload="Deployment/shop/web")
    (record,) = ReliefAlerts().opened([Hopeless(subject, "gold", "it rose", change)], NOW - 60)
    values = [encode_json(record), encode_json(CHANGE)]
    result = run(monkeypatch, table_of(node_state("calm")), "--no-headers", records=values)
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["Deployment/shop/web", "workload_cpu_level", "warning", "60s", "-", "-", "-"],
        ["Deployment/shop/web:", "it", "rose"],
    ]
    assert "Deployment/shop/web" in changes(monkeypatch, [values[0]]).stdout


def test_repeats_of_the_planner_are_no_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    old = ReliefAlerts().opened(HOPELESS, NOW - 3601)
    new = ReliefAlerts().opened(HOPELESS, NOW - 3599)
    lines = changes(monkeypatch, [encode_json(record) for record in [*old, *new, *new]])
    assert len(lines.stdout.splitlines()) == 3
    assert "pool gold" in lines.stdout


CHANGE = AlertRecord(
    node="busy", as_of="2023-11-14T22:14:00Z", generation=0, offset=7, epoch=3,
    id="busy/node_cpu/2023-11-14T22:12:00Z", rule="node_cpu", transition="closed",
    severity="critical", since="2023-11-14T22:12:00Z", duration_seconds=120.0, reason="cooled",
    evidence=Evidence(usage_percent=12.0, threshold_percent=70.0),
)  # fmt: skip
OPENED = msgspec.structs.replace(
    CHANGE, as_of="2023-11-14T22:12:00Z", offset=3, transition="opened", reason=None,
    duration_seconds=0.0,
)  # fmt: skip


def changes(monkeypatch: pytest.MonkeyPatch, values: list[bytes], *arguments: str) -> Result:
    fake_topic(monkeypatch, alerts, "springtide.alerts", [values], 3600)
    return CliRunner().invoke(cli, ["alerts", "--since", "1h", *arguments])


def test_changes_are_shown_once_in_order_and_bad_records_are_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    again = msgspec.structs.replace(OPENED, epoch=9)
    values = [*map(encode_json, (CHANGE, OPENED, again)), b"\xff{"]
    result = changes(monkeypatch, values)
    assert result.exit_code == 0
    assert [line.split() for line in result.stdout.splitlines()[1:]] == [
        ["2023-11-14T22:12:00Z", "busy", "node_cpu", "opened", "critical", "12%", "70%", "0s"],
        ["2023-11-14T22:14:00Z", "busy", "node_cpu", "closed", "critical", "12%", "70%", "2m",
         "cooled"],
    ]  # fmt: skip
    assert "warning: skipped a record of springtide.alerts" in result.stderr
    document = json.loads(changes(monkeypatch, values, "-o", "json").stdout)
    assert [item["transition"] for item in document["items"]] == ["opened", "closed"]


def test_no_change_is_said_without_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    result = changes(monkeypatch, [])
    text = "no alert opened, changed or closed in this time\n"
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", text)


def test_a_change_to_critical_shows_the_critical_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    evidence = Evidence(usage_percent=88.5, threshold_percent=65.0, critical_percent=82.0)
    escalated = msgspec.structs.replace(CHANGE, transition="escalated", evidence=evidence)
    (_, line) = changes(monkeypatch, [encode_json(escalated)]).stdout.splitlines()
    assert line.split()[5:7] == ["88%", "82%"]


def test_names_in_records_cannot_fake_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = msgspec.structs.replace(CHANGE, node="a\x1b[2J\nb")
    lines = changes(monkeypatch, [encode_json(hostile)]).stdout.splitlines()
    assert len(lines) == 2
    assert "\\x1b[2J\\nb" in lines[1]


def test_more_than_a_week_is_refused() -> None:
    result = CliRunner().invoke(cli, ["alerts", "--since", "169h"])
    assert (result.exit_code, "is more than 7 days ago" in result.stderr) == (2, True)
