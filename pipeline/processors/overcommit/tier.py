"""A tier, Mid or Batch: its amounts, their terms by name, and the formula as `explain` shows it.

The names of terms are the fields of `MidTerms` and `BatchTerms`. Expressions are those of
`explain.derivation`: numbers and names with + - * /, `min`, `max` and `trunc`.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pipeline.processors.arrays import IntArray


class Tier(NamedTuple):
    """The amount on each node, (nodes, 2), and its terms (nodes, 2) by name."""

    amount: IntArray
    terms: Mapping[str, IntArray]


class TermLine(NamedTuple):
    """A term in the text: its value, or the expression that it follows from. `label` stands for the
    name, `unknown` is the reason for an unknown value."""

    name: str
    expression: str = ""
    label: str = ""
    unknown: str = ""


class FormulaText(NamedTuple):
    """The formula of one node and resource: a heading, the terms in order, and the expression of
    the amount; `values` are the numbers of all names."""

    heading: str
    lines: Sequence[TermLine]
    amount: str
    values: Mapping[str, float]
