"""The flags of every command as a table, from the commands themselves."""

from collections.abc import Iterator

import click

from pipeline.cli.help_sections import SecondaryOption
from pipeline.cli.main import COMMANDS, cli

_GLOBAL = ("config", "log_level", "log_format", "debug", "help")


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command that runs something, with the words that start it."""
    root = click.Context(cli, info_name="springtide")
    for name in COMMANDS:
        command = cli.get_command(root, name)
        assert command is not None
        if not isinstance(command, click.Group):
            yield name, command
            continue
        for below in command.list_commands(root):
            member = command.get_command(root, below)
            assert member is not None
            yield f"{name} {below}", member


def flag_rows() -> list[tuple[str, ...]]:
    """A row for each command: its flags of `--help`, and the others."""
    rows: list[tuple[str, ...]] = []
    for words, command in commands():
        flags: dict[bool, list[str]] = {False: [], True: []}
        for parameter in command.params:
            if not isinstance(parameter, click.Option) or parameter.hidden:
                continue
            if parameter.name not in _GLOBAL:
                names = [*parameter.opts, *parameter.secondary_opts]
                flags[isinstance(parameter, SecondaryOption)].append(f"`{'`/`'.join(names)}`")
        own, others = (", ".join(flags[kind]) or "-" for kind in (False, True))
        rows.append((f"`{words}`", own, others))
    return rows
