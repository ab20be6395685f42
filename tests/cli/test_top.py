import io
import json
import math
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from rich.console import Console

from pipeline.cli import node_lines, top
from pipeline.cli.main import cli
from pipeline.cli.node_lines import COLUMNS, Sort, lines, plain, render
from pipeline.processors.loadaware.node_thresholds import ANNOTATION as USAGE_THRESHOLDS
from pipeline.table import Table
from pipeline.table.node_columns import TableNode
from pipeline.table.node_documents import (
    NOTHING_BESIDE,
    Beside,
    LimitsRatio,
    beside,
    limits_ratios,
    node_list,
)
from pipeline.times import format_time
from pipeline.topics.node_state import Counters
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.pods import CountedPod
from pipeline.topics.resource_amounts import Resources, Usage
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
    table.put_node(NodeRecord(node="silent"))
    return table


def shown(width: int, **options: Any) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, no_color=True, color_system=None)
    console.print(render(some_nodes(), NOW, width=width, **options))
    return out.getvalue().splitlines()


def names(table: Table, sort: Sort) -> list[str]:
    return [line.name for line in lines(table, NOW, sort=sort)]


def test_order_is_by_share_with_the_unknown_last() -> None:
    table = some_nodes()
    assert names(table, "cpu") == ["busy", "old", "calm", "blind", "silent"]
    assert names(table, "memory") == ["old", "busy", "calm", "blind", "silent"]
    assert names(table, "peak") == ["calm", "blind", "busy", "old", "silent"]
    assert names(table, "name") == ["blind", "busy", "calm", "old", "silent"]


def test_plain_text_has_every_column_and_no_value_where_nothing_is_known() -> None:
    text = plain(lines(some_nodes(), NOW, sort="name"))
    rows = [line.split() for line in text.splitlines()]
    assert rows[0] == [column.title.replace(" ", "-") for column in COLUMNS]
    blind = dict(zip(rows[0], rows[1], strict=True))
    assert blind["CPU"] == blind["CPU%"] == blind["PEAK-CPU"] == blind["FREE-MEM"] == "-"
    assert rows[2][-1] == "simulated,no-node"
    assert text.splitlines()[3].startswith(
        "calm    10s  0.40   10%   4.0Gi   25%  2.20 55%  5.0Gi 31%  percentile    12"
    )
    assert rows[4][-1] == "stale,unknown-pods=2"
    assert blind["FLAGS"] == "missing"
    assert rows[5][-1] == "no-data"
    assert not plain(lines(some_nodes(), NOW), headers=False).startswith("NODE")


def test_an_empty_table_in_plain_text_is_its_titles() -> None:
    assert plain([]).split()[:2] == ["NODE", "AGE"]
    assert plain([], headers=False) == ""


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_what_is_shown_fits_the_terminal_uncut(width: int) -> None:
    found = shown(width)
    assert all(len(line) <= width for line in found)
    assert "…" not in "".join(found)
    for title in ("NODE", "AGE", "CPU%", "MEM%", "FLAGS"):
        assert title in found[0]
    assert ("PREDICTOR" in found[0]) == (width >= 120)


def test_the_peak_is_that_of_the_predictor_which_decides() -> None:
    table = table_of(node_state("a", peaks=PEAKS, predictor="nsigma-v1"))
    titles, row = (line.split() for line in plain(lines(table, NOW)).splitlines())
    assert titles[6:9] == ["PEAK-CPU", "PEAK-MEM", "PREDICTOR"]
    assert row[6:11] == ["3.10", "78%", "9.0Gi", "56%", "nsigma-v1"]


def test_height_limits_the_nodes_and_says_how_many_are_left_out() -> None:
    found = shown(100, height=6)
    assert len(found) == 5
    assert found[-1].strip() == "and 2 more"


def test_titles_can_be_left_out() -> None:
    assert "NODE" not in shown(100, headers=False)[0]


def test_without_nodes_it_says_so() -> None:
    out = io.StringIO()
    Console(file=out, width=100).print(render(Table(), NOW))
    assert "no node" in out.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(math.nan, "-"), (-3.0, "0s"), (119.4, "119s"), (120.0, "2m"), (7200.0, "2h"), (2e5, "2d")],
)
def test_ages(seconds: float, text: str) -> None:
    assert node_lines._age(seconds) == text


