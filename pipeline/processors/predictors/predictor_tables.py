"""Tables of predictors, their options and their terms, in Markdown and as lines for a terminal."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from pipeline.processors.predictors.declaration import Declaration
from pipeline.processors.predictors.options import Option

_HEADS: Final = (
    ("predictor", "peak before the margin"),
    ("predictor", "option", "default", "allowed", "what it sets"),
    ("predictor", "terms"),
)


def markdown(declarations: Mapping[str, Declaration]) -> str:
    """Return three tables: a summary of each predictor, their options, their terms."""
    tables: tuple[Iterable[Sequence[str]], ...] = (
        ((f"`{name}`", declared.summary) for name, declared in declarations.items()),
        (
            (f"`{name}`", f"`{option.name}`", _text(option.default), option.allowed, option.help)
            for name, declared in declarations.items()
            for option in declared.options
        ),
        ((f"`{name}`", _terms(declared)) for name, declared in declarations.items()),
    )
    return "\n".join(_table(head, rows) for head, rows in zip(_HEADS, tables, strict=True))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |\n" for row in (head, *rows)]
    return "".join([lines[0], f"|{'---|' * len(head)}\n", *lines[1:]])


def option_lines(options: Sequence[Option]) -> Iterator[str]:
    """Return a line for each option: name, default, allowed values, what it sets."""
    for option in options:
        yield f"{option.name}: {option.help}; {option.allowed}; default {_text(option.default)}"


def _terms(declared: Declaration) -> str:
    if declared.combines:
        return "each member's peak by its name, and its terms as `member.term`"
    notes = (f" ({term.note})" if term.note else "" for term in declared.terms)
    return ", ".join(
        f"`{term.name}`{note}" for term, note in zip(declared.terms, notes, strict=True)
    )


def _text(default: Any) -> str:
    if isinstance(default, list):
        return f"[{', '.join(map(str, default))}]"
    return f"{default:.15g}" if isinstance(default, float) else str(default)
