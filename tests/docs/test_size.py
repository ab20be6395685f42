"""The table of sizes has only numbers of the sections that it names."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/how-to/size.md"
ROW = re.compile(r"^\| [^|]+ \| [^|]+ \| ([^|]+) \| \[[^]]+\]\(([^)#]+)#([^)]+)\) \|$", re.M)


def section(document: Path, anchor: str) -> str:
    """The text below a heading, without the headings of the same or a higher level after it."""
    parts = re.split(r"^(?=##? )", document.read_text(), flags=re.M)
    (found,) = [part for part in parts if anchor in anchors_of(part)]
    return found


def anchors_of(part: str) -> set[str]:
    heading = part.split("\n", 1)[0]
    return {re.sub(r"[^\w -]", "", heading.lstrip("# ").lower()).replace(" ", "-")}


def test_every_number_is_in_the_section_that_the_row_names() -> None:
    rows = ROW.findall(PAGE.read_text())
    assert len(rows) == PAGE.read_text().count("\n| ") - 1
    for measured, document, anchor in rows:
        source = section((PAGE.parent / document).resolve(), anchor)
        # A unit or a comma may follow, no further digit.
        missing = [
            number
            for number in re.findall(r"\d[\d,.]*\d|\d", measured)
            if not re.search(rf"(?<![\d.]){re.escape(number)}(?![\d.]*\d)", source)
        ]
        assert missing == [], (measured, anchor)
