"""The declaration of a predictor: summary, options, published terms, and formula.

Settings are checked against it. `springtide explain` derives the published peaks by it.
`springtide model predictors` and docs/explanation/models.md print it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from pipeline.processors.model.model_config import ENTITIES
from pipeline.processors.predictors.options import Option

Addends = Literal["peaks", "missing peaks", "requests"]
"""What a sum over pods adds up.

- `peaks`: the peaks of the pods that count their peak
- `missing peaks`: the requests of the pods that count their request in place of a peak
- `requests`: the requests of all active pods
"""


@dataclass(frozen=True, slots=True)
class Term:
    """A number that a predictor publishes beside each peak of an entity.

    `unit` is None for cores or bytes. `formula` computes the term from other terms. `adds` marks a
    sum over pods. `note` is the term's note in the documentation.
    """

    name: str
    unit: str | None = None
    formula: str = ""
    adds: Addends | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Formula:
    """An expression over terms, `N` being the strategy's `nsigma_multiplier`.

    It holds for `entities` only. `label` builds the displayed text from the values of the terms;
    without it the expression is displayed. Expressions have numbers, + - * / **, `min`, `max` and
    `trunc`.
    """

    expression: str
    entities: Collection[str] = ENTITIES
    label: Callable[[Mapping[str, float]], str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """One predictor, as documentation, settings and `explain` need it.

    `summary` is the peak before the margin, in a phrase. Of the `formulas` that can be computed for
    an entity the highest or the first is the peak (`pick`); where none can, `explain` states the
    peak as `without_formula`. `unknown` is the reason for an unknown peak of an entity with
    samples, or of any entity if peaks do not need samples (`needs_samples`). A predictor that
    `combines` others publishes their peaks by name, and their terms as `name.term`.
    """

    summary: str
    options: Sequence[Option] = ()
    terms: Sequence[Term] = ()
    formulas: Sequence[Formula] = ()
    pick: Literal["highest", "first"] = "highest"
    without_formula: str = "as its predictor says"
    unknown: str | None = None
    needs_samples: bool = True
    combines: bool = False

    def __post_init__(self) -> None:
        parts = (self.options, Option), (self.terms, Term), (self.formulas, Formula)
        for given, kind in (((self.summary,), str), *parts):
            if wrong := [part for part in given if not isinstance(part, kind)]:
                raise TypeError(f"declaration: {wrong[0]!r:.100} is not of type {kind.__name__}")

    def checked(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """All options, those that are not given with their defaults. Raises ValueError for an
        option that is not declared and for a value that is not allowed."""
        names = [option.name for option in self.options]
        if unknown := sorted(options.keys() - {*names}):
            known = f"its options are {', '.join(names)}" if names else "it has none"
            raise ValueError(f"there is no option {unknown[0]!r:.100}: {known}")
        return {
            option.name: option.check(option.name, options.get(option.name, option.default))
            for option in self.options
        }


MOMENTS: Final = "mean + N * stdev"
UNDECLARED: Final = Declaration(summary="")
"""Stands for a predictor that is not installed here: its terms are listed without a formula."""
