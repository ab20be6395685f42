"""The page of a node in a real browser: usage against the peaks that were predicted over time."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from pipeline.topics.resource_amounts import Usage
from tests.browser.accessibility import violations
from tests.browser.chromium_files import ChromiumFiles
from tests.browser.chromium_page import Page
from tests.browser.test_console import ASK_NOW, HOSTILE, Proxy, opened, simulated

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

CHARTS = "document.querySelectorAll('.uplot canvas').length === 2"
TEXT = "document.getElementById('main').textContent"
COLUMNS = """(() => {
  const wanted = getComputedStyle(document.documentElement).getPropertyValue("--%s");
  const [r, g, b] = wanted.match(/[0-9a-f]{2}/gi).map(part => parseInt(part, 16));
  const drawn = document.querySelector(".uplot canvas"), { width, height } = drawn;
  const copy = Object.assign(document.createElement("canvas"), { width, height })
    .getContext("2d", { willReadFrequently: true });
  copy.drawImage(drawn, 0, 0);
  const { data } = copy.getImageData(0, 0, width, height);
  return Array.from({ length: width }, (_, x) => Array.from({ length: height }, (_, y) =>
    4 * (y * width + x)).some(i => data[i] === r && data[i + 1] === g && data[i + 2] === b));
})()"""
"""For each column of pixels of the chart of CPU, whether a line of this colour is in it."""


async def node_page(page: Page) -> None:
    await page.click("td a")
    await page.becomes(CHARTS)


async def drawn(page: Page, colour: str) -> list[bool]:
    columns: list[bool] = await page.evaluate(COLUMNS % colour)
    return columns


def longest_gap(columns: list[bool]) -> float:
    """The longest part without a line between two with one, as a share of the whole line."""
    marks = [i for i, is_drawn in enumerate(columns) if is_drawn]
    return max(b - a for a, b in pairwise(marks)) / (marks[-1] - marks[0])


async def test_lines_are_drawn_over_time_and_not_over_gaps(chromium: ChromiumFiles) -> None:
    of, _, _ = simulated(300)
    async with opened(chromium, of, "#span=21600", Proxy()) as (page, _):
        await node_page(page)
        # Two hours, in which the node was silent for fifteen minutes.
        for colour in ("usage", "peak-0"):
            assert 0.06 < longest_gap(await drawn(page, colour)) < 0.15
        label = "document.querySelector('.chart').getAttribute('aria-label')"
        assert await page.evaluate(label) == (
            "CPU of the last 6 hours: highest usage 3.50 cores, allocatable 4.00 cores, "
            "predicted now: calibrated 4.00 cores, maximum 3.90 cores"
        )
        text = await page.evaluate(TEXT)
        assert "The extender has predictions of the last 2h in memory" in text
        assert "model.horizon_seconds, a day unless set otherwise" in text
        assert "No earlier predictions of" not in text
        # What the chart shows is said in a table, too.
        rows = await page.evaluate(
            "[...document.querySelectorAll('tr')].map(row => "
            "[...row.children].map(cell => cell.textContent).join('|'))"
        )
        assert any(row.startswith("calibrated|4.00|12 of 23|") for row in rows), rows
        assert any(row.startswith("maximum|3.90|0 of 23|–|–|") for row in rows), rows
        assert page.problems == []
        # A short range has each window.
        await page.evaluate("location.hash = location.hash.replace('21600', '1800')")
        await page.becomes(f"{label}.includes('30 minutes')")
        assert "highest window of each five minutes" not in await page.evaluate(TEXT)


async def test_predictors_are_shown_and_hidden_by_keys(
    chromium: ChromiumFiles, packages: Path
) -> None:
    of, table, clock = simulated(300)
    state = table.snapshot(HOSTILE).state
    assert state is not None
    peaks = state.peaks | {"of a, b%2C": Usage(cpu_cores=2.0)}
    state = msgspec.structs.replace(state, offset=state.offset + 1, peaks=peaks)
    table.put_state(state)
    async with opened(chromium, of, "#span=21600&hide=gone") as (page, _):
        await node_page(page)
        assert any(await drawn(page, "peak-0"))
        await page.evaluate("document.querySelector('.legend input').focus()")
        space: dict[str, Any] = {"key": " ", "code": "Space", "windowsVirtualKeyCode": 32}
        await page.call("Input.dispatchKeyEvent", type="keyDown", text=" ", **space)
        await page.call("Input.dispatchKeyEvent", type="keyUp", **space)
        await page.becomes("location.hash.includes('hide=gone%2Ccalibrated')")
        assert not any(await drawn(page, "peak-0"))
        assert await page.evaluate("document.activeElement.checked") is False
        assert await violations(page, packages) == []
        # An update keeps what is chosen, and the focus.
        table.put_state(msgspec.structs.replace(state, offset=state.offset + 2, pods=77))
        clock.jump(5.0)
        await page.evaluate(ASK_NOW)
        await page.becomes(f"{TEXT}.includes('77 pods')")
        assert await page.evaluate("document.activeElement.checked") is False
        await page.evaluate("document.querySelector('.legend input').click()")
        assert any(await drawn(page, "peak-0"))
        # A name with what separates names in the address is one name.
        other = "document.querySelectorAll('.legend input')[2]"
        assert "of a, b%2C" in await page.evaluate(f"{other}.parentElement.textContent")
        await page.evaluate(f"{other}.click()")
        await page.becomes("location.hash.includes('of+a')")
        assert await page.evaluate(f"{other}.checked") is False


async def test_what_is_not_answered_is_said_and_the_rest_is_shown(chromium: ChromiumFiles) -> None:
    of, _, _ = simulated(300)
    proxy = Proxy()
    async with opened(chromium, of, proxy=proxy) as (page, _):
        proxy.answer, proxy.part = lambda: web.Response(status=502), "/peaks"
        await node_page(page)
        text = await page.evaluate(TEXT)
        assert "No earlier predictions are shown: the answer has status 502" in text
        assert any(await drawn(page, "usage"))
        # A predictor that has a peak now, and no history.
        answer = {"step_seconds": 300, "begin": ["2023-11-14T22:10:00Z"], "usage": {}, "peaks": {}}
        proxy.answer = lambda: web.json_response(answer)
        await page.evaluate(ASK_NOW)
        missing = "No earlier predictions of calibrated, maximum are in memory"
        await page.becomes(f"{TEXT}.includes('{missing}')")
        proxy.answer, proxy.part = lambda: web.Response(status=502), "/series"
        await page.evaluate(ASK_NOW)
        await page.becomes(f"{TEXT}.includes('No usage is shown: the answer has status 502')")
        assert any(await drawn(page, "peak-0"))


async def test_what_actuators_did_is_listed_as_text(
    chromium: ChromiumFiles, packages: Path
) -> None:
    of, _, _ = simulated(300)
    proxy = Proxy()
    async with opened(chromium, of, "#node=node-00001", proxy, width=390) as (page, _):
        await page.becomes(f"{TEXT}.includes('What was done')")
        rows = await page.evaluate(
            "[...document.querySelectorAll('tr')].map(row => "
            "[...row.children].map(cell => cell.textContent))"
        )
        shown = HOSTILE.replace("\u202e", "\\u202e")
        time = "2023-11-14T22:12:20Z"
        assert [row for row in rows if row[0] == time] == [
            [time, "evictor", "evict", "refused", "", f"usage of Prod is high; {shown}"],
            [time, "node-actuator", "cpu suppress", "done", f"{shown}: max → 200000 100000",
             "usage of Prod is high"],
        ]  # fmt: skip
        assert await page.evaluate("window.ran") is None
        assert await violations(page, packages) == []
        assert await page.evaluate("document.documentElement.scrollWidth") <= 390
        assert [each for each in page.problems if "exceptionDetails" in each] == []
        proxy.answer, proxy.part = lambda: web.Response(status=502), "/actions"
        await page.evaluate(ASK_NOW)
        await page.becomes(f"{TEXT}.includes('Not known: the answer has status 502')")


async def test_moves_off_a_node_lead_to_where_they_go_and_back(chromium: ChromiumFiles) -> None:
    of, _, _ = simulated(300)
    proxy = Proxy()
    moves = "[...document.querySelectorAll('tr')].map(row => [...row.children]" + (
        ".map(cell => cell.textContent)).filter(cells => cells[1].startsWith('jobs/'))"
    )
    async with opened(chromium, of, "#node=node-00099", proxy) as (page, _):
        await page.becomes(f"{TEXT}.includes('in plans of the last 2 hours')")
        planned, why = "2023-11-14T22:03:20Z", "cpu 92.0% is above 80.0%"
        budget = f"{why}; a PodDisruptionBudget allows no eviction"
        places = ["batch", "this node", "node-00001"]
        assert await page.evaluate(moves) == [
            [planned, "jobs/crunch-0", *places, "evicted", why],
            [planned, "jobs/crunch-1", *places, "refused", budget],
            [planned, "jobs/crunch-2", *places, "no action known", why],
        ]
        await page.click("td a[href*='node-00001']")
        await page.becomes("document.title.startsWith('node-00001')")
        await page.becomes(f"{TEXT}.includes('in plans of the last 2 hours')")
        places = ["batch", "node-00099", "this node"]
        assert (await page.evaluate(moves))[0][2:5] == places
        proxy.answer, proxy.part = lambda: web.Response(status=502), "/relief"
        await page.evaluate(ASK_NOW)
        await page.becomes(f"{TEXT}.includes('Not known: the answer has status 502')")
