"""The page on Python is a notebook: its cells run in order, and print what the page shows."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pipeline.settings import KafkaSettings
from pipeline.topics.registry import WINDOWS
from pipeline.topics.windows import encode_window
from tests.broker import send
from tests.docs.guides import GUIDES
from tests.integration.test_archive import create_topic
from tests.notebook.simulated_log import logged, simulated_windows, write_archive

TEXT = (GUIDES / "analyse-in-python.md").read_text()
TRACES = Path(__file__).parents[1] / "data" / "traces"
DAYS = 2


class Cell(NamedTuple):
    """A block of Python, and the output that the page shows below it."""

    code: str
    output: str

    @property
    def needs_broker(self) -> bool:
        return "read_topic(" in self.code


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
    assert [cell.needs_broker for cell in CELLS].count(True) == 1


@pytest.mark.slow
def test_cells_print_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_archive(tmp_path / "windows", logged(simulated_windows(DAYS)))
    (tmp_path / "traces").symlink_to(TRACES)
    monkeypatch.chdir(tmp_path)
    cells = [cell for cell in CELLS if not cell.needs_broker]
    assert run(cells) == cells


@pytest.mark.broker
async def test_the_cell_that_reads_the_topic_prints_what_the_page_shows(
    kafka: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_topic(kafka)
    windows = simulated_windows(DAYS)
    await send(kafka, WINDOWS, *((w.header.node, encode_window(w)) for w in windows))
    monkeypatch.setenv("SPRINGTIDE_KAFKA_TOPIC_PREFIX", kafka.topic_prefix)
    monkeypatch.setenv("SPRINGTIDE_KAFKA_PARTITIONS", str(kafka.partitions))
    (cell,) = [cell for cell in CELLS if cell.needs_broker]
    own = cell._replace(code=cell.code.replace("kafka-0:9092", kafka.bootstrap_servers))
    assert [done.output for done in run([own])] == [cell.output]
