"""`springtide top`: columns, order, formats, and the two sources of the table."""

import io
import json
import math
import re
from collections.abc import Sequence
from typing import Any

import click
import msgspec
import pytest
from click.testing import CliRunner
from rich.console import Console

from pipeline.cli import top, top_source
from pipeline.cli.main import cli
from pipeline.cli.node_table import JudgedPeaks, NodeLine, node_lines, plain_text, terminal_table
from pipeline.cli.top_columns import COLUMNS, FLAGS
from pipeline.processors.accuracy.accuracy_totals import AccuracyTotals
from pipeline.processors.explain.quantity_text import format_age, format_bytes, format_cpu
from pipeline.processors.loadaware.node_thresholds import ANNOTATION as USAGE_THRESHOLDS
from pipeline.table import Table
from pipeline.table.node_columns import TableNode
from pipeline.table.node_documents import (
    NO_FACTS,
    LimitsRatio,
    NodeFacts,
    limits_ratios,
    node_facts,
    node_list,
)
from pipeline.times import format_time
from pipeline.topics.accuracy import AccuracyRecord
from pipeline.topics.alerts import OpenAlert
from pipeline.topics.node_state import Counters
from pipeline.topics.pods import CountedPod
from pipeline.topics.resource_amounts import Resources, Usage
from tests.processors.accuracy.test_judged_peaks import record
from tests.table.records import GIB, NOW, node_state, table_of

PEAKS = {
    "percentile": Usage(cpu_cores=2.2, memory_bytes=5 * GIB),
    "nsigma-v1": Usage(cpu_cores=3.1, memory_bytes=9 * GIB),
}


def some_nodes() -> Table:
    table = table_of(
        node_state("calm", cpu=0.4, node_known=True, peaks=PEAKS, predictor="percentile", pods=12),
        node_state("busy", cpu=3.7, simulated=True, prod_reclaimable=Usage(cpu_cores=1.5)),
        node_state("blind", cpu=None, memory=None, node_known=True),
        node_state("old", cpu=2.0, memory=15 * GIB, age=400.0, node_known=True, unknown_pods=2),
    )
    table.put_node(TableNode(node="silent"))
    return table


def rendered(width: int, table: Table | None = None, **options: Any) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, no_color=True, color_system=None)
    lines = node_lines(some_nodes() if table is None else table, NOW)
    console.print(terminal_table(lines, width=width, **options))
    return out.getvalue().splitlines()


def cells(lines: Sequence[NodeLine], *headers: str) -> dict[str, list[str]]:
    """The texts of some columns by node."""
    indexes = [[column.header for column in COLUMNS].index(header) for header in headers]
    return {line.name: [line.cells[index][0] for index in indexes] for line in lines}


def test_nodes_are_sorted_by_percent_with_unknown_last() -> None:
    orders = {
        "cpu": ["busy", "old", "calm", "blind", "silent"],
        "memory": ["old", "busy", "calm", "blind", "silent"],
        "peak": ["calm", "blind", "busy", "old", "silent"],
        "name": ["blind", "busy", "calm", "old", "silent"],
    }
    table = some_nodes()
    shown = {sort: [line.name for line in node_lines(table, NOW, sort=sort)] for sort in orders}
    assert shown == orders


def test_plain_text_has_every_column_and_a_dash_for_unknown() -> None:
    lines = plain_text(node_lines(some_nodes(), NOW, sort="name")).splitlines()
    headers, first = lines[:2]
    assert headers.split() == [column.header.replace(" ", "-") for column in COLUMNS]
    blind = dict(zip(headers.split(), first.split(), strict=True))
    assert {blind[header] for header in ("CPU", "CPU%", "PEAK-CPU", "FREE-MEM")} == {"-"}
    assert lines[3].startswith(
        "calm    10s   400m   10%   4.0Gi   25%  2200m 55%  5.0Gi 31%  percentile    12"
    )
    assert cells(node_lines(some_nodes(), NOW), "FLAGS") == {
        "blind": ["missing"], "busy": ["simulated,no-node"], "calm": [""],
        "old": ["stale,unknown-pods=2"], "silent": ["no-data"],
    }  # fmt: skip
    assert not plain_text(node_lines(some_nodes(), NOW), headers=False).startswith("NODE")


def test_plain_text_of_an_empty_table_is_its_headers() -> None:
    assert plain_text([]).split()[:2] == ["NODE", "AGE"]
    assert plain_text([], headers=False) == ""


