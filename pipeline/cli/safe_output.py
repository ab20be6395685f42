"""Print names from records and files safely: they cannot move the cursor or fake a line."""

import sys
from collections.abc import Iterable

import click

from pipeline.printable_text import printable as printable


def print_lines(lines: Iterable[str]) -> None:
    """Print lines that may contain names from records or files; nothing if there are none."""
    if printed := [printable(line) for line in lines]:
        click.echo("\n".join(printed))


def print_progress(text: str, *, is_first: bool) -> None:
    """Print on standard error what a command waits for: again and again on a terminal, once in a
    file or a log."""
    if is_first or sys.stderr.isatty():
        click.echo(printable(text), err=True)


def suggestion(names: Iterable[str], default_hint: str) -> str:
    """The hint of an error about an unknown name: the names that may be meant, else
    `default_hint`."""
    names_text = printable(", ".join(names))
    return f"did you mean {names_text}?" if names_text else default_hint
