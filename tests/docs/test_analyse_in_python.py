"""The page on Python is a notebook: its cells run in order, and print what the page shows."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.docs.guides import GUIDES
from tests.notebook.simulated_log import logged, simulated_windows, write_archive

TEXT = (GUIDES / "analyse-in-python.md").read_text()
TRACES = Path(__file__).parents[1] / "data" / "traces"
DAYS = 2


class Cell(NamedTuple):
    """A block of Python, and the output that the page shows below it."""

    code: str
    output: str


CELLS = [
    Cell(*found)
    for found in re.findall(
        r"^```python\n(.*?)^```\n\n```text\n(.*?)^```\n", TEXT, re.M | re.S
    )
]  # fmt: skip


def run(cells: list[Cell]) -> list[Cell]:
    """The cells with the output that they have in one process, one after the other."""
    names: dict[str, Any] = {}
    done = []
    for cell in cells:
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(cell.code, "<cell>", "exec"), names)
        done.append(Cell(cell.code, output.getvalue()))
    return done


def test_every_cell_of_the_page_has_its_output() -> None:
    assert len(CELLS) == TEXT.count("```python") == TEXT.count("```text")


@pytest.mark.slow
def test_cells_print_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_archive(tmp_path / "windows", logged(simulated_windows(DAYS)))
    (tmp_path / "traces").symlink_to(TRACES)
    monkeypatch.chdir(tmp_path)
    assert run(CELLS) == CELLS
