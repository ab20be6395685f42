"""The documentation builds as a site: every link and anchor leads somewhere, and nothing on its
pages is loaded from elsewhere.
"""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.docs.site_build import ROOT, build_site
from tests.docs.site_hook import moved, page_text

DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_site(tmp_path_factory.mktemp("site"))


class Loaded(HTMLParser):
    """What a browser loads to show a page: scripts, styles, pictures, frames."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = {"link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src"}
        self.addresses += [value or "" for name, value in attrs if name == names.get(tag)]


def loaded(page: str) -> list[str]:
    parser = Loaded()
    parser.feed(page)
    return parser.addresses


def test_every_document_is_a_page(site: Path) -> None:
    documents = {path.relative_to(DOCS) for path in DOCS.rglob("*.md")} - {Path("README.md")}
    missing = [path for path in documents if not (site / path).with_suffix(".html").exists()]
    assert missing == []
    assert "<h1" in (site / "index.html").read_text()
    assert "<h1" in (site / "changelog.html").read_text()


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        addresses = loaded(page.read_text())
        assert len(addresses) > 3, page
        assert [each for each in addresses if re.match(r"(\w+:)?//", each)] == [], page
    for style in site.rglob("*.css"):
        assert not re.findall(r"url\([\"']?(?:https?:)?//|@import", style.read_text()), style


def test_blocks_and_tables_are_drawn_as_such(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = re.sub(r"<(pre|code|script|style)\b.*?</\1>", "", page.read_text(), flags=re.S)
        assert "```" not in text, page
        assert not re.findall(r"^\|.*\|$|^- |\]\(", text, re.M), page


def test_what_belongs_to_a_list_is_indented_by_four() -> None:
    """With less, Python-Markdown ends the list; hosts of repositories accept both."""
    for path in [*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md"]:
        text = re.sub(r"^( *)```.*?^\1```", "", path.read_text(), flags=re.M | re.S)
        assert not re.findall(r"\n\n {1,3}\S.*", text), path


def test_the_index_of_docs_has_every_page() -> None:
    index = (DOCS / "README.md").read_text()
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")} - {"README.md"}
    assert pages - set(re.findall(r"\]\(([^)#]+)", index)) == set()


@pytest.mark.parametrize(
    ("link", "file", "page", "expected"),
    [
        ("../how-to/install.md", "docs/reference/roles.md", "reference/roles.md",
         "../how-to/install.md"),
        ("docs/architecture.md", "README.md", "index.md", "architecture.md"),
        ("docs/adr/0003-faust.md", "CHANGELOG.md", "changelog.md", "adr/0003-faust.md"),
        ("../../README.md", "docs/tutorials/first-cluster.md", "tutorials/first-cluster.md",
         "../index.md"),
        ("../pipeline/clock.py", "docs/architecture.md", "architecture.md",
         "source/pipeline/clock.py.txt"),
        ("../../pipeline/clock.py", "docs/adr/0003-faust.md", "adr/0003-faust.md",
         "../source/pipeline/clock.py.txt"),
        ("../no/such/file.md", "docs/architecture.md", "architecture.md", "../no/such/file.md"),
    ],
)  # fmt: skip
def test_links_lead_to_where_the_site_has_the_file(
    link: str, file: str, page: str, expected: str
) -> None:
    assert moved(link, file, page) == expected


def test_marks_of_blocks_are_dropped_and_code_stays() -> None:
    text = "[a](../pipeline/clock.py#x)\n\n```sh run=until-stopped\nls\n```\n\n```yaml\na: b\n```\n"
    assert page_text(text, "architecture.md") == (
        "[a](source/pipeline/clock.py.txt#x)\n\n```sh\nls\n```\n\n```yaml\na: b\n```\n"
    )


def test_a_page_that_loads_from_elsewhere_is_noticed() -> None:
    page = '<img src="x.svg"><script src=//cdn.example/a.js></script><a href="http://b">b</a>'
    assert loaded(page) == ["x.svg", "//cdn.example/a.js"]
