"""The console's pages about hot nodes, accuracy and policy in a real browser, how unknown is drawn,
and an open page whose extender is killed, or whose Kafka is away, and returns."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from pipeline.clock import SystemClock
from pipeline.errors import BrokerUnavailableError
from pipeline.extender.console_reading import relief_feed
from pipeline.kafka.client import client_options
from pipeline.kafka.topic_admin import apply_topics
from pipeline.local.local_kafka import LocalKafka
from pipeline.local.port_probe import free_port
from pipeline.local.process_guard import die_with_parent
from pipeline.processors.console import limits
from pipeline.processors.console.relief_log import ReliefLog
from pipeline.processors.console.what_if_document import PublishedResults, WhatIf
from pipeline.settings import KafkaSettings
from pipeline.table import Feed, FeedState, Table
from pipeline.table.node_columns import TableNode
from pipeline.topics.alerts import RULES
from pipeline.topics.codec import encode_json
from pipeline.topics.hot_node_policy import HotNodePolicy
from pipeline.topics.overcommit_policy import Overcommit
from pipeline.topics.registry import NODE_STATE
from tests.broker import send
from tests.browser.accessibility import violations
from tests.browser.chromium_files import ChromiumFiles
from tests.browser.chromium_page import Page, chromium_page
from tests.browser.drawn_figures import lowest_contrast
from tests.browser.test_console import ASK_NOW, HOSTILE, HOT, Proxy, opened, simulated
from tests.extender.conftest import running
from tests.extender.console_samples import MADE, plan
from tests.processes import until
from tests.table.records import NOW, node_state
from tests.topics.golden import WHAT_IF

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

TEXT = "document.getElementById('main').textContent"
PAGES = {
    "Hot nodes": "Plans of the last", "Accuracy": "Judged peaks", "Policy": "Policy 1",
    "What-if": "Policy difference",
}  # fmt: skip
"""The links in the head, and what their pages show when they are complete."""
HURRY = "const start = window.setTimeout; window.setTimeout = (f, t) => start(f, t / 10);"
"""Pauses between queries pass ten times as fast."""
PROBLEM = "document.getElementById('problem').textContent"


async def go_to(page: Page, name: str, text: str) -> str:
    """Follow the link in the head, and return the text of the page once it has `text`."""
    await page.click(f"#pages a:nth-child({[*PAGES].index(name) + 2})")
    await page.becomes(f"{TEXT}.includes({text!r})")
    return str(await page.evaluate(TEXT))


async def no_results() -> Callable[[], WhatIf]:
    return PublishedResults().document


async def table_rows(page: Page, caption: str) -> list[list[str]]:
    """The cells of the table whose caption begins so."""
    found: list[list[str]] = await page.evaluate(
        "[...document.querySelectorAll('table')].find(table => "
        f"table.caption.textContent.startsWith({caption!r}))"
        ".querySelectorAll('tbody tr').values().map(row => "
        "[...row.children].map(cell => cell.textContent)).toArray()"
    )
    return found


async def test_pages_show_what_the_documents_have(chromium: ChromiumFiles) -> None:
    of, table, _ = simulated(300)
    policy = HotNodePolicy(pool="gpu", high_percent={"cpu": 60.0})
    for index in range(2):
        own = Overcommit(buffer_percent=5)
        table.put_node(TableNode(node=f"node-{index:05}", overcommit=own, hot_nodes=policy))
    async with opened(chromium, of, "#pool=gpu", Proxy()) as (page, base):
        text = await go_to(page, "Hot nodes", "Plans of the last 2 hours")
        assert await page.evaluate("location.hash") == "#page=relief&pool=gpu"
        assert await page.evaluate("document.activeElement.tagName") == "H1"
        figures = "[...document.querySelectorAll('.totals b')].map(b => b.textContent)"
        assert await page.evaluate(figures) == ["3", "3", "1", "1", "0", "1"]
        assert "No hot node of this pool is listed." in text
        assert "cpu 92.0% is above 80.0%. It helped: the node cooled." in text
        assert await table_rows(page, "1 alert of the planner") == [
            ["pool gpu", "no node of the pool can take pods", "critical", "10m",
             "all 3 nodes are hot"],
        ]  # fmt: skip
        assert await table_rows(page, "3 pods by LowNodeLoad, plan p1") == [
            ["jobs/crunch-0", "batch", "node-00001", "0.25", "1.00 GiB", "evicted", ""],
            ["jobs/crunch-1", "batch", "node-00001", "0.25", "1.00 GiB", "refused",
             "a PodDisruptionBudget allows no eviction"],
            ["jobs/crunch-2", "batch", "node-00001", "0.25", "1.00 GiB", "no action known", ""],
        ]  # fmt: skip
        text = await go_to(page, "Accuracy", "Judged peaks of pool gpu")
        assert "usage of CPU exceeded 100.0% of its 2 peaks" in text
        assert "The declared risk is 2.0%: exceeded." in text
        first, second, *_ = await table_rows(page, "Judged peaks of pool gpu")
        assert first[:12] == [
            "calibrated", "CPU", "100.0% above risk", "2.0%", "25.0%", "37.5%", "20.0%", "100.0%",
            "2", "0", "2", "2",
        ]  # fmt: skip
        assert second[:11] == [
            "calibrated", "memory", "–", "2.0%", "–", "–", "–", "–", "0", "2", "0",
        ]  # fmt: skip
        text = await go_to(page, "Policy", "Policy 3: 2 nodes")
        assert "the extender lets cpu of a node be filled to 65%, but above 60% it is hot" in text
        assert ["buffer", "5%"] in await table_rows(page, "Mid and Batch")
        assert await table_rows(page, "2 nodes") == [
            ["node-00000", "gpu", "policy 3"], ["node-00001", "gpu", "policy 3"],
        ]  # fmt: skip
        text = await go_to(page, "What-if", "Policy difference")
        assert "new.yaml compared with old.yaml, published 9m ago." in text
        assert await table_rows(page, "live: 7.0 days, 2 nodes") == [
            ["batch cpu, cores", "1.00", "1.50", "+0.50"],
            ["cpu violation", "–", "2.0%", "–"],
        ]
        lines = "[...document.querySelectorAll('.difference span')].map(of => of.textContent)"
        assert await page.evaluate(lines) == [
            "--- old.yaml", "+++ new.yaml", "@@ -1 +1 @@", "-a: 60", "+a: 70",
        ]  # fmt: skip
        label = "document.querySelector('.chart').getAttribute('aria-label')"
        assert await page.evaluate(label) == (
            "batch cpu, cores from node to node: before half of the nodes are below 0.60, "
            "after half of the nodes are below 0.80"
        )
        assert "bad: WhatIfRecord cannot be decoded" in text
        # The address names the result.
        await page.evaluate(
            "(select => { select.value = 'first'; select.dispatchEvent(new Event('change')) })"
            "(document.querySelector('select[name=result]'))"
        )
        await page.becomes(f"{TEXT}.includes('The files are equal')")
        assert await page.evaluate("location.hash") == "#page=what-if&pool=gpu&result=first"
        assert await page.evaluate("document.querySelectorAll('.uplot').length") == 0
        await page.evaluate("location.hash = '#page=what-if&result=gone'")
        await page.becomes(f"{TEXT}.includes('is not published, or is no longer listed')")
        # Without a result the page says which command publishes one.
        of._console_documents._what_if._next_at = 0.0
        of._console_documents._what_if._read = no_results
        await page.evaluate(ASK_NOW)
        await page.becomes(f"{TEXT}.includes('--against old.yaml --publish NAME')")
        await page.evaluate("history.go(-2)")
        await page.becomes("document.title === 'Policy – Springtide'")
        assert all(url.startswith(base) for url in page.requested)
        assert page.problems == []


@pytest.mark.parametrize(("width", "dark"), [(1280, True), (390, False)])
async def test_pages_are_accessible_and_fit(
    chromium: ChromiumFiles, packages: Path, width: int, dark: bool
) -> None:
    of, _, _ = simulated(300)
    async with opened(chromium, of, dark=dark, width=width) as (page, _):
        for name, text in PAGES.items():
            await go_to(page, name, text)
            assert await page.evaluate("document.documentElement.scrollWidth") <= width, name
            assert await lowest_contrast(page) >= 4.5, name
            await page.evaluate("delete window.found")
            assert await violations(page, packages) == [], name
            current = "document.querySelector('#pages [aria-current=page]').textContent"
            assert await page.evaluate(current) == name
        assert page.problems == []


async def test_long_names_of_results_fit_a_phone(chromium: ChromiumFiles) -> None:
    of, _, _ = simulated(100)
    measure = msgspec.structs.replace(WHAT_IF.traces[0].measures[0], label="l" * 200)
    trace = msgspec.structs.replace(WHAT_IF.traces[0], dataset="d" * 200, measures=(measure,))
    longest = "n" * 63
    record = msgspec.structs.replace(WHAT_IF, name=longest, policy="p" * 200, traces=(trace,))

    async def results() -> Callable[[], WhatIf]:
        published = PublishedResults()
        published.take(longest.encode(), encode_json(record), MADE)
        return published.document

    of._console_documents._what_if._read = results
    async with opened(chromium, of, "#page=what-if", width=390) as (page, _):
        await page.becomes(f"{TEXT}.includes('Policy difference')")
        assert await page.evaluate("document.querySelector('select').value") == longest
        assert await page.evaluate("document.documentElement.scrollWidth") <= 390


async def test_hostile_texts_are_text_and_what_is_not_read_is_unknown(
    chromium: ChromiumFiles,
) -> None:
    of, table, _ = simulated(100)
    log: ReliefLog = of._console_documents._relief.log
    log.take_plan(plan(HOSTILE, why=HOSTILE, planner=HOSTILE, strategy=HOSTILE), MADE, NOW)
    proxy = Proxy()
    async with opened(chromium, of, proxy=proxy) as (page, _):
        text = await go_to(page, "Hot nodes", "Plans of the last 2 hours")
        assert text.count(HOSTILE.replace("\u202e", "\\u202e")) >= 4
        assert await page.evaluate("window.ran") is None
        assert await page.evaluate("document.querySelectorAll('img').length") == 0
        of._console_documents._relief.state.caught_up = False
        table.put_state(node_state("hot no more", age=0.0))
        of._console_documents._kept_relief._made_at = 0.0
        await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        await page.becomes(f"{TEXT}.includes('Not known: plans and their outcomes are not read')")
        figures = "[...document.querySelectorAll('.totals b')].map(b => b.textContent)"
        assert await page.evaluate(figures) == ["1", "1", "–", "–", "–", "–"]
        # What only some feeds lack is named with the reason.
        lacking = FeedState(message=f"waiting for topic {HOSTILE}")
        of._feeds._feeds = [("table", FeedState(connected=True)), ("history", lacking)]
        await page.evaluate(ASK_NOW)
        text = f"Not up to date: history (waiting for topic {HOSTILE})."
        shown = text.replace("\u202e", "\\u202e")
        await page.becomes(f"document.getElementById('outage').textContent === {shown!r}")
        assert await page.evaluate("window.ran") is None


async def test_a_page_says_that_it_is_old_until_it_can_be_read_again(
    chromium: ChromiumFiles,
) -> None:
    of, _, _ = simulated(60)
    documents = of._console_documents

    async def fail() -> Callable[[], WhatIf]:
        raise BrokerUnavailableError("no broker answers")

    async with opened(chromium, of, proxy=Proxy()) as (page, _):
        for name, document in (("Accuracy", documents._accuracy), ("What-if", documents._what_if)):
            await go_to(page, name, PAGES[name])
            read = document._read
            document._read, document._next_at = fail, 0.0
            await page.evaluate(ASK_NOW)
            await page.becomes(f"{TEXT}.includes('cannot be read: no broker answers')")
            assert PAGES[name] in await page.evaluate(TEXT)
            document._read, document._next_at = read, 0.0
            await page.evaluate(ASK_NOW)
            await page.becomes(f"!{TEXT}.includes('Not up to date')")
        # Beside what is read a topic is missing.
        missing = FeedState(connected=True, missing=("springtide.alerts",))
        of._feeds._feeds = [("table", FeedState(connected=True)), ("plans and actions", missing)]
        await page.evaluate(ASK_NOW)
        text = "Missing, or without a right to read: springtide.alerts."
        await page.becomes(f"document.getElementById('outage').textContent === {text!r}")


async def test_an_update_keeps_the_focus_and_the_selection(chromium: ChromiumFiles) -> None:
    of, _, clock = simulated(300)
    log: ReliefLog = of._console_documents._relief.log
    log.take_plan(plan("p2"), MADE + 1, NOW)  # of the same node, which is hot, too
    proxy = Proxy()
    async with opened(chromium, of, proxy=proxy) as (page, _):
        await go_to(page, "Hot nodes", "Plans of the last 2 hours")
        links = "[...document.querySelectorAll('#main a')]"
        await page.evaluate("document.querySelectorAll('h3 a')[1].focus()")
        place = await page.evaluate(f"{links}.indexOf(document.activeElement)")
        caption = "[...document.querySelectorAll('caption')].at(-1)"
        await page.evaluate(f"getSelection().selectAllChildren({caption})")
        assert "plan p1" in await page.evaluate("String(getSelection())")
        log.take_plan(plan("p0"), MADE - 1, NOW)  # shown below
        clock.jump(5.0)
        proxy.clock += 300.0
        await page.evaluate(ASK_NOW)
        await page.becomes(f"{TEXT}.includes('plan p0')")
        assert await page.evaluate(f"{links}.indexOf(document.activeElement)") == place
        assert "plan p1" in await page.evaluate("String(getSelection())")
        assert "15m ago" in await page.evaluate(TEXT)


async def test_what_is_not_listed_is_said_and_counted(chromium: ChromiumFiles) -> None:
    of, table, _ = simulated(60)
    log: ReliefLog = of._console_documents._relief.log
    for number in range(limits.PLANS):
        log.take_plan(plan(f"n{number}"), MADE + 1, NOW)
    alerts = tuple(msgspec.structs.replace(HOT, rule=rule) for rule in RULES)
    for number in range(300):
        table.put_state(node_state(f"hot-{number:03}", age=0.0, alerts=alerts))
    for number in range(limits.POLICIES + 1):
        own = Overcommit(resource_diff_threshold=0.07, mid_static_cpu_reserved_percent=number)
        table.put_node(TableNode(node=f"node-{number:05}", overcommit=own))
    async with opened(chromium, of, proxy=Proxy()) as (page, _):
        text = await go_to(page, "Hot nodes", "Plans of the last 2 hours")
        figures = "[...document.querySelectorAll('.totals b')].map(b => b.textContent)"
        assert (await page.evaluate(figures))[:3] == ["300", "300", "at least 200"]
        assert "1000 open alerts, of the first 1000 of 1200" in text
        assert "The newest 50 of at least 200 plans." in text
        text = await go_to(page, "Policy", "Policy 1")
        assert "3 further policies of fewer nodes: not listed." in text
        await page.evaluate("location.hash = '#page=policy&search=node-'")
        await page.becomes(f"{TEXT}.includes('59 nodes')")
        listed = [row[2] for row in await table_rows(page, "59 nodes")]
        assert sorted(policy for policy in listed if "not listed" in policy) == [
            f"policy {number}, not listed" for number in (51, 52, 53)
        ]
        assert ["resource diff threshold", "7%"] in await table_rows(page, "Mid and Batch")


async def colours_of_cells(page: Page, nodes: int) -> list[list[list[int]]]:
    """The colours in the middle and near a corner of each cell of the map."""
    cells: list[list[list[int]]] = await page.evaluate(f"""(() => {{
      const map = document.querySelector(".map"), size = 36, context = map.getContext("2d");
      const colour = (x, y) => [...context.getImageData(x, y, 1, 1).data].slice(0, 3);
      return [...Array({nodes}).keys()].map(index => {{
        const x = index % Math.floor(map.width / size) * size;
        const y = Math.floor(index / Math.floor(map.width / size)) * size;
        return [colour(x + size / 2 - 1, y + size / 2 - 1), colour(x + 5, y + 12)];
      }});
    }})()""")
    return cells


@pytest.mark.parametrize("dark", [False, True])
async def test_an_unknown_cell_looks_like_no_share_of_allocatable(
    chromium: ChromiumFiles, dark: bool
) -> None:
    of, table, _ = simulated(0)
    for share in range(11):
        table.put_state(node_state(f"share-{share:02}", cpu=share / 2.5, age=10.0))
    table.put_state(node_state("unknown", cpu=None, age=10.0))
    table.put_state(node_state("unmeasured-stale", cpu=1.6, age=9000.0))
    async with opened(chromium, of, "#sort=name", dark=dark) as (page, _):
        *shares, unknown, stale = await colours_of_cells(page, 13)
        page_colour = [18, 23, 29] if dark else [255, 255, 255]
        # A share fills its cell with a colour of its own; other cells are as empty as the page.
        assert all(middle == corner != page_colour for middle, corner in shares)
        assert len({tuple(middle) for middle, _ in shares}) == 11
        for middle, corner in (unknown, stale):
            assert corner == page_colour
            assert middle != corner  # the dot or the line
            assert middle not in [colour for colour, _ in shares]


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True


@contextmanager
def extender_process(port: int) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-m", "tests.browser.console_process", str(port)]
    with subprocess.Popen(command, preexec_fn=die_with_parent) as process:
        try:
            yield process
        finally:
            process.kill()


async def test_an_open_page_survives_the_kill_of_its_extender(chromium: ChromiumFiles) -> None:
    port = free_port()
    address = f"http://127.0.0.1:{port}/console#sort=name"
    as_of = "document.getElementById('as-of').textContent"
    rows = "document.querySelectorAll('tbody tr').length"
    async with chromium_page(chromium) as page:
        await page.call("Page.enable")
        await page.call("Page.addScriptToEvaluateOnNewDocument", source=HURRY)
        with extender_process(port) as process:
            await until(lambda: listens(port))
            await page.open(address, online=True)
            await page.becomes(f"{rows} === 100")
            assert "ago" not in await page.evaluate(as_of)
            process.kill()
        await page.becomes(f"{PROBLEM} === 'No update: the extender cannot be reached'")
        await page.becomes(f"/^As of .*, [1-9][0-9]*[sm] ago$/.test({as_of})")
        assert await page.evaluate(rows) == 100
        with extender_process(port):
            # Without a click or a new page.
            await page.becomes(f"{PROBLEM} === '' && !{as_of}.includes('ago')")
            assert await page.evaluate(rows) == 100


async def test_an_open_page_says_that_kafka_is_away_until_it_returns(
    chromium: ChromiumFiles, packages: Path, broker: LocalKafka, kafka: KafkaSettings
) -> None:
    client, clock = client_options(kafka), SystemClock()
    await apply_topics(kafka)
    await send(kafka, NODE_STATE, ("a", encode_json(node_state("a"))))
    plans, relief = relief_feed(client, kafka.topic_prefix, clock)
    feed = Feed(Table(), client=client, prefix=kafka.topic_prefix, clock=clock)
    outage = "document.getElementById('outage').textContent"
    rows = "document.querySelectorAll('tbody tr').length"
    async with running(feed, plans=plans, relief=relief) as port, chromium_page(chromium) as page:
        await until(lambda: feed.state.caught_up and plans.state.caught_up)
        await page.call("Page.enable")
        await page.call("Page.addScriptToEvaluateOnNewDocument", source=HURRY)
        await page.open(f"http://127.0.0.1:{port}/console", online=True, width=390)
        await page.becomes(f"{rows} === 1")
        assert await page.evaluate(outage) == ""
        assert broker.pid is not None
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            await page.becomes(f"{outage}.startsWith('Kafka has not answered since ')")
            last = 1000 * max(feed.state.contact or 0.0, plans.state.contact or 0.0)
            said = await page.evaluate(f"new Date({last}).toLocaleString()")
            assert said in await page.evaluate(outage)
            assert await page.evaluate(rows) == 1
            assert await violations(page, packages) == []
            assert await page.evaluate("document.documentElement.scrollWidth") <= 390
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        await page.becomes(f"{outage} === ''")