@pytest.mark.parametrize("width", [60, 80, 100, 120, 1000])
def test_terminal_table_leaves_out_columns_to_fit_the_width(width: int) -> None:
    lines = rendered(width)
    assert all(len(line) <= width for line in lines)
    assert "…" not in "".join(lines)
    headers = re.split(" {2,}", lines[0].strip())
    dropped = {column.drop_order for column in COLUMNS if column.header not in headers}
    assert (dropped, bool(dropped)) == ({*range(1, len(dropped) + 1)}, width < 1000)


def test_peak_is_that_of_the_predictor_of_the_strategy() -> None:
    table = table_of(node_state("a", peaks=PEAKS, predictor="nsigma-v1"))
    shown = cells(node_lines(table, NOW), "PEAK CPU", "PEAK MEM", "PREDICTOR")
    assert shown == {"a": ["3100m 78%", "9.0Gi 56%", "nsigma-v1"]}


def test_terminal_table_counts_the_nodes_that_exceed_the_height() -> None:
    lines = rendered(100, height=6)
    assert (len(lines), lines[-1].strip()) == (5, "and 2 more")


def test_no_headers_omits_the_header_line() -> None:
    assert "NODE" not in rendered(100, headers=False)[0]


def test_terminal_table_without_nodes_has_a_caption() -> None:
    assert "no node has published" in "".join(rendered(100, Table()))


def test_help_lists_every_column_and_flag() -> None:
    result = CliRunner().invoke(cli, ["top", "--help-all"])
    terms = {" ".join(line.split()[:2]) for line in result.output.splitlines()}
    names = [*(column.header for column in COLUMNS), *(flag.name for flag in FLAGS)]
    assert [name for name in names if not any(line.startswith(name) for line in terms)] == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(math.nan, "-"), (-3.0, "0s"), (119.4, "119s"), (120.0, "2m"), (7200.0, "2h"), (2e5, "2d")],
)
def test_age_is_in_the_largest_unit_that_fits(seconds: float, text: str) -> None:
    assert format_age(seconds) == text


@pytest.mark.parametrize(
    ("amount", "text"),
    [(math.nan, "-"), (0.0, "0Mi"), (512 * 2**20, "512Mi"), (999.6 * 2**20, "1.0Gi"),
     (1.5 * GIB, "1.5Gi"), (99.96 * GIB, "100Gi"), (2048 * GIB, "2.0Ti"),
     (-2.5 * GIB, "-2.5Gi"), (1e300, "8.88e+284Pi")],
)  # fmt: skip
def test_bytes_have_a_binary_unit(amount: float, text: str) -> None:
    assert format_bytes(amount) == text


@pytest.mark.parametrize(
    ("cores", "text"),
    [(None, "-"), (math.nan, "-"), (0.0, "0m"), (0.0849, "85m"), (1.5, "1500m"),
     (-10.61, "-10610m"), (16.0, "16000m"), (99.9996, "100"), (1234.5, "1234"),
     (99.9994, "99999m")],
)  # fmt: skip
def test_cpu_is_a_quantity(cores: float | None, text: str) -> None:
    assert format_cpu(cores) == text


