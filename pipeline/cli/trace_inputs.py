"""The traces that commands read, and what these lack."""

import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

import click

from pipeline.cli.safe_output import print_progress, printable
from pipeline.errors import UsageError
from pipeline.processors.backtest.trace import Trace
from pipeline.sources.trace_folders import datasets, read_dataset

_PROGRESS_SECONDS: Final = 2.0


def read_reported(folder: Path, name: str) -> list[Trace]:
    """The traces of a data set; reports on standard error what of it is unknown or left out."""
    traces = read_dataset(folder, name)
    for note in dict.fromkeys(note for trace in traces for note in trace.notes):
        click.echo(printable(f"{name}: {note}"), err=True)
    return traces


def chosen_datasets(folder: Path, names: Collection[str]) -> list[str]:
    """These data sets of the folder, without names all. Raises `UsageError` for one that is not
    there."""
    present = datasets(folder)
    wanted = dict.fromkeys(names or present)
    if missing := [name for name in wanted if name not in present]:
        raise UsageError(
            f"{folder} has no data set {missing[0]!r:.100}",
            hint=f"it has {', '.join(present[:10])}",
        )
    return [*wanted]


def trace_progress(trace: Trace, what: str = "") -> Callable[[int], None]:
    """Report how far a trace is, every few seconds on a terminal; `what` of it, if that is not
    empty."""
    name = ", ".join(filter(None, (trace.dataset, trace.scenario, what)))
    last = time.monotonic()
    is_first = True

    def report_step(step: int) -> None:
        nonlocal last, is_first
        now = time.monotonic()
        if now - last >= _PROGRESS_SECONDS:
            share = 100 * step // trace.steps
            text = f"{name}: {share}% of {trace.steps} steps"
            print_progress(text, is_first=is_first)
            last, is_first = now, False

    return report_step
