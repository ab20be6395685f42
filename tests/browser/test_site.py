"""The documentation's site in a real browser: search, colours, phone width, nothing from elsewhere.

A machine without Chromium or npm fetches what it needs; where that is impossible, the tests are
skipped with the reason, or errors with REQUIRE_BROWSER=1.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.browser.accessibility import violations
from tests.browser.chromium_files import ChromiumFiles
from tests.browser.chromium_page import Page, chromium_page
from tests.browser.drawn_figures import figure_problems
from tests.docs.site_build import build_site

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

OF_THE_THEME = {"aria-dialog-name", "landmark-unique", "scrollable-region-focusable"}
"""What axe-core finds in Material's own elements: the search dialog, the buttons that copy code,
and code and tables that scroll, which Chromium itself lets the keyboard reach."""
SEARCH = """document.querySelector('.md-search__input').value = 'hot node';
document.querySelector('.md-search__input').dispatchEvent(new Event('keyup', {bubbles: true}))"""
FOUND = "[...document.querySelectorAll('.md-search-result__item > a')].map(a => a.pathname)"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_site(tmp_path_factory.mktemp("site"))


@asynccontextmanager
async def opened(
    chromium: ChromiumFiles, site: Path, path: str, **more: Any
) -> AsyncIterator[Page]:
    """A page of the site, which may report no problem and ask nobody but its server."""
    app = web.Application()
    app.router.add_static("/", site)
    async with TestServer(app) as server, chromium_page(chromium) as page:
        await page.open(str(server.make_url(path)), online=True, **more)
        yield page
        assert page.problems == []
        base = str(server.make_url("/"))
        assert [each for each in page.requested if not each.startswith((base, "data:"))] == []


@pytest.mark.parametrize(
    ("path", "width", "dark"),
    [
        ("/index.html", 1280, False),
        ("/index.html", 420, True),
        ("/reference/settings.html", 1280, True),
        ("/explanation/performance.html", 420, False),
    ],
)
async def test_pages_are_readable(
    chromium: ChromiumFiles, packages: Path, site: Path, path: str, width: int, dark: bool
) -> None:
    async with opened(chromium, site, path, width=width, dark=dark) as page:
        assert await page.evaluate("document.querySelectorAll('table').length") >= 1
        assert await page.evaluate("document.documentElement.scrollWidth") <= width
        back = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert back == ("rgb(18, 23, 29)" if dark else "rgb(255, 255, 255)")
        found = {each.split(":")[0] for each in await violations(page, packages)}
        assert found <= OF_THE_THEME


async def test_search_finds_a_page(chromium: ChromiumFiles, site: Path) -> None:
    async with opened(chromium, site, "/index.html") as page:
        await page.click("[for=__search]")
        await page.becomes("document.activeElement.classList.contains('md-search__input')")
        await page.evaluate(SEARCH)
        found = await page.becomes(f"{FOUND}.length > 1 && {FOUND}")
        assert "/how-to/relieve-hot-nodes.html" in found[:3]


@pytest.mark.parametrize("name", ["data-flow.svg", "peak-to-batch.svg"])
async def test_figures_of_the_concepts_are_whole(
    chromium: ChromiumFiles, site: Path, name: str
) -> None:
    async with chromium_page(chromium) as page:
        await page.open((site / "explanation" / name).as_uri())
        assert await figure_problems(page) == []
