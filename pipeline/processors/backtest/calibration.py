"""Choose the setting that saves most at a declared rate of violations, and say how sure that is.

A history is split in the middle of its time after the burn-in. Settings are compared by predictions
whose horizon ends in the earlier half, and the chosen one is judged by predictions that were made
in the later half: what chose it does not judge it.

The rate that chooses is one standard error above the measured one: of many settings the best looks
better than it is. This is the one-standard-error rule of Breiman et al., Classification and
regression trees (1984).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Final, Literal

import numpy as np

from pipeline.processors.arrays import IntArray
from pipeline.processors.backtest.judge import SuitePredictions
from pipeline.processors.backtest.protocol import (
    FleetScores,
    effective,
    is_scored,
    is_violation,
    over_machines,
    score,
)
from pipeline.processors.backtest.rate_confidence import (
    RateConfidence,
    needed_trials,
    rate_confidence,
    time_blocks,
)
from pipeline.processors.backtest.setting_grid import Setting, joined
from pipeline.processors.backtest.suites import Suite
from pipeline.processors.backtest.trace import Trace
from pipeline.processors.model.model_config import RESOURCES

SURENESS: Final = 0.9
"""A history is too short if not even one without violations is so sure."""
LEAST_BLOCKS: Final = 3
"""Blocks of time in each half."""
_DAY_SECONDS: Final = 86_400

Outcome = Literal["reached", "missed", "unreached", "too short"]
"""`missed`: in the later half the rate was higher; `unreached`: in the earlier one, with all
settings."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ResourceResult:
    """The chosen setting for a resource: its scores in the half that chose it and in the half that
    judged it, how sure its rate is, and the scores of the present setting in the latter half.

    `alone` is the setting that would have been chosen for this resource without the other.
    """

    suite: Suite
    setting: Setting
    chosen_on: FleetScores
    judged_on: FleetScores
    confidence: RateConfidence
    present: FleetScores
    alone: Setting
    alone_judged_on: FleetScores


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Calibration:
    """The setting of a trace and its results by resource; none if nothing could be scored.
    `needed_seconds` is how long a history would have to be, if it is too short."""

    trace: Trace
    suites: Sequence[Suite]
    outcome: Outcome
    setting: Setting | None = None
    results: Sequence[ResourceResult] = ()
    needed_seconds: float | None = None


def is_scorable(trace: Trace, suite: Suite) -> bool:
    """Whether both halves have a prediction."""
    return all(len(columns) for columns in _halves(trace, suite))


def calibrate(
    trace: Trace,
    predicted: Sequence[SuitePredictions],
    settings: Sequence[Setting],
    target: float,
) -> Calibration:
    """Choose among `settings`, whose predictions these are, one suite for each resource. The first
    setting is the present one. All suites are scorable."""
    halves = [_Halves(trace, each, target) for each in predicted]
    known = [half for half in halves if half.has_points]
    suites = [each.suite for each in predicted]
    if not known:
        return too_short(trace, suites, target)
    best = min(
        (
            _choice(known, settings, [*numbers], target)
            for _, numbers in groupby(
                sorted(range(len(settings)), key=lambda n: settings[n].shared),
                key=lambda n: settings[n].shared,
            )
        ),
        key=lambda choice: choice.order,
    )
    results = [
        half.result(number, settings, target)
        for half, number in zip(known, best.numbers, strict=True)
    ]
    outcome: Outcome = "reached"
    if best.excess > 0:
        outcome = "unreached"
    elif any(result.judged_on.violation > target for result in results):
        outcome = "missed"
    is_long = len(known) == len(predicted) and all(half.is_long for half in known)
    return Calibration(
        trace=trace,
        suites=suites,
        outcome=outcome if is_long else "too short",
        setting=_setting(results, settings),
        results=results,
        needed_seconds=None if is_long else _needed_seconds(trace, suites[0], target),
    )


def too_short(trace: Trace, suites: Sequence[Suite], target: float) -> Calibration:
    """The result of a history in which nothing can be scored."""
    needed = _needed_seconds(trace, suites[0], target)
    return Calibration(trace=trace, suites=suites, outcome="too short", needed_seconds=needed)


@dataclass(frozen=True, slots=True)
class _Choice:
    """The best setting of each half's resource, by number, of those that share the rest; the excess
    of the worst, and what they save."""

    numbers: Sequence[int]
    excess: float
    savings: float

    @property
    def order(self) -> tuple[float, float, Sequence[int]]:
        return self.excess, -self.savings, self.numbers


def _choice(
    halves: Sequence[_Halves], settings: Sequence[Setting], numbers: Sequence[int], target: float
) -> _Choice:
    chosen = [half.best(numbers, target) for half in halves]
    scores = [half.chosen_on[number] for half, number in zip(halves, chosen, strict=True)]
    return _Choice(
        numbers=chosen,
        excess=max(_excess(each, target) for each in scores),
        savings=float(np.mean([each.savings for each in scores])),
    )


