"""The generated tables in docs agree with the declarations."""

import pytest

from tests.docs.tables import filled, pages


def test_pages_have_the_tables_of_the_declarations() -> None:
    stale = [page.name for page, text in pages().items() if page.read_text() != text]
    assert stale == [], "run `make docs`"


def test_a_table_replaces_what_is_between_its_marks_and_nothing_else() -> None:
    page = "a\n<!-- table x -->\nold\n<!-- end -->\nb\n<!-- table y -->\n<!-- end -->\nc\n"
    once = filled(page, {"x": "new\n", "y": "rows"}, "p.md")
    assert once == page.replace("old", "new").replace("y -->\n", "y -->\nrows\n")
    assert filled(once, {"x": "new\n", "y": "rows"}, "p.md") == once


@pytest.mark.parametrize(
    "page",
    [
        "", "<!-- table x -->\n", "<!-- end -->\n<!-- table x -->\n",
        "<!--table x-->\n<!-- end -->",
        "<!-- table x -->\n<!-- table y -->\n<!-- end -->",
        "<!-- table x -->\n<!-- end -->\n<!-- table x -->\n<!-- end -->",
    ],
)  # fmt: skip
def test_a_page_without_the_marks_of_a_table_is_an_error(page: str) -> None:
    with pytest.raises(
        ValueError, match=r"p\.md must have <!-- table x --> once, and <!-- end -->"
    ):
        filled(page, {"x": "new"}, "p.md")