def test_unavailable_broker_is_an_error_with_a_fix() -> None:
    result = CliRunner().invoke(cli, ["top", "--bootstrap-servers", "127.0.0.1:1"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "error: listing topics: no broker answers at 127.0.0.1:1" in result.stderr
    assert "fix: " in result.stderr


def test_unavailable_extender_is_an_error_with_its_url() -> None:
    result = CliRunner().invoke(cli, ["top", "--extender", "http://127.0.0.1:1"])
    assert result.exit_code == 1
    assert "error: no extender answers at http://127.0.0.1:1/v1/nodes" in result.stderr


@pytest.mark.parametrize(("output", "is_cut"), [("table", True), ("wide", False)])
def test_wide_is_not_cut_to_the_terminal(
    output: str, is_cut: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    narrow = Console(width=40, force_terminal=True, color_system=None)
    view = top.View("cpu", 180.0, output, headers=True)
    view.show(top_source.TableReading(some_nodes()), NOW, narrow)
    header = capsys.readouterr().out.splitlines()[0].split()
    assert (len(header) < len(COLUMNS)) is is_cut


def test_json_is_the_document_of_the_extender() -> None:
    out = io.StringIO()
    view = top.View("cpu", 180.0, "json", headers=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(click, "echo", lambda data: out.write(data.decode()))
        view.show(top_source.TableReading(some_nodes()), NOW, Console())
    document = json.loads(out.getvalue())
    assert (document["kind"], document["without_state"]) == ("NodeStateList", ["silent"])
    assert [item["node"] for item in document["items"]] == ["blind", "busy", "calm", "old"]
    blind = document["items"][0]
    assert (blind["usage"]["cpu_cores"], blind["limits_ratio"]) == (None, None)


def nodes_with_limits() -> Table:
    """`calm` has limits of 6 for its 4 cores, and of a quarter of its memory; `busy` has a pod that
    ended, and one that is only expected."""
    table = some_nodes()
    for uid, node, phase, cpu in (
        ("1", "calm", "Running", 2000), ("2", "calm", "Pending", 4000), ("3", "busy", "Failed", 9),
    ):  # fmt: skip
        pod = CountedPod(
            node=node, uid=uid, cgroup_uid=uid, phase=phase,
            limits=Resources(cpu_millicores=cpu, memory_bytes=2 << 30),
        )  # fmt: skip
        table.put_pod(pod)
    table.place(msgspec.structs.replace(pod, uid="4", phase=""), "busy", NOW)
    return table


def test_limits_are_shown_in_percent_of_allocatable_if_pods_are_read() -> None:
    table = nodes_with_limits()
    ratios = limits_ratios(table, [*table, "stranger"])
    assert ratios == {
        "calm": LimitsRatio(cpu=1.5, memory=0.25),
        **dict.fromkeys(("busy", "blind", "old"), LimitsRatio(cpu=0.0, memory=0.0)),
        **dict.fromkeys(("silent", "stranger"), LimitsRatio()),
    }

    def limits(**facts: Any) -> dict[str, list[str]]:
        return cells(node_lines(table, NOW, **facts), "LIM CPU%", "LIM MEM%")

    assert limits(facts=NodeFacts(ratios, {})) == {
        "calm": ["150%", "25%"],
        **{name: ["0%", "0%"] for name in ("busy", "blind", "old")},
        "silent": ["-", "-"],
    }
    assert limits() == {name: ["-", "-"] for name in table}


def received(document: dict[str, Any]) -> top_source.TableReading:
    """The table that `top --extender` builds from this document."""
    nodes = msgspec.json.decode(msgspec.json.encode(document), type=top_source.NodeStateList)
    return top_source.build_table(nodes)


def test_limits_come_from_the_extender_if_it_reports_them() -> None:
    table = nodes_with_limits()
    document = node_list(table, NOW, 180.0, node_facts(table, tuple(table)))
    reading = received(msgspec.to_builtins(document))
    assert reading.facts.limits["calm"] == LimitsRatio(cpu=1.5, memory=0.25)
    assert list(reading.table) == list(table)
    without_limits = [
        {key: item[key] for key in item.keys() - {"limits_ratio", "oddities"}}
        for item in msgspec.to_builtins(document)["items"]
    ]
    assert received({"items": without_limits}).facts == NO_FACTS


def test_anomalies_are_flags_from_kafka_and_from_an_extender() -> None:
    recently = format_time(NOW - 60)
    table = table_of(
        node_state("gaps", node_known=True, counters=Counters(gaps=3, last_gap_at=recently)),
        node_state("good", node_known=True, counters=Counters(gaps=3)),
        msgspec.structs.replace(node_state("half", node_known=True), coverage=0.4),
        node_state("own", node_known=True, cpu=None),
    )
    table.put_node(TableNode(node="own", annotations={USAGE_THRESHOLDS: "{"}))
    document = node_list(table, NOW, 180.0, node_facts(table, tuple(table)))
    from_extender = received(msgspec.to_builtins(document))
    from_kafka = top_source.TableReading(table, node_facts(table, tuple(table), has_pods=False))
    for reading in (from_extender, from_kafka):
        lines = node_lines(reading.table, NOW, sort="name", facts=reading.facts)
        assert cells(lines, "FLAGS") == {
            "gaps": ["gaps=3"], "good": [""], "half": ["partial=40%"],
            "own": ["missing,thresholds"],
        }  # fmt: skip
    again = node_list(from_extender.table, NOW, 180.0, from_extender.facts)
    assert json.loads(msgspec.json.encode(again)) == json.loads(msgspec.json.encode(document))


@pytest.mark.parametrize("url", ["foo", "ftp://x", "http://", "http://[", "http://x:99999"])
def test_an_extender_address_that_is_no_url_is_a_usage_error(url: str) -> None:
    result = CliRunner().invoke(cli, ["top", "--extender", url])
    assert (result.exit_code, "give http:// or https://" in result.output) == (2, True)


def test_an_extender_that_is_away_is_reported_without_tls_for_http() -> None:
    result = CliRunner().invoke(cli, ["top", "--extender", "http://127.0.0.1:1"])
    assert "no extender answers at http://127.0.0.1:1" in result.output
    assert (result.exit_code, "ssl:" in result.output) == (1, False)


SOME_ALERTS: Any = (("node_cpu", "critical"), ("prod_memory", "warning"))


def test_hot_column_names_open_alerts() -> None:
    alerts = tuple(
        OpenAlert(rule=rule, severity=severity, since=format_time(NOW))
        for rule, severity in SOME_ALERTS
    )
    table = table_of(node_state("hot", alerts=alerts), node_state("calm"))
    table.put_node(TableNode(node="silent"))
    index = [column.header for column in COLUMNS].index("HOT")
    cells = {line.name: line.cells[index] for line in node_lines(table, NOW)}
    assert cells == {
        "hot": ("cpu!,prod_memory", "red"), "calm": ("-", "yellow"), "silent": ("-", "yellow")
    }  # fmt: skip


def judged_peaks(*records: AccuracyRecord) -> JudgedPeaks:
    totals = AccuracyTotals()
    for each in records:
        totals.add(each)
    return JudgedPeaks(totals, interval_seconds=3600.0)


def judged(table: Table, records: JudgedPeaks | None, seconds: float) -> dict[str, Any]:
    """The cells of VIOL% with their styles, so long after the peak of hour 2 was judged."""
    index = [column.header for column in COLUMNS].index("VIOL%")
    lines = node_lines(table, 26 * 3600.0 + seconds, judged=records)
    return {line.name: line.cells[index] for line in lines}


def test_violations_are_those_of_the_deciding_predictor_with_their_age_once_stale() -> None:
    """Of `node-b` no horizon has passed with usage known: its rate is unknown, not zero."""
    table = table_of(
        node_state("node-a", predictor="percentile"), node_state("node-b", predictor="percentile"),
        node_state("node-c", predictor="nsigma-v1"), node_state("node-d", predictor="percentile"),
    )  # fmt: skip
    records = judged_peaks(
        record((400.0, 100.0), (500.0, 50.0), hour=1),
        record((600.0, 100.0), (500.0, 50.0), hour=2),
        record((600.0, 100.0), (500.0, 50.0), hour=2, node="node-b", known=(0.5, 0.5)),
        record((600.0, 100.0), (500.0, 50.0), hour=2, node="node-c"),
    )
    unknown = dict.fromkeys(("node-b", "node-c", "node-d"), ("-", ""))
    assert judged(table, records, 7200.0) == {"node-a": ("50.0/0.0", ""), **unknown}
    assert judged(table, records, 7201.0) == {"node-a": ("50.0/0.0 2h", "yellow"), **unknown}
    assert judged(table, None, 0.0) == dict.fromkeys(table, ("-", ""))
    order = [line.name for line in node_lines(table, NOW, sort="violation", judged=records)]
    assert order[0] == "node-a"


def test_violation_of_memory_alone_is_shown_beside_unknown_cpu() -> None:
    table = table_of(node_state("node-a", predictor="percentile"))
    records = judged_peaks(record((600.0, 10.0), (500.0, 50e6), hour=2, known=(0.0, 1.0)))
    assert judged(table, records, 0.0) == {"node-a": ("-/100.0", "")}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--accuracy", "-o", "json"], "--accuracy reads Kafka"),
        (["--accuracy", "--extender", "http://127.0.0.1:1"], "--accuracy reads Kafka"),
        (["--sort", "violation"], "--sort violation needs --accuracy"),
    ],
)
def test_accuracy_without_its_topic_is_a_usage_error(arguments: list[str], problem: str) -> None:
    result = CliRunner().invoke(cli, ["top", *arguments])
    assert (result.exit_code, problem in result.stderr) == (2, True)
