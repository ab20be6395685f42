"""A click command whose help ends with tables and its exit codes."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

import click

_COMMON: Final = {1: "failure", 2: "invalid usage or settings"}
Tables = Mapping[str, Iterable[tuple[str, str]]]


class Command(click.Command):
    """A command with `exit_codes` by number and `tables` of (term, text) by title.

    Exit codes 1 (failure) and 2 (invalid usage or settings) are listed for every command.

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

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return the first sentence of the help, which the group's help wraps."""
        return super().get_short_help_str(limit=10**6)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write tables and exit codes below the options."""
        codes = [(str(code), text) for code, text in sorted(self._exit_codes.items())]
        for title, rows in {**self._tables, "Exit codes": codes}.items():
            with formatter.section(title):
                formatter.write_dl(list(rows))
