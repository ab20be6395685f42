"""A click command whose help fits on a screen and ends with its exit codes, options that only
`--help-all` shows, and a group that suggests commands."""

import difflib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

import click

from pipeline.cli.safe_output import printable

_COMMON: Final = {1: "failure", 2: "invalid usage or settings"}
_HELP_ALL: Final = "pipeline.cli.help_all"
Tables = Mapping[str, Iterable[tuple[str, str]]]


class SecondaryOption(click.Option):
    """An option that few users give on a command line: `--help` leaves it out."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        return super().get_help_record(ctx) if ctx.meta.get(_HELP_ALL) else None


def show_all_options(ctx: click.Context) -> None:
    """Make the help of this context, and of those below it, show every option."""
    ctx.meta[_HELP_ALL] = True


def _print_all(ctx: click.Context, _parameter: click.Parameter, is_given: bool) -> None:
    if is_given and not ctx.resilient_parsing:
        show_all_options(ctx)
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


class Command(click.Command):
    """A command with `exit_codes` by number and `tables` of (term, text) by title.

    Exit codes 1 (failure) and 2 (invalid usage or settings) are listed for every command. Only
    `--help-all` has the tables and the secondary options; for a command without both it is the same
    as `--help`, and not listed.

        @click.command(cls=Command, exit_codes={0: "shown", 4: "no data"})
    """

    def __init__(
        self,
        *arguments: Any,
        exit_codes: Mapping[int, str],
        tables: Tables = MappingProxyType({}),
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self._exit_codes = _COMMON | dict(exit_codes)
        self._tables = tables
        self._has_more = bool(tables) or any(isinstance(p, SecondaryOption) for p in self.params)
        help_all = SecondaryOption(
            ["--help-all"], is_flag=True, is_eager=True, expose_value=False,
            callback=_print_all, help="Show this message with all flags and exit.",
            hidden=not self._has_more,
        )  # fmt: skip
        self.params.append(help_all)

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return the first sentence of the help, which the group's help wraps."""
        return super().get_short_help_str(limit=10**6)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, and where the rest is."""
        super().format_options(ctx, formatter)
        if self._has_more and not ctx.meta.get(_HELP_ALL):
            more = ", ".join(
                ["All flags", *(title[0].lower() + title[1:] for title in self._tables)]
            )
            formatter.write_paragraph()
            formatter.write_text(f"{more}: --help-all")

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write exit codes below the options, and tables above them in the whole help."""
        codes = [(str(code), text) for code, text in sorted(self._exit_codes.items())]
        tables = self._tables if ctx.meta.get(_HELP_ALL) else {}
        for title, rows in {**tables, "Exit codes": codes}.items():
            with formatter.section(title):
                formatter.write_dl(list(rows))


class Group(click.Group):
    """A group that suggests a command for a mistyped one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Fail with the nearest name, if there is a near one."""
        names = self.list_commands(ctx)
        near = difflib.get_close_matches(args[0], names, n=1)
        if near and args[0] not in names and not ctx.resilient_parsing:
            ctx.fail(f"No such command {printable(args[0])!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)
