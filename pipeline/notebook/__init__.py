"""Springtide in Python, for notebooks: past usage, predicted peaks and scores as Arrow tables.

    from pipeline import notebook

    usage = notebook.read_archive("windows")
    peaks = notebook.predict("windows", predictors=["percentile", "max"])
    scores = notebook.backtest("traces", predictors=["percentile", "max"])

`table.to_pandas()` or `polars.from_arrow(table)` make frames of tables. Null is unknown, never 0.
Settings are those of the commands: file, environment, and the values given to `read_settings`.
Errors are `SpringtideError`s, whose hint says what to do. docs/how-to/analyse-in-python.md has
examples.
"""

from pipeline.archive.archive_reader import read_windows
from pipeline.notebook.notebook_settings import read_settings
from pipeline.notebook.predictor_tables import PEAK_SCHEMA, backtest, predict
from pipeline.notebook.usage_tables import read_archive, read_topic
from pipeline.processors.archive.archive_schema import ARCHIVE_SCHEMA
from pipeline.processors.backtest.suites import Selection

__all__ = [
    "ARCHIVE_SCHEMA",
    "PEAK_SCHEMA",
    "Selection",
    "backtest",
    "predict",
    "read_archive",
    "read_settings",
    "read_topic",
    "read_windows",
]
