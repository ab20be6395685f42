"""MkDocs hook: the pages and files outside of docs/ that the site has, and links to them.

Links in Markdown are paths of the repository, so that they work where it is browsed. The site has
README.md and CHANGELOG.md as pages, and every other file that a page links to as text in `source/`.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parents[2]
OUTER_PAGES: Final = {"README.md": "index.md", "CHANGELOG.md": "changelog.md"}
"""Pages outside of docs/, and where the site has them."""
ICON: Final = "pipeline/extender/console/icon.svg"
_LINK: Final = re.compile(r"(?<=\]\()([^)#:\s]+)(?=[)#])")
_MARKS: Final = re.compile(r"^```sh .*$", re.MULTILINE)
"""Such as `run=until-stopped`, which Python-Markdown does not take for the start of a block."""


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the outer pages, and the files that pages link to."""
    pages = list(files.documentation_pages())
    for path, page in OUTER_PAGES.items():
        pages.append(File.generated(config, page, abs_src_path=str(ROOT / path)))
        files.append(pages[-1])
    files.append(File.generated(config, "icon.svg", abs_src_path=str(ROOT / ICON)))
    linked = {target for page in pages for target in _outer_files(page)}
    for path in sorted(linked):
        source = str(ROOT / path)
        files.append(File.generated(config, place(path), abs_src_path=source))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Give the front page the room of the navigation, which its figure needs."""
    if page.file.src_uri == "index.md":
        page.meta["hide"] = ["navigation"]
    return page_text(markdown, page.file.src_uri)


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let an empty corner of a table be no heading: screen readers would announce it."""
    return html.replace("<th></th>", "<td></td>")


def page_text(markdown: str, page: str) -> str:
    """Let the links of a page lead to where the site has their targets; drop marks for tests."""
    here = repository_path(page)
    return _LINK.sub(lambda link: moved(link[0], here, page), _MARKS.sub("```sh", markdown))


def moved(target: str, here: str, page: str) -> str:
    """A link of the file `here` of the repository, as a link of `page` of the site."""
    path = _joined(here, target)
    if not (ROOT / path).is_file():
        return target
    return posixpath.relpath(place(path), posixpath.dirname(page))


def place(path: str) -> str:
    """Where the site has a file of the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return OUTER_PAGES.get(path, f"source/{path}.txt")


def repository_path(page: str) -> str:
    """The file of the repository that a page of the site is made of."""
    outer = {page: path for path, page in OUTER_PAGES.items()}
    return outer.get(page, f"docs/{page}")


def _outer_files(page: File) -> Iterator[str]:
    here = repository_path(page.src_uri)
    for target in _LINK.findall(page.content_string):
        path = _joined(here, target)
        if place(path).startswith("source/") and (ROOT / path).is_file():
            yield path


def _joined(here: str, target: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