def _excess(scores: FleetScores, target: float) -> float:
    """By how much the rate, one standard error up, is above the target."""
    return max(scores.violation + scores.violation_error - target, 0.0)


def _setting(results: Sequence[ResourceResult], settings: Sequence[Setting]) -> Setting:
    """One setting for all resources; one without a result keeps its present values."""
    chosen = results[0].setting
    present = next(each for each in settings if each.predictor == chosen.predictor)
    other = replace(
        present,
        safety_margin_percent=chosen.safety_margin_percent,
        nsigma_multiplier=chosen.nsigma_multiplier,
        risk=chosen.risk,
    )
    by_resource: Mapping[str, Setting] = {each.suite.resource: each.setting for each in results}
    cpu, memory = (by_resource.get(name, other) for name in RESOURCES)
    return joined(cpu, memory)


class _Halves:
    """The predictions of one resource in both halves of the history."""

    def __init__(self, trace: Trace, predicted: SuitePredictions, target: float) -> None:
        self._trace: Final = trace
        self._predicted: Final = predicted
        self._earlier, self._later = _halves(trace, predicted.suite)
        self._scored: Final = is_scored(predicted.requests, predicted.oracle)
        self._blocks: Final = time_blocks(
            predicted.at[self._later], _block_steps(trace, predicted.suite)
        )
        self._needed: Final = needed_trials(SURENESS, target)

    @property
    def has_points(self) -> bool:
        return all(self._scored[:, half].any() for half in (self._earlier, self._later))

    @property
    def is_long(self) -> bool:
        block_steps = _block_steps(self._trace, self._predicted.suite)
        earlier = time_blocks(self._predicted.at[self._earlier], block_steps)
        blocks = min(int(earlier[-1]), int(self._blocks[-1])) + 1
        members = self._blocks[:, None] == np.arange(int(self._blocks[-1]) + 1)
        trials = ((self._scored[:, self._later] @ members) > 0).sum() / self._trace.copies
        return blocks >= LEAST_BLOCKS and trials >= self._needed

    @cached_property
    def chosen_on(self) -> Sequence[FleetScores]:
        return [self._scores(number, self._earlier) for number in self._numbers]

    @property
    def _numbers(self) -> Iterable[int]:
        return range(len(self._predicted.predictions))

    def _scores(self, number: int, half: IntArray) -> FleetScores:
        predicted = self._predicted
        machines = score(
            predicted.predictions[number][:, half],
            predicted.requests[:, half],
            predicted.oracle[:, half],
            predicted.tolerance,
        )
        return over_machines(machines, self._trace.copies)

    def best(self, numbers: Sequence[int], target: float) -> int:
        """The setting that saves most among those at or under the target, else the nearest to
        it."""

        def order(number: int) -> tuple[float, float, int]:
            scores = self.chosen_on[number]
            return _excess(scores, target), -scores.savings, number

        return min(numbers, key=order)

    def result(self, number: int, settings: Sequence[Setting], target: float) -> ResourceResult:
        predicted, half = self._predicted, self._later
        requests, oracle = predicted.requests[:, half], predicted.oracle[:, half]
        peaks = effective(predicted.predictions[number][:, half], requests)
        alone = self.best([*self._numbers], target)
        return ResourceResult(
            suite=predicted.suite,
            setting=settings[number],
            chosen_on=self.chosen_on[number],
            judged_on=self._scores(number, half),
            confidence=rate_confidence(
                is_violation(peaks, oracle, predicted.tolerance),
                self._scored[:, half],
                self._blocks,
                target,
                self._trace.copies,
            ),
            present=self._scores(0, half),
            alone=settings[alone],
            alone_judged_on=self._scores(alone, half),
        )


def _halves(trace: Trace, suite: Suite) -> tuple[IntArray, IntArray]:
    """The columns of the predictions whose horizon ends in the earlier half, and of those that were
    made in the later one."""
    at, burn_in = suite.at(trace), _burn_in_steps(trace, suite)
    middle = (burn_in + trace.steps) // 2
    earlier = np.flatnonzero(at + suite.horizon_steps(trace) < middle)
    return earlier, np.flatnonzero(at >= middle)


def _burn_in_steps(trace: Trace, suite: Suite) -> int:
    return round(suite.burn_in_hours * 3600 / trace.step_seconds)


def _block_steps(trace: Trace, suite: Suite) -> int:
    """A day, or a horizon if that is longer."""
    return max(round(_DAY_SECONDS / trace.step_seconds), suite.horizon_steps(trace))


def _needed_seconds(trace: Trace, suite: Suite, target: float) -> float:
    """How long the history would have to be, with as many nodes."""
    nodes = len(trace.nodes) / trace.copies
    blocks = max(LEAST_BLOCKS, int(np.ceil(needed_trials(SURENESS, target) / nodes)))
    half = blocks * _block_steps(trace, suite) + suite.horizon_steps(trace)
    return float((_burn_in_steps(trace, suite) + 2 * half) * trace.step_seconds)
