"""The page of gaps: its summary, figures and bounds."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from pipeline.processors.backtest import gaps_page as pages
from pipeline.processors.backtest.backtest_figures import UNITS
from pipeline.processors.backtest.gaps import Gaps, Grouping, measure_gaps
from pipeline.processors.backtest.gaps_page import MeasuredGaps, fleet_figure, gaps_page
from pipeline.processors.backtest.trace_tables import read_traces
from pipeline.processors.figures.bars import Bar, BarRow, bars_figure
from tests.processors.backtest.trace_files import (
    METADATA,
    PLACEMENT,
    SERIES,
    series_row,
    stay_row,
    table_of,
)


def measured(
    nodes: int = 2, request: int = 500, limit: int = 1000, grouping: Grouping = "node"
) -> MeasuredGaps:
    """Two pods on each node that use 100 and 300 of `request` in turn; the first node has more."""
    metadata = METADATA | {"steps": "4"}
    amounts = {"cpu_request_m": request, "cpu_limit_m": limit}
    series = [
        series_row("a", [100, 300, 100, 300], **amounts),
        series_row("b", [300, 100, 300, 100], **amounts),
    ]
    stays = [
        stay_row(f"pod-{name}-{n}", name, 0, 4, node=f"node-{n}")
        for n in range(nodes)
        for name in "ab"
    ]
    stays.append(stay_row("more", "a", 0, 4, node="node-0"))
    tables = table_of(series, SERIES, metadata), table_of(stays, PLACEMENT, metadata)
    (trace,) = read_traces("april", *tables)
    fleet, *groups = measure_gaps(trace, grouping)
    return MeasuredGaps("april/std", fleet, groups)


def texts(figure: str) -> list[str]:
    return [each.text or "" for each in ET.fromstring(figure).iter() if each.tag.endswith("}text")]


def test_the_fleet_goes_down_from_limits_to_mean_usage() -> None:
    shown = texts(fleet_figure(measured(), UNITS["cpu"]))
    assert shown[0] == "april/std: cpu of the fleet"
    rows = dict(zip(shown[-12::2], shown[-11::2], strict=True))
    assert rows == {
        "limits, mean": "5 cores (200.0%)",
        "requests, mean": "2.5 cores (100.0%)",
        "each pod at its peak": "1.5 cores (60.0%)",
        "each node at its peak": "1.1 cores (44.0%)",
        "all pods, peak": "1.1 cores (44.0%)",
        "all pods, mean": "1 cores (40.0%)",
    }


def test_the_page_has_a_summary_figures_and_a_table() -> None:
    page = gaps_page([measured()])
    (lead,) = re.findall(r'<p class="lead">(.*?)</p>', page)
    assert lead == (
        "In april/std, 5 pods used 40.0% of the cpu that they requested, and 44.0% at the busiest "
        "moment; together they never needed more than 73.3% of the sum of their peaks."
    )
    assert page.count("<svg") == 2
    assert '<tr><td>fleet</td><td class="amount">5</td>' in page
    # The node that left most unused comes first.
    assert page.index(">node-0</td>") < page.index(">node-1</td>")


def test_without_requests_shares_are_those_of_limits() -> None:
    page = gaps_page([measured(request=0)])
    assert "used 20.0% of the cpu that they may use by their limits" in page
    assert "share of the limits that was used" in page
    assert "pods without a request, left out of shares of requests: 5" in page


def test_many_groups_are_cut_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MOST_GROUPS", 3)
    monkeypatch.setattr(pages, "MOST_ROWS", 4)
    page = gaps_page([measured(nodes=7)])
    assert "cpu of 3 nodes of 7, those that leave most unused" in page
    assert "3 of 7 groups are left out" in page
    assert page.count("<tr>") == 1 + 1 + 4


def test_bars_are_on_one_scale_and_unknown_is_no_bar() -> None:
    rows = [
        BarRow("a", [Bar(10.0, "usage"), Bar(5.0, "own")], "10"),
        BarRow("b", [Bar(np.nan, "own")], "-"),
        BarRow("c", [Bar(0.0, "own")], "0"),
    ]  # fmt: skip
    figure = ET.fromstring(bars_figure("title", "note", rows, lambda tick: f"{tick:g}"))
    bars = [each for each in figure.iter() if each.tag.endswith("}rect")]
    assert [each.get("class") for each in bars] == ["usage", "own"]
    widths = [float(each.get("width", "")) for each in bars]
    assert widths[0] == pytest.approx(2 * widths[1])
    assert bars_figure("nothing", "note", [], str).startswith("<svg")


def test_a_fleet_is_what_is_measured() -> None:
    assert isinstance(measured().fleet, Gaps)
    assert [gaps.level for gaps in measured().groups] == ["node", "node"]