@pytest.mark.parametrize(
    ("amount", "text"),
    [(math.nan, "-"), (0.0, "0Mi"), (512 * 2**20, "512Mi"), (999.6 * 2**20, "1.0Gi"),
     (1.5 * GIB, "1.5Gi"), (99.96 * GIB, "100Gi"), (2048 * GIB, "2.0Ti"), (1e300, "8.88e+284Pi")],
)  # fmt: skip
def test_amounts_of_memory(amount: float, text: str) -> None:
    assert node_lines._bytes(amount) == text


def test_no_broker_is_an_error_with_a_remedy() -> None:
    ran = CliRunner().invoke(cli, ["top", "--bootstrap-servers", "127.0.0.1:1"])
    assert ran.exit_code == 1
    assert ran.stdout == ""
    assert "error: no broker answers at 127.0.0.1:1" in ran.stderr
    assert "fix: " in ran.stderr


def test_no_extender_is_an_error_with_a_remedy() -> None:
    ran = CliRunner().invoke(cli, ["top", "--extender", "http://127.0.0.1:1"])
    assert ran.exit_code == 1
    assert "error: no extender answers at http://127.0.0.1:1/v1/nodes" in ran.stderr


def test_json_is_the_extenders_document() -> None:
    out = io.StringIO()
    view = top._View("cpu", 180.0, json=True, headers=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(top.click, "echo", lambda data: out.write(data.decode()))
        view.show(top.Seen(some_nodes()), NOW, Console())
    document = json.loads(out.getvalue())
    assert document["kind"] == "NodeStateList"
    assert [item["node"] for item in document["items"]] == ["blind", "busy", "calm", "old"]
    assert document["without_state"] == ["silent"]
    assert document["items"][0]["usage"]["cpu_cores"] is None
    assert document["items"][0]["limits_ratio"] is None


def limited() -> Table:
    """`calm` with limits of 6 of its 4 cores, and of a quarter of its memory; on `busy` a pod that
    has ended, and one that is only expected."""
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


def test_limits_over_allocatable_are_a_column_where_the_pods_are_read() -> None:
    table = limited()
    ratios = limits_ratios(table, [*table, "stranger"])
    assert ratios == {
        "calm": LimitsRatio(cpu=1.5, memory=0.25),
        **dict.fromkeys(("busy", "blind", "old"), LimitsRatio(cpu=0.0, memory=0.0)),
        **dict.fromkeys(("silent", "stranger"), LimitsRatio()),
    }
    at = [[column.title for column in COLUMNS].index(title) for title in ("LIM CPU%", "LIM MEM%")]

    def cells(**known: Any) -> dict[str, list[str]]:
        found = lines(table, NOW, **known)
        return {line.name: [line.cells[place][0] for place in at] for line in found}

    assert cells(beside=Beside(ratios, {})) == {
        "calm": ["150%", "25%"],
        **{name: ["0%", "0%"] for name in ("busy", "blind", "old")},
        "silent": ["-", "-"],
    }
    assert cells() == {name: ["-", "-"] for name in table}


def test_limits_are_those_that_an_extender_tells() -> None:
    table = limited()
    document = node_list(table, NOW, 180.0, beside(table, tuple(table)))
    seen = top._seen(msgspec.json.encode(document), "http://x")
    assert seen.beside.limits["calm"] == LimitsRatio(cpu=1.5, memory=0.25)
    assert list(seen.table) == list(table)
    before = [
        {k: one[k] for k in one.keys() - {"limits_ratio", "oddities"}} for one in document["items"]
    ]
    assert top._seen(msgspec.json.encode({"items": before}), "http://x").beside == NOTHING_BESIDE


def test_what_is_odd_is_a_flag_whoever_is_asked() -> None:
    lately = format_time(NOW - 60)
    table = table_of(
        node_state("gaps", node_known=True, counters=Counters(gaps=3, last_gap_at=lately)),
        node_state("good", node_known=True, counters=Counters(gaps=3)),
        msgspec.structs.replace(node_state("half", node_known=True), coverage=0.4),
        node_state("own", node_known=True, cpu=None),
    )
    table.put_node(TableNode(node="own", annotations={USAGE_THRESHOLDS: "{"}))
    document = node_list(table, NOW, 180.0, beside(table, tuple(table)))
    told = top._seen(msgspec.json.encode(document), "http://x")
    for seen in (told, top.Seen(table, beside(table, tuple(table), has_pods=False))):
        found = lines(seen.table, NOW, sort="name", beside=seen.beside)
        assert [line.cells[-1][0] for line in found] == [
            "gaps=3", "", "partial=40%", "missing,thresholds",
        ]  # fmt: skip
    again = node_list(told.table, NOW, 180.0, told.beside)
    shown, said = (json.loads(msgspec.json.encode(one)) for one in (again, document))
    assert shown == said
