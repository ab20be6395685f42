"""Reports in a real browser: what they show, on light and dark screens, and that nothing in them
runs or loads.

A machine without Chromium fetches it (`tests.browser.chromium_files`); where that is impossible,
the tests are skipped with the reason, or errors with REQUIRE_BROWSER=1.
"""

from pathlib import Path

import pyarrow.parquet
import pytest
from click.testing import CliRunner

from pipeline.cli.main import cli
from tests.browser.chromium_files import ChromiumFiles
from tests.browser.chromium_page import chromium_page
from tests.browser.drawn_figures import drawn, figure_problems, lowest_contrast
from tests.processors.backtest.trace_files import (
    PLACEMENT,
    SERIES,
    series_row,
    stay_row,
    table_of,
)

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

HOSTILE = "</title><script>window.ran = 1</script>\"'&\u202e<img src=x onerror='ran=1'>"
STEPS = 2 * 288


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two days of three nodes with hostile names, and long ones. Pods rise on the second day."""
    folder = tmp_path_factory.mktemp("traces")
    metadata = {"step_s": "300", "t0_unix": "1700000100", "steps": str(STEPS)}
    wide, long = "W" * 200, "node-" + "a" * 190
    series, stays = [], []
    for number, node in enumerate((HOSTILE, wide, long)):
        usage = [
            100 + 50 * (step % 24 // 12) + 250 * (step > 400 - number) for step in range(STEPS)
        ]
        name = f"{HOSTILE}{number}"
        memory = {"mem_mi": [value // 2 for value in usage], "mem_request_mi": 400}
        series.append(series_row(name, usage, mem_limit_mi=500, **memory))
        stays.append(stay_row(f"{HOSTILE} pod {number}", name, 0, STEPS, node=node))
    workloads = [HOSTILE, wide, "web"]
    placement = table_of(stays, PLACEMENT, metadata).append_column("workload", [workloads])
    table = table_of(series, SERIES, metadata)
    pyarrow.parquet.write_table(table, folder / "<b>&amp;.series.parquet")
    pyarrow.parquet.write_table(placement, folder / "<b>&amp;.placement.parquet")
    return folder


def write(out: Path, command: str, *arguments: str) -> Path:
    result = CliRunner().invoke(cli, [command, *arguments, "--html", str(out)])
    assert result.exit_code == 0, result.output
    return out


@pytest.fixture(scope="module")
def backtest(traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / "backtest.html"
    return write(out, "backtest", str(traces), "--peers", "--risk", "0.05", "--stride", "1h")


@pytest.fixture(scope="module")
def gaps(traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / "gaps.html"
    return write(out, "gaps", str(traces), "--by", "workload")


@pytest.fixture(scope="module")
def waste(traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / "waste.html"
    return write(out, "report", str(traces))


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 420])
async def test_backtest_report(
    chromium: ChromiumFiles, backtest: Path, dark: bool, width: int
) -> None:
    async with chromium_page(chromium) as page:
        await page.open(backtest.as_uri(), dark=dark, width=width)
        assert await figure_problems(page) == []
        assert await page.evaluate("document.documentElement.scrollWidth") <= width
        assert await lowest_contrast(page) >= 4.5
        # Two suites and all of them; of each suite two variants with three nodes.
        assert await drawn(page, "circle.own") >= 2 * 3
        assert await drawn(page, "circle.hollow") >= 10 * 3
        assert await drawn(page, "path.usage") >= 2 * 2 * 3
        assert await drawn(page, "path.own-line") >= 2 * 2 * 3
        assert await drawn(page, "path.missed-bars") >= 2
        assert await drawn(page, "path.mark-line") >= 2
        assert await drawn(page, "table") >= 5
        assert (page.problems, page.requested) == ([], [backtest.as_uri()])


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 420])
async def test_gaps(chromium: ChromiumFiles, gaps: Path, dark: bool, width: int) -> None:
    async with chromium_page(chromium) as page:
        await page.open(gaps.as_uri(), dark=dark, width=width)
        assert await figure_problems(page) == []
        assert await page.evaluate("document.documentElement.scrollWidth") <= width
        assert await lowest_contrast(page) >= 4.5
        # Of cpu and memory: two bars for each of three workloads, and two of the fleet.
        assert await drawn(page, "rect.own") == 2 * (3 + 2)
        assert await drawn(page, "rect.usage") == 2 * (3 + 2)
        assert await drawn(page, "rect.other") == 2 * 2
        assert (page.problems, page.requested) == ([], [gaps.as_uri()])


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 420])
async def test_waste(chromium: ChromiumFiles, waste: Path, dark: bool, width: int) -> None:
    async with chromium_page(chromium) as page:
        await page.open(waste.as_uri(), dark=dark, width=width)
        assert await figure_problems(page) == []
        assert await page.evaluate("document.documentElement.scrollWidth") <= width
        assert await lowest_contrast(page) >= 4.5
        # Of the cluster a table by risk, of nodes and workloads a table by resource.
        assert await drawn(page, "table") == 1 + 2 * 2
        assert await drawn(page, "rect.own") >= 3
        assert (page.problems, page.requested) == ([], [waste.as_uri()])


@pytest.mark.parametrize("report", ["backtest", "gaps", "waste"])
async def test_hostile_names_are_text(
    chromium: ChromiumFiles, report: str, request: pytest.FixtureRequest
) -> None:
    async with chromium_page(chromium) as page:
        await page.open(request.getfixturevalue(report).as_uri())
        assert await page.evaluate("window.ran") is None
        assert await page.evaluate("document.querySelectorAll('script, img, main b').length") == 0
        shown = await page.evaluate("document.body.textContent")
        assert HOSTILE.replace("\u202e", "\\u202e") in shown
        assert "\u202e" not in shown


async def test_report_prints_on_white(chromium: ChromiumFiles, backtest: Path) -> None:
    async with chromium_page(chromium) as page:
        await page.open(backtest.as_uri(), dark=True)
        screen = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        await page.call("Emulation.setEmulatedMedia", media="print")
        paper = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (screen, paper) == ("rgb(18, 23, 29)", "rgb(255, 255, 255)")
        assert await figure_problems(page) == []
        assert (await page.pdf()).startswith(b"%PDF")


async def test_a_broken_report_is_noticed(chromium: ChromiumFiles, tmp_path: Path) -> None:
    """What the tests above look for is seen where it is missing."""
    broken = tmp_path / "broken.html"
    broken.write_text(
        '<svg width="200" height="200"><desc>d</desc><path class="grid" d="M0 0L99 99"/></svg>'
        '<svg width="200" height="200"><desc>d</desc><text x="190" y="20">too long</text>'
        '<circle r="5" cx="50" cy="50"/></svg><svg width="0"></svg>'
        '<p style="color:#aaa">faint</p><img src="https://example.invalid/x.png">'
        "<script>console.error('no'); missing()</script>"
    )
    async with chromium_page(chromium) as page:
        await page.open(broken.as_uri())
        problems = "\n".join(await figure_problems(page))
        for problem in (
            "0: undefined: nothing is drawn", "1: undefined: too long leaves the figure",
            "2: undefined: not visible", "2: undefined: no description",
        ):  # fmt: skip
            assert problem in problems
        assert "1: undefined: nothing" not in problems
        assert await lowest_contrast(page) < 4.5
        assert len(page.problems) >= 2
        assert len(page.requested) == 2
