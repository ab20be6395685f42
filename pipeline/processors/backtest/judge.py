"""Judge variants on the suites of traces, and sum up what came out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipeline.errors import UsageError
from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.backtest.node_details import Details, Judged, details
from pipeline.processors.backtest.protocol import (
    TOLERANCE,
    FleetScores,
    MachineScores,
    hindsight_savings,
    outcomes,
    over_machines,
    score,
)
from pipeline.processors.backtest.replay import Run, Variant, replay
from pipeline.processors.backtest.suites import LONG_HOURS, Suite
from pipeline.processors.backtest.trace import Trace
from pipeline.processors.calibrated.configuration import configuration_hash
from pipeline.processors.model.model_config import RESOURCES

HINDSIGHT_VIOLATIONS = (0.01, 0.03, 0.05)
"""Rates of violations at which hindsight savings are computed."""


@dataclass(frozen=True, slots=True, eq=False)
class Judgement:
    """How a variant did in a suite: per machine, the nodes of `nodes`, and over machines.

    `hindsight` are the savings at each of `HINDSIGHT_VIOLATIONS`, `trace_hours` the length of the
    trace. `details` are there if they were asked for.
    """

    suite: Suite
    variant: Variant
    nodes: tuple[str, ...]
    machines: MachineScores
    fleet: FleetScores
    hindsight: tuple[float, ...]
    trace_hours: float
    details: Details | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """A variant over all suites: one configuration has to do for all of them.

    `violation` is that of the worst suite, `savings` are averaged within origins and then over
    these; severity and `violation_p90` are those of the worst suite. `by_declared` are the lowest
    and the highest rate of a suite, by the declared risk, of those that are long enough to learn;
    None without such a suite, or if no risk is declared.
    """

    variant: Variant
    worst_suite: str
    violation: float
    mean_violation: float
    violation_p90: float
    severity: float
    savings: float
    by_declared: tuple[float, float] | None


def settings_hash(variant: Variant) -> str:
    """A hash of all that shapes the predictions of a variant; where it declares a risk, with the
    constants of the calibrated predictor and its prior."""
    config = variant.config
    parts: tuple[object, ...] = (
        config.strategy,
        config.options.get(config.strategy.predictor, {}),
        config.fingerprint(""),
        config.class_horizon_seconds,
        variant.counts,
    )
    if variant.declared_risk is not None:
        parts += (configuration_hash(),)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True, eq=False)
class SuitePredictions:
    """The predictions (k, q) of each variant for a suite's resource at the steps `at` (q,), the
    requests and the oracle (k, q), and by how much a prediction may be too low."""

    suite: Suite
    at: IntArray
    requests: FloatArray
    oracle: FloatArray
    tolerance: float
    predictions: Sequence[FloatArray]


def judge(
    trace: Trace,
    suites: Sequence[Suite],
    variants: Sequence[Variant],
    progress: Callable[[int], None] = lambda _: None,
    detailed: Collection[str] = (),
) -> list[Judgement]:
    """Judge each variant on each of the suites of one trace, in one pass; suite by suite.

    Variants whose names are in `detailed` have `details` of single nodes.
    Raises `UsageError` for a suite that scores nothing, `PredictorError` for a predictor that
    fails.
    """
    return [
        judgement
        for predicted in predict_suites(trace, suites, variants, progress)
        for judgement in _scored(trace, variants, predicted, detailed)
    ]


def predict_suites(
    trace: Trace,
    suites: Sequence[Suite],
    variants: Sequence[Variant],
    progress: Callable[[int], None] = lambda _: None,
) -> list[SuitePredictions]:
    """Predict with each variant for each of the suites of one trace, in one pass.

    Raises as `judge`.
    """
    for suite in suites:
        _check_length(trace, suite)
    alike: dict[tuple[float, str], list[Suite]] = {}
    for suite in suites:
        alike.setdefault((suite.horizon_hours, suite.source), []).append(suite)
    steps = {
        key: np.unique(np.concatenate([suite.at(trace) for suite in own]))
        for key, own in alike.items()
    }
    runs = [
        Run(_with_horizon(variant, key[0]), steps[key], key[1], _resources(own))
        for key, own in alike.items()
        for variant in variants
    ]
    predicted = replay(trace, runs, progress)
    results = []
    for suite in suites:
        key = suite.horizon_hours, suite.source
        first = [*steps].index(key) * len(variants)
        own = predicted[first : first + len(variants)]
        results.append(_of_suite(trace, suite, own, steps[key]))
    return results


def _resources(suites: Sequence[Suite]) -> tuple[str, ...]:
    return tuple(sorted({suite.resource for suite in suites}))


def _of_suite(
    trace: Trace, suite: Suite, predicted: Sequence[FloatArray], steps: IntArray
) -> SuitePredictions:
    resource, at = RESOURCES.index(suite.resource), suite.at(trace)
    happened = outcomes(trace, at, suite.horizon_steps(trace))
    columns = np.searchsorted(steps, at)
    return SuitePredictions(
        suite=suite,
        at=at,
        requests=happened.requests[..., resource],
        oracle=happened.oracle[..., resource],
        tolerance=float(TOLERANCE[resource]),
        predictions=[values[:, columns, resource] for values in predicted],
    )


def _check_length(trace: Trace, suite: Suite) -> None:
    if not len(suite.at(trace)):
        raise UsageError(
            f"{suite.name}: {trace.dataset} has {trace.hours:g} h, too few for a burn-in of "
            f"{suite.burn_in_hours:g} h and a horizon of {suite.horizon_hours:g} h",
            hint="shorten --burn-in or --horizon",
        )
    if suite.resource not in trace.resources:
        raise UsageError(
            f"{suite.name}: no pod of {trace.dataset} in {trace.scenario} has {suite.resource}",
            hint=f"it has {', '.join(trace.resources) or 'no resource'}",
        )


def _with_horizon(variant: Variant, hours: float) -> Variant:
    config = replace(variant.config, horizon_seconds=hours * 3600, class_horizon_seconds={})
    return replace(variant, config=config)


def _scored(
    trace: Trace,
    variants: Sequence[Variant],
    predicted: SuitePredictions,
    detailed: Collection[str],
) -> list[Judgement]:
    happened = predicted.requests, predicted.oracle, predicted.tolerance
    judgements = []
    for variant, predictions in zip(variants, predicted.predictions, strict=True):
        machines = score(predictions, *happened)
        judged = Judged(
            trace=trace, resource=RESOURCES.index(predicted.suite.resource),
            horizon_steps=predicted.suite.horizon_steps(trace), at=predicted.at,
            predictions=predictions, requests=predicted.requests, oracle=predicted.oracle,
            tolerance=predicted.tolerance, machines=machines,
        )  # fmt: skip
        judgements.append(
            Judgement(
                suite=predicted.suite,
                variant=variant,
                nodes=trace.nodes,
                machines=machines,
                fleet=over_machines(machines, trace.copies),
                hindsight=tuple(
                    hindsight_savings(predictions, *happened, rate) for rate in HINDSIGHT_VIOLATIONS
                ),
                trace_hours=trace.hours,
                details=details(judged) if variant.name in detailed else None,
            )
        )
    return judgements


def summaries(judgements: Sequence[Judgement]) -> list[Summary]:
    """Each variant over all its suites, in the order of `judgements`. A suite in which no machine
    has a point does not count."""
    names = dict.fromkeys(judgement.variant.name for judgement in judgements)
    return [
        _summary([j for j in judgements if j.variant.name == name and j.fleet.machines])
        for name in names
        if any(j.variant.name == name and j.fleet.machines for j in judgements)
    ]


def _summary(own: Sequence[Judgement]) -> Summary:
    worst = max(own, key=lambda judgement: judgement.fleet.violation)
    origins: dict[str, list[float]] = {}
    for judgement in own:
        origins.setdefault(judgement.suite.source, []).append(judgement.fleet.savings)
    return Summary(
        variant=worst.variant,
        worst_suite=worst.suite.name,
        violation=worst.fleet.violation,
        mean_violation=float(np.mean([judgement.fleet.violation for judgement in own])),
        violation_p90=max(judgement.fleet.violation_p90 for judgement in own),
        severity=float(np.fmax.reduce([judgement.fleet.severity for judgement in own])),
        savings=float(np.mean([np.mean(savings) for savings in origins.values()])),
        by_declared=_by_declared(own),
    )


def _by_declared(own: Sequence[Judgement]) -> tuple[float, float] | None:
    risk = own[0].variant.declared_risk
    rates = [each.fleet.violation for each in own if each.trace_hours >= LONG_HOURS]
    return None if risk is None or not rates else (min(rates) / risk, max(rates) / risk)
