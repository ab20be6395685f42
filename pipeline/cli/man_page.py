"""Print the manual page of `springtide`, from the help of all commands.

    python -m pipeline.cli.man_page > springtide.1

Commands whose extra is not installed are left out, with the extra that they need.
"""

import sys
from collections.abc import Iterator
from typing import Final

import click

from pipeline import __version__
from pipeline.cli.help_sections import show_all_options
from pipeline.cli.main import COMMANDS, cli
from pipeline.errors import SpringtideError

_WIDTH: Final = 78


def man_page() -> str:
    """Return the page in the language of man(7)."""
    context = click.Context(cli, info_name="springtide", max_content_width=_WIDTH)
    show_all_options(context)
    lines = [
        f'.TH SPRINGTIDE 1 "" "springtide {__version__}" "User Commands"',
        ".SH NAME",
        "springtide \\- predict the peak that each Kubernetes node will really reach",
        ".SH SYNOPSIS",
        ".B springtide",
        "[OPTIONS] COMMAND [ARGS]...",
        ".SH DESCRIPTION",
        *_verbatim(cli.get_help(context)),
        ".SH COMMANDS",
    ]
    for name in COMMANDS:
        try:
            command = cli.get_command(context, name)
        except SpringtideError as error:
            lines += [f".SS springtide {_escaped(name)}", _escaped(f"{error.message}")]
            continue
        if command is not None:
            lines += _command_lines(command, name, context)
    return "\n".join(lines) + "\n"


def _command_lines(command: click.Command, name: str, parent: click.Context) -> Iterator[str]:
    """Yield the lines of a command and of the commands below it."""
    context = click.Context(
        command, parent=parent, info_name=name, terminal_width=_WIDTH, max_content_width=_WIDTH
    )
    yield f".SS {_escaped(context.command_path)}"
    yield from _verbatim(command.get_help(context))
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            below = command.get_command(context, each)
            if below is not None:
                yield from _command_lines(below, each, context)


def _verbatim(text: str) -> list[str]:
    """Lines that are printed as they are."""
    return [".nf", *map(_escaped, text.splitlines()), ".fi"]


def _escaped(line: str) -> str:
    escaped = line.replace("\\", "\\e").replace("-", "\\-")
    # A line that starts with one of these would be a request.
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


if __name__ == "__main__":
    sys.stdout.write(man_page())
