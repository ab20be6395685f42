"""The tables of settings, topics, predictors and plugins in docs agree with the declarations."""

from tests.docs.tables import pages


def test_pages_have_the_tables_of_the_declarations() -> None:
    stale = [page.name for page, text in pages().items() if page.read_text() != text]
    assert stale == [], "run `make docs`"
