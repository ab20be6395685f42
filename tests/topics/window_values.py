"""Values of windows in a form that tests can compare."""

from typing import Any

from pipeline.topics.sample_rows import read_samples
from pipeline.topics.samples import COLUMNS
from pipeline.topics.windows import POD_COLUMNS, Window


def column(window: Window, name: str) -> list[Any]:
    """One column of a sample or of `PodColumns`, a value for each row, None is unknown."""
    if name not in POD_COLUMNS:
        return [row.get(name) for row in read_samples(window.rows.sample.data).rows]
    values: list[Any] = [None] * len(window.rows)
    pods = window.rows.pods.decode().column(name)
    for row, value in zip(window.rows.listing.pods.tolist(), pods, strict=True):
        values[row] = value
    return values


def columns(window: Window) -> dict[str, list[Any]]:
    """All columns of a window, as `column` gives them."""
    return {name: column(window, name) for name in (*COLUMNS, *POD_COLUMNS)}
