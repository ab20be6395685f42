"""One predictor's peak of one entity, as a prediction record has it, and why it may be unknown.

Owes the rest: reasons that the record bears out. Where it only says that there is no number, so
does the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from pipeline.processors.explain.derivation import Pod, Resource

POD_SUMS: Final = ("nsigma-v2", "pods-nsigma", "resource-central")
"""Predictors that add up the peaks of pods, and for the node that of the system."""
_OF_LATE: Final = ("autopilot", "resource-central")
"""Predictors that look at the recent past alone."""


class Case(NamedTuple):
    """One predictor's peak of one entity. `names` are those of all terms, `terms` what is known of
    them; `pods` are those that are part of the entity, with peaks by this predictor where
    `pods_told`. `samples` is None where the record has nothing of the entity; `answered` says
    whether the predictor is in the record, `covered` whether a window covered enough to be learned.
    """

    predictor: str
    entity: str
    resource: Resource
    multiplier: float
    names: Sequence[str]
    terms: Mapping[str, float]
    pods: Sequence[Pod]
    pods_told: bool = True
    samples: int | None = None
    answered: bool = True
    covered: bool = True

    @property
    def values(self) -> Mapping[str, float]:
        """What names in a formula stand for."""
        return {**self.terms, "N": self.multiplier}

    def member(self, name: str) -> Case:
        """That of a member of this maximum, which has its terms under extensions of its name."""
        start = f"{name}."
        return self._replace(
            predictor=name,
            names=[term.removeprefix(start) for term in self.names if term.startswith(start)],
            terms={
                term.removeprefix(start): value
                for term, value in self.terms.items()
                if term.startswith(start)
            },
            pods_told=False,
        )

    @property
    def nothing_counted(self) -> bool:
        """Whether there are pods, and nothing is known of any."""
        return self.terms.get("counted") == 0.0 and self.terms.get("left_out", 0.0) > 0.0


def why_unknown(case: Case) -> str:
    """Why there is no peak, as far as the record tells."""
    if case.samples is None:
        return f"the record has no model of it: {_no_samples(case)}"
    if not case.answered:
        return "this predictor did not run"
    if case.predictor == "max":
        return "no member knows it"
    if case.nothing_counted:
        what = "no request" if case.predictor == "borg-default" else "neither peak nor request"
        return f"{what} of its {case.terms['left_out']:.0f} pods is known"
    if case.predictor == "borg-default":
        return "it asks for nothing"
    if case.predictor in POD_SUMS and case.entity == "node" and "system" not in case.terms:
        own = f"{_no_samples(case)}, and " if case.predictor == "nsigma-v2" else ""
        return f"{own}no peak of the system is known, which is part of the sum"
    if case.samples == 0:
        return _no_samples(case)
    if case.predictor == "hourly-nsigma":
        return "too short a history, or an hour that was never seen"
    if case.predictor in _OF_LATE:
        return "no samples of late"
    return f"its predictor gave no number, though there are {case.samples} samples"


def _no_samples(case: Case) -> str:
    if not case.covered:
        return "no samples: no window covered enough of its time"
    # Of these the sum of a class is made, and what remains for the system.
    unread = [pod.uid for pod in case.pods if not (pod.samples or pod.ended)]
    if not unread or case.entity == "node":
        return "no samples"
    more = f" and {len(unread) - 1} more" if len(unread) > 1 else ""
    return f"no samples: {case.resource.name} of {unread[0]}{more} was never measured"
