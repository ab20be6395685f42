"""What others have named, as it may be printed: nothing in it moves a cursor or fakes a line."""

from collections.abc import Iterable

import click


def printable(text: str) -> str:
    """The text with every character that cannot be seen written as an escape sequence.

    >>> printable("pod \\x1b[2J é")
    'pod \\\\x1b[2J é'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def say(lines: Iterable[str]) -> None:
    """Print lines in which there may be names from records or files."""
    click.echo("\n".join(map(printable, lines)))
