"""The traces that commands read, and what these lack."""

from pathlib import Path

import click

from pipeline.cli.safe_output import printable
from pipeline.processors.backtest.trace import Trace
from pipeline.sources.trace_folders import read_dataset


def read_reported(folder: Path, name: str) -> list[Trace]:
    """The traces of a data set; reports on standard error what of it is unknown or left out."""
    traces = read_dataset(folder, name)
    for note in dict.fromkeys(note for trace in traces for note in trace.notes):
        click.echo(printable(f"{name}: {note}"), err=True)
    return traces
