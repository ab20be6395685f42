"""Read one peak of a prediction record, and explain why it is unknown.

A reason is given only if the record proves it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from pipeline.errors import PredictorError
from pipeline.processors.explain.derivation import PodValues, Resource, names_in
from pipeline.processors.predictors.declaration import UNDECLARED, Declaration
from pipeline.processors.predictors.registry import PREDICTORS


class RecordedPeak(NamedTuple):
    """One predictor's peak of one entity.

    `names` are those of all terms, `terms` the known values. `pods` are the pods of the entity,
    with peaks by this predictor if `has_pod_peaks`. `samples` is None if the record has no model of
    the entity. `answered` is False if the record lacks the predictor, `covered` is False if no
    window covered enough of its time to be learned.
    """

    predictor: str
    declared: Declaration
    entity: str
    resource: Resource
    multiplier: float
    names: Sequence[str]
    terms: Mapping[str, float]
    pods: Sequence[PodValues]
    has_pod_peaks: bool = True
    samples: int | None = None
    answered: bool = True
    covered: bool = True

    @property
    def values(self) -> Mapping[str, float]:
        return {**self.terms, "N": self.multiplier}

    def member(self, name: str) -> RecordedPeak:
        """The peak of a member of this maximum, whose terms have its name as prefix."""
        start = f"{name}."
        return self._replace(
            predictor=name,
            declared=known_declaration(name),
            names=[term.removeprefix(start) for term in self.names if term.startswith(start)],
            terms={
                term.removeprefix(start): value
                for term, value in self.terms.items()
                if term.startswith(start)
            },
            has_pod_peaks=False,
        )

    @property
    def nothing_counted(self) -> bool:
        """Whether the sum over pods left out every pod."""
        return self.terms.get("counted") == 0.0 and self.terms.get("left_out", 0.0) > 0.0

    @property
    def lacks_system(self) -> bool:
        """Whether a formula needs the term `system`, which is unknown."""
        needs = any("system" in names_in(expression) for expression in self.expressions)
        return needs and "system" not in self.terms

    @property
    def expressions(self) -> list[str]:
        formulas = self.declared.formulas
        return [formula.expression for formula in formulas if self.entity in formula.entities]


@lru_cache(maxsize=256)
def known_declaration(predictor: str) -> Declaration:
    """The declaration of a predictor, `UNDECLARED` if it cannot be loaded here."""
    try:
        return PREDICTORS.get(predictor).declaration
    except PredictorError:
        return UNDECLARED


def why_unknown(peak: RecordedPeak) -> str:
    declared = peak.declared
    if peak.samples is None:
        return f"the record has no model of it: {_no_samples(peak)}"
    if not peak.answered:
        return "this predictor did not run"
    if peak.nothing_counted:
        by_request = any(term.adds == "requests" for term in declared.terms)
        missing = "no request" if by_request else "neither peak nor request"
        return f"{missing} of its {peak.terms['left_out']:.0f} pods is known"
    if not declared.needs_samples and declared.unknown is not None:
        return declared.unknown
    if peak.lacks_system:
        alone = f"{_no_samples(peak)}, and " if len(peak.expressions) > 1 else ""
        return f"{alone}no peak of the system is known, which is part of the sum"
    if peak.samples == 0:
        return _no_samples(peak)
    return declared.unknown or (
        f"its predictor gave no number, though there are {peak.samples} samples"
    )


def _no_samples(peak: RecordedPeak) -> str:
    if not peak.covered:
        return "no samples: no window covered enough of its time"
    # The sum of a class, and what remains for the system, is unknown with the usage of one pod.
    unread = [pod.uid for pod in peak.pods if not (pod.samples or pod.ended)]
    if not unread or peak.entity == "node":
        return "no samples"
    more = f" and {len(unread) - 1} more" if len(unread) > 1 else ""
    return f"no samples: {peak.resource.name} of {unread[0]}{more} was never measured"
