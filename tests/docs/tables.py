"""Write the tables of declarations into docs, between `<!-- table NAME -->` and `<!-- end -->`.

python -m tests.docs.tables    # `make docs`
"""

from pathlib import Path

from pipeline.processors.predictors.documentation import markdown
from pipeline.processors.predictors.registry import PREDICTORS
from pipeline.processors.scorers.registry import SCORERS
from pipeline.settings import settings_markdown
from pipeline.topics.registry import markdown_table

DOCS = Path(__file__).parents[2] / "docs"


def pages() -> dict[Path, str]:
    """Each page with tables of declarations, as it should be."""
    declarations = {name: PREDICTORS.get(name).declaration for name in PREDICTORS.points}
    predictors, options, terms = markdown(declarations).split("\n\n")
    scorers = map(SCORERS.get, SCORERS.points)
    plugins = [f"| `{s.name}` | {s.source} | {s.text} |" for s in scorers]
    tables = {
        "explanation/models.md": {"predictors": predictors, "options": options, "terms": terms},
        "reference/extender.md": {
            "plugins": "\n".join(["| plugin | from | what it does |", "|---|---|---|", *plugins])
        },
        "reference/topics.md": {"topics": markdown_table()},
    }
    written = {DOCS / page: _filled(DOCS / page, of_page) for page, of_page in tables.items()}
    return written | {DOCS / "reference" / "settings.md": settings_markdown()}


def _filled(page: Path, tables: dict[str, str]) -> str:
    text = page.read_text()
    for name, table in tables.items():
        begin, end = f"<!-- table {name} -->", "<!-- end -->"
        if text.count(begin) != 1:
            raise ValueError(f"{page} must have {begin} once, with {end} below the table")
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{table.strip()}\n{end}{rest.split(end, 1)[1]}"
    return text


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text)
