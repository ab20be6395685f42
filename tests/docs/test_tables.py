"""The generated tables in docs agree with the declarations."""

import pytest

from tests.docs.metric_tables import declarations, unit_of
from tests.docs.tables import filled, pages


def test_pages_have_the_tables_of_the_declarations() -> None:
    stale = [page.name for page, text in pages().items() if page.read_text() != text]
    assert stale == [], "run `make docs`"


def test_every_metric_has_help_and_the_unit_of_its_name() -> None:
    for name, metric in declarations().items():
        assert metric.documentation.endswith("."), name
        assert unit_of(metric)
        base_unit = name.removesuffix("_total").rpartition("_")[2]
        assert base_unit not in ("percent", "milliseconds", "ms", "kb", "mb", "millicores"), name


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
