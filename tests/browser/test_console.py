"""The console in a real browser, over the table of a real extender of 10,000 nodes.

A machine without Chromium or npm fetches what it needs; where that is impossible, the tests are
skipped with the reason, or errors with REQUIRE_BROWSER=1.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from pipeline.clock import ManualClock
from pipeline.extender.node_view_poll import NodeViewHandler
from pipeline.extender.scheduler_api import Extender
from pipeline.extender.series_api import NodeSeriesHandler
from pipeline.settings import ExtenderSettings
from pipeline.table import FeedState, Table
from pipeline.table.compressed_views import NodeViewStore
from pipeline.table.node_columns import TableNode
from pipeline.table.usage_history import History
from pipeline.topics.alerts import OpenAlert
from pipeline.topics.codec import encode_json
from pipeline.topics.hot_node_policy import HotNodePolicy
from pipeline.topics.resource_amounts import Usage
from tests.browser.accessibility import violations
from tests.browser.chromium_files import ChromiumFiles
from tests.browser.chromium_page import Page, chromium_page
from tests.browser.drawn_figures import lowest_contrast
from tests.extender.conftest import extender
from tests.extender.console_samples import read_judged, read_results, relief
from tests.processors.console.test_node_actions import action
from tests.table.records import GIB, NOW, node_state
from tests.topics.golden import NODE_VIEW

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

NODES = 10_000
HOSTILE = "<img src=x onerror=window.ran=1>\u202e&amp;"
PAUSES = """window.pauses = []; const start = window.setTimeout;
window.setTimeout = (run, pause) => {
  if (pause > 1000) window.pauses.push(pause);
  return start(run, pause);
}"""
CONSOLE = Path("pipeline/extender/console")
HOT = OpenAlert(rule="node_cpu", severity="critical", since="2023-11-14T22:13:00Z")
ASK_NOW = "document.dispatchEvent(new Event('visibilitychange'))"
"""What a browser reports when the tab is shown again."""
CELL = "document.querySelector('tbody tr td:nth-child({})').textContent"


def fill(table: Table, nodes: int) -> None:
    """Nodes of two pools with rising usage; every hundredth is hot, every thousandth stale."""
    for index in range(nodes):
        cpu = 4.0 * (index + 1) / nodes
        name = HOSTILE if index == nodes - 1 else f"node-{index:05}"
        table.put_state(node_state(
            name, cpu=cpu, memory=(index % 16) * GIB, age=500.0 if index % 1000 == 7 else 10.0,
            predictor="calibrated",
            peaks={"calibrated": Usage(cpu_cores=min(4.0, 1.2 * cpu), memory_bytes=8 * GIB),
                   "maximum": Usage(cpu_cores=3.9)},
            class_usage={"prod": Usage(cpu_cores=cpu / 2, memory_bytes=GIB), HOSTILE: Usage()},
            alerts=(HOT,) if index % 100 == 99 else (),
        ))  # fmt: skip
        pool = HotNodePolicy(pool=f"pool-{index % 2}")
        table.put_node(TableNode(node=name, hot_nodes=pool))


def simulated(nodes: int = NODES, **settings: Any) -> tuple[Extender, Table, ManualClock]:
    clock, state, table = ManualClock(NOW), FeedState(caught_up=True), Table()
    views, history = NodeViewStore(), History()
    fill(table, nodes)
    view = msgspec.structs.replace(NODE_VIEW, node=HOSTILE)
    pod = msgspec.structs.replace(view.pods[0], name=HOSTILE)
    views.put(HOSTILE, 1, encode_json(msgspec.structs.replace(view, pods=(pod, *view.pods))))
    for window in range(240):  # with 15 minutes in which the node was silent
        if not 120 <= window < 150:
            usage = Usage(cpu_cores=2.0 + window % 7 / 4, memory_bytes=(4 + window % 5) * GIB)
            peaks = {
                "calibrated": Usage(cpu_cores=3.0 + window / 300, memory_bytes=8.5 * GIB),
                "maximum": Usage(cpu_cores=3.9),
            }
            history.put(HOSTILE, NOW - 30.0 * (240 - window), usage, peaks=peaks)
    reading = relief()
    for done in ({"actuator": "evictor", "action": "evict", "outcome": "refused", "error": HOSTILE},
                 {"before": {HOSTILE: "max"}, "after": {HOSTILE: "200000 100000"}}):  # fmt: skip
        reading.actions.take(b"node-00001", action("node-00001", **done), NOW - 60, NOW)
    of = extender(
        table, clock=clock, node_views=NodeViewHandler(views, state),
        series=NodeSeriesHandler(history, state, clock), settings=ExtenderSettings(**settings),
        relief=reading, read_judged=read_judged, read_results=read_results,
    )  # fmt: skip
    return of, table, clock


@asynccontextmanager
async def opened(
    chromium: ChromiumFiles,
    of: Extender,
    fragment: str = "",
    proxy: "Proxy | None" = None,
    **more: Any,
) -> AsyncIterator[tuple[Page, str]]:
    """The console of an extender, once it shows a table, and its address."""
    app = of.app()
    if proxy is not None:
        app.middlewares.append(proxy.middleware)
    async with TestServer(app) as server, chromium_page(chromium) as page:
        await page.call("Page.enable")
        await page.call("Page.addScriptToEvaluateOnNewDocument", source=PAUSES)
        address = str(server.make_url("/console"))
        await page.open(f"{address}{fragment}", online=True, **more)
        await page.becomes("!!document.querySelector('tbody td')")
        yield page, address.removesuffix("console")


class Proxy:
    """What stands before an extender: its `clock`, and the `answer` to queries in its place, of all
    or of those whose path ends with `part`."""

    def __init__(self) -> None:
        self.clock = NOW
        self.part = ""
        self.answer: Callable[[], web.Response] | None = None
        self.queries: list[str] = []

    @web.middleware
    async def middleware(self, request: web.Request, handler: Any) -> web.StreamResponse:
        is_query = request.path.startswith("/v1/")
        if is_query:
            self.queries.append(request.path_qs)
        answer = self.answer if is_query and request.path.endswith(self.part) else None
        response: web.StreamResponse = await handler(request) if answer is None else answer()
        response.headers["Date"] = formatdate(self.clock, usegmt=True)
        return response


async def test_ten_thousand_nodes_are_shown_as_the_table_has_them(chromium: ChromiumFiles) -> None:
    of, table, clock = simulated()
    async with opened(chromium, of, "#sort=name") as (page, base):
        figures = await page.evaluate(
            "[...document.querySelectorAll('.totals b')].map(b => b.textContent)"
        )
        cpu, room = table["usage_cpu_cores"], table["allocatable_cpu_cores"]
        rows = table.known_rows
        share = f"{100 * cpu[rows].sum() / room[rows].sum():.0f}%"
        assert figures[:4] == ["10000", "100", "10", share]
        shown = await page.evaluate(
            "[...document.querySelectorAll('tbody tr')].map(row => "
            "[...row.children].map(cell => cell.textContent))"
        )
        assert len(shown) == 100
        for name, _, used, peak, allocatable, memory, *_ in shown[1:]:
            (row,) = table.lookup([name])
            assert float(used) == pytest.approx(cpu[row], abs=0.006)
            assert float(peak) == pytest.approx(table["peak_cpu_cores"][row], abs=0.006)
            assert float(allocatable) == 4.0
            assert float(memory.split()[0]) * GIB == table["usage_memory_bytes"][row]
        # A change of the table is shown, without a new page.
        first = shown[1][0]
        table.put_state(node_state(first, cpu=3.21, age=0.0, offset=1))
        clock.jump(5.0)
        second_row = "document.querySelector('tbody tr:nth-child(2) td:nth-child(3)')"
        await page.becomes(f"{second_row}.textContent === '3.21'")
        assert all(url.startswith(base) for url in page.requested)
        assert page.problems == []


async def test_one_node_is_one_node(chromium: ChromiumFiles) -> None:
    async with opened(chromium, simulated(1)[0]) as (page, _):
        figure = await page.evaluate("document.querySelector('.totals').innerText")
        assert figure.split()[:2] == ["1", "node"]
        assert await page.evaluate("document.querySelector('caption').textContent") == "1 node"


async def test_filters_are_in_the_address_and_the_address_sets_them(
    chromium: ChromiumFiles,
) -> None:
    of, _, _ = simulated(1000)
    count = "document.querySelector('.totals b').textContent"
    async with opened(chromium, of, "#pool=pool-1&search=node-0009&amount=cpu_peak") as (page, _):
        assert await page.evaluate(count) == "5"
        assert await page.evaluate("document.querySelector('select').value") == "cpu_peak"
        await page.evaluate("document.querySelector('input[type=search]').value = ''")
        await page.evaluate(
            "document.querySelector('input[type=search]').dispatchEvent(new Event('input'))"
        )
        assert await page.evaluate(count) == "500"
        await page.click("input[type=checkbox]")
        assert await page.evaluate(count) == "10"
        assert await page.evaluate("location.hash") == "#amount=cpu_peak&pool=pool-1&hot=1"
        # The fullest first.
        assert await page.evaluate(CELL.format(3)) == "4.00"


async def test_a_node_is_reached_and_left_by_keys(chromium: ChromiumFiles) -> None:
    of, _, _ = simulated(300)
    async with opened(chromium, of, "#sort=name") as (page, _):
        await page.evaluate("document.querySelector('.map').focus()")
        for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft"):
            await page.press(key)
        readout = await page.evaluate("document.getElementById('readout').textContent")
        assert readout.startswith("node-00000: CPU 0.01, peak 0.02 of 4.00 cores")
        await page.press("Enter")
        await page.becomes("document.title.startsWith('node-00000')")
        assert await page.evaluate("location.hash") == "#node=node-00000&sort=name"
        await page.becomes("document.body.textContent.includes('Predicted peak of Prod')")
        assert await page.evaluate("document.activeElement.tagName") == "H1"
        await page.evaluate("history.back()")
        await page.becomes("!!document.querySelector('.map')")


@pytest.mark.parametrize(("width", "dark"), [(1280, True), (390, False)])
async def test_pages_are_accessible_and_fit(
    chromium: ChromiumFiles, packages: Path, width: int, dark: bool
) -> None:
    of, _, _ = simulated(500)
    async with opened(chromium, of, dark=dark, width=width) as (page, _):
        assert await violations(page, packages) == []
        assert await lowest_contrast(page) >= 4.5
        assert await page.evaluate("document.documentElement.scrollWidth") <= width
        await page.evaluate("delete window.found")
        await page.click("td a")
        await page.becomes("document.querySelectorAll('.uplot canvas').length === 2")
        assert await violations(page, packages) == []
        assert await page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.problems == []


async def test_hostile_names_are_text(chromium: ChromiumFiles) -> None:
    of, _, _ = simulated(300)
    async with opened(chromium, of) as (page, base):
        shown = HOSTILE.replace("\u202e", "\\u202e")
        assert await page.evaluate(CELL.format(1)) == shown
        await page.click("td a")
        await page.becomes("document.querySelectorAll('.uplot canvas').length === 2")
        text = await page.evaluate("document.getElementById('main').textContent")
        assert text.count(shown) >= 3  # of the node, a class and a pod
        assert await page.evaluate("window.ran") is None
        assert await page.evaluate("document.querySelectorAll('img').length") == 0
        assert all(url.startswith(base) for url in page.requested)
        assert page.problems == []


async def test_data_needs_the_token_that_queries_need(
    chromium: ChromiumFiles, tmp_path: Path
) -> None:
    file = tmp_path / "tokens"
    file.write_text("secret\n")
    of, _, _ = simulated(300, query_token_file=str(file))
    async with TestServer(of.app()) as server, chromium_page(chromium) as page:
        await page.open(str(server.make_url("/console")), online=True)
        await page.becomes("!!document.querySelector('input[type=password]')")
        assert await page.evaluate("document.querySelector('td')") is None
        # What no header can have is not sent, again and again.
        await page.evaluate("document.querySelector('input[type=password]').value = 'gehe\u20acim'")
        await page.click("form button")
        await page.becomes("document.body.textContent.includes('ASCII characters only')")
        await page.evaluate("document.querySelector('input[type=password]').value = 'secret'")
        await page.click("form button")
        await page.becomes("document.querySelectorAll('tbody tr').length === 100")
        assert not any("secret" in url for url in page.requested)
        assert await page.evaluate("localStorage.length") == 0


async def test_the_page_says_what_is_wrong_backs_off_and_recovers(chromium: ChromiumFiles) -> None:
    of, _, _ = simulated(300)
    proxy = Proxy()
    age, problem = CELL.format(11), "document.getElementById('problem').textContent"
    async with opened(chromium, of, proxy=proxy) as (page, _):
        # The extender's clock is years behind that of the browser.
        assert await page.evaluate(age) == "10s"
        proxy.clock += 290.0  # Nothing else changes, so that the answer is 304.
        await page.evaluate(ASK_NOW)
        await page.becomes(f"{age} === '5m'")
        error = {"Error": "too many", "Hint": "wait"}
        for answer, text, least in [
            (lambda: web.Response(status=502, text="<b>"), "the answer has status 502", 7),
            (lambda: web.Response(text="<b>"), "status 200 and is not of", 15),
            (lambda: web.json_response({"kind": "Other"}), "no fleet document", 22),
            (lambda: web.json_response(error, status=403), "No update: too many; wait", 22),
            (lambda: web.json_response(
                error, status=429, headers={"Retry-After": "77"}), "too many", 77),
        ]:  # fmt: skip
            proxy.answer = answer
            await page.evaluate(f"window.pauses = []; {ASK_NOW}")
            await page.becomes("window.pauses.length > 0")
            assert text in await page.evaluate(problem)
            assert await page.evaluate("window.pauses[0]") >= 1000 * least
            assert await page.evaluate("document.querySelectorAll('tbody tr').length") == 100
        proxy.answer = None
        await page.evaluate(f"window.pauses = []; {ASK_NOW}")
        await page.becomes("window.pauses[0] === 5000")
        assert await page.evaluate(problem) == ""
        # Hidden: no query, and one of each document when it is shown.
        proxy.queries.clear()
        await page.evaluate(
            "Object.defineProperty(document, 'hidden', { value: true, configurable: true });"
            f"window.pauses = []; for (let i = 0; i < 9; i += 1) {ASK_NOW}; delete document.hidden"
        )
        await page.evaluate(ASK_NOW)
        await page.becomes("window.pauses.length > 0")
        assert sorted(proxy.queries) == ["/v1/feeds", "/v1/fleet"]


async def test_updates_keep_the_place_of_the_reader(chromium: ChromiumFiles) -> None:
    of, table, clock = simulated(300)
    proxy = Proxy()
    async with opened(chromium, of, "#sort=name", proxy, width=390) as (page, _):
        await page.evaluate("document.querySelector('.map').focus()")
        await page.press("End")
        chosen = await page.evaluate("document.getElementById('readout').textContent")
        await page.evaluate("document.querySelector('tbody tr:nth-child(9) a').focus()")
        await page.evaluate("document.querySelector('.scroll').scrollLeft = 120")
        link = "document.activeElement.textContent"
        focused = await page.evaluate(link)
        table.put_state(node_state(" before all"))
        clock.jump(5.0)
        await page.evaluate(ASK_NOW)
        await page.becomes("document.querySelector('.totals b').textContent === '301'")
        assert await page.evaluate(link) == focused
        assert await page.evaluate("document.querySelector('.scroll').scrollLeft") == 120
        # Cells have moved: the chosen one is that of the same node.
        assert await page.evaluate("document.getElementById('readout').textContent") == chosen
        # A filter is about what is here: nothing is asked for.
        proxy.queries.clear()
        await page.evaluate("location.hash = '#search=node-0000'")
        await page.becomes("document.querySelector('.totals b').textContent === '10'")
        assert proxy.queries == []


async def test_any_address_opens_a_page(chromium: ChromiumFiles) -> None:
    of, table, _ = simulated(300)
    garbage = "#amount=constructor&sort=__proto__&hot=0&toString=1&%E0%A4"
    async with opened(chromium, of, garbage) as (page, _):
        selects = "[...document.querySelectorAll('select')].map(s => s.value)"
        assert await page.evaluate(selects) == ["cpu_usage", "value", ""]
        await page.evaluate("location.hash = '#pool=gone'")
        await page.becomes("document.body.textContent.includes('No node passes the filters')")
        assert await page.evaluate(selects) == ["cpu_usage", "value", "gone"]
        name = "encodeURIComponent('\\u202e\\u061c\\u{e0041}')"
        await page.evaluate(f"location.hash = '#span=x&node=' + {name}")
        await page.becomes("document.body.textContent.includes('No window of this node is known')")
        assert await page.evaluate("document.title") == "\\u202e\\u061c\\u{e0041} – Springtide"
        assert await page.evaluate("document.querySelector('select').value") == "3600"
        # A node that leaves takes its figures with it.
        await page.evaluate("location.hash = '#node=node-00001'")
        await page.becomes("document.querySelectorAll('table').length > 2")
        table.drop_state("node-00001")
        table.drop_node("node-00001")
        await page.evaluate(ASK_NOW)
        await page.becomes("document.querySelectorAll('table').length === 0")
        assert await page.evaluate("document.getElementById('problem').textContent") == ""
        assert [each for each in page.problems if "exceptionDetails" in each] == []


async def test_an_inaccessible_page_is_noticed(
    chromium: ChromiumFiles, packages: Path, tmp_path: Path
) -> None:
    """What the tests above look for is seen where it is missing."""
    broken = tmp_path / "broken.html"
    broken.write_text('<html lang="en"><title>t</title><main><h1>t</h1><input></main></html>')
    async with chromium_page(chromium) as page:
        await page.open(broken.as_uri())
        assert [each.split(":")[0] for each in await violations(page, packages)] == ["label"]


@pytest.mark.parametrize(
    ("copy", "original"),
    [
        ("uplot.js", "dist/uPlot.esm.js"),
        ("uplot.css", "dist/uPlot.min.css"),
        ("uplot.LICENSE", "LICENSE"),
    ],
)
def test_files_of_others_are_as_they_published_them(
    packages: Path, copy: str, original: str
) -> None:
    assert (CONSOLE / copy).read_bytes() == (packages / "uplot" / original).read_bytes()
