"""Run predictors over a trace in event time, as a worker would have run them.

Windows go through the model bank, and peaks come from the function that a worker calls; a variant
is a predictor with settings. Variants that learn alike share a bank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.backtest.calibrated_runs import CALIBRATED, CalibratedRun
from pipeline.processors.backtest.origin_priors import OriginPriors
from pipeline.processors.backtest.trace import Trace
from pipeline.processors.backtest.trace_windows import windows
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.cold_start import counts_request
from pipeline.processors.model.entity_models import NEVER
from pipeline.processors.model.model_config import ENTITIES, NODE, RESOURCES, ModelConfig
from pipeline.processors.model.node_peaks import PeakColumns
from pipeline.processors.model.peak_prediction import predict_peaks
from pipeline.processors.model.predictor import Predictor, View, node_columns
from pipeline.processors.model.resource_pairs import (
    TO_KUBERNETES,
    group_sums,
    kubernetes_units,
)
from pipeline.processors.predictors.registry import PREDICTORS, build
from pipeline.topics.nodes import Strategy

Counts = Literal["prod", "koordinator", "pods", "limited", "node"]
"""Which of the published numbers counts as the prediction.

- `prod`: the requests of Prod less what may be reclaimed of them: what the product gives away
- `koordinator`: the same, with a class view that has no cold start
- `pods`: the sum of the peaks of pods, young ones counting their requests
- `limited`: the same, each peak at most the limit of its pod
- `node`: the peak of the node's entity, with the margin
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A predictor with the settings of a worker: `config.strategy.predictor` decides. `priors` are
    those of calibrated pools by the origin of a suite, by default the one of the package."""

    name: str
    config: ModelConfig
    counts: Counts = "prod"
    priors: Mapping[str, FloatArray] = field(default_factory=dict, compare=False)

    @property
    def declared_risk(self) -> float | None:
        """The risk that the predictor declares, None if it declares none."""
        return declared_risk(self.config, self.config.strategy.predictor)


def calibrated(
    risk: float,
    *,
    moved_pods_known: bool = False,
    others: OriginPriors | None = None,
) -> Variant:
    """All nodes as one calibrated pool with a declared risk. With `moved_pods_known`, a pod
    continues the history of the pod of its series that ended on another node when it began. With
    `others`, the prior of a suite is that of the other origins."""
    options = {
        "risk": risk,
        "moved_pods_known": moved_pods_known,
        "prior": "" if others is None else others.hash,
    }
    config = ModelConfig(options={CALIBRATED: options}, strategy=Strategy(predictor=CALIBRATED))
    known = ", moved pods known" if moved_pods_known else ""
    prior = "" if others is None else ", prior of others"
    return Variant(
        name=f"calibrated {100 * risk:g}%{known}{prior}",
        config=config,
        priors={} if others is None else others.by_origin,
    )


class Run(NamedTuple):
    """A variant, the steps (q,), ascending, at which it predicts, the origin of the trace, and the
    resources that matter: pools learn no others."""

    variant: Variant
    at: IntArray
    origin: str = ""
    resources: tuple[str, ...] = RESOURCES


@dataclass(slots=True)
class _Group:
    """Runs, by position, that share a bank, and the predictor of each."""

    bank_config: ModelConfig
    predictors: dict[str, Predictor] = field(default_factory=dict)
    members: dict[int, str] = field(default_factory=dict)

    def bank(self) -> Bank:
        names = (*self.predictors,)
        strategy = Strategy(predictor=names[0])
        config = replace(self.bank_config, predictors=names, strategy=strategy)
        return Bank(config, self.predictors)


def replay(
    trace: Trace, runs: Sequence[Run], progress: Callable[[int], None] = lambda _: None
) -> list[FloatArray]:
    """The predictions of each run at its steps, (k, q, 2) millicores and bytes, NaN unknown.

    `progress` is called with the number of steps done. Raises `PredictorError` for a predictor that
    cannot be made, or that fails.
    """
    pools = _calibrated_runs(trace, runs)
    nodes = len(trace.nodes)
    predictions = [np.full((nodes, len(run.at), 2), np.nan) for run in runs]
    columns = [{step: column for column, step in enumerate(run.at.tolist())} for run in runs]
    banks = [(group.bank(), group.members) for group in _groups(runs)]
    for step, (stays, batch) in enumerate(windows(trace)):
        for bank, members in banks:
            bank.apply(batch)
            for number, predictor in members.items():
                if (column := columns[number].get(step)) is not None:
                    variant = runs[number].variant
                    limits = trace.limits[stays]
                    peaks = _predict(bank, trace.nodes, limits, variant, predictor)
                    predictions[number][:, column] = peaks
        for pool, _ in pools:
            pool.apply(step)
        progress(step + 1)
    for pool, numbers in pools:
        for number, predicted in zip(numbers, pool.predictions, strict=True):
            predictions[number] = predicted
    return predictions


def _is_calibrated(variant: Variant) -> bool:
    return variant.config.strategy.predictor == CALIBRATED


def declared_risk(config: ModelConfig, predictor: str) -> float | None:
    """The risk that a predictor declares with these settings; None if it declares none."""
    options = config.options.get(predictor, {})
    if predictor == CALIBRATED:
        return float(options["risk"])
    defaults = {
        option.name: option.default for option in PREDICTORS.get(predictor).declaration.options
    }
    if "risk" not in defaults:
        return None
    return float(options.get("risk", defaults["risk"]))


def _calibrated_runs(
    trace: Trace, runs: Sequence[Run]
) -> list[tuple[CalibratedRun, tuple[int, ...]]]:
    """Runs of the calibrated predictor, by ascending risk, and their positions; those that learn
    alike together."""
    alike: dict[tuple[float, bool, str, str, tuple[str, ...], bytes], dict[float, int]] = {}
    for number, run in enumerate(runs):
        if _is_calibrated(run.variant):
            config, options = run.variant.config, run.variant.config.options[CALIBRATED]
            key = (
                config.horizon_seconds, options["moved_pods_known"], options["prior"], run.origin,
                run.resources, run.at.tobytes(),
            )  # fmt: skip
            alike.setdefault(key, {})[options["risk"]] = number
    result = []
    for (horizon_seconds, known, _, origin, resources, at), numbers in alike.items():
        risks = sorted(numbers)
        steps = np.frombuffer(at, np.int64)
        prior = runs[numbers[risks[0]]].variant.priors.get(origin)
        pools = CalibratedRun(
            trace, horizon_seconds, risks, steps, moved_pods_known=known, prior=prior,
            resources=resources,
        )  # fmt: skip
        result.append((pools, tuple(numbers[risk] for risk in risks)))
    return result


def _groups(runs: Sequence[Run]) -> list[_Group]:
    """Runs that learn alike, together, unless two predictors with options of their own declare
    columns of one name."""
    groups: list[_Group] = []
    for number, (variant, *_) in enumerate(runs):
        if _is_calibrated(variant):
            continue
        name = variant.config.strategy.predictor
        options = variant.config.options.get(name, {})
        predictor = build([name], {name: options} if options else {})[name]
        config = _learning(variant.config, keep_horizons=bool(_columns(predictor)))
        key = f"{name} {sorted(options.items())!r}"
        for group in groups:
            if group.bank_config == config and (
                key in group.predictors or _fits(predictor, group.predictors)
            ):
                break
        else:
            groups.append(group := _Group(config))
        group.predictors.setdefault(key, predictor)
        group.members[number] = key
    return groups


def _learning(config: ModelConfig, *, keep_horizons: bool) -> ModelConfig:
    """The part of the settings that shapes what is learned, besides predictors. Changes of level
    are found only where they shorten the memory. Some predictors learn what happened within the
    horizon."""
    return replace(
        config,
        predictors=(),
        options={},
        strategy=Strategy(),
        horizon_seconds=config.horizon_seconds if keep_horizons else 0.0,
        class_horizon_seconds=config.class_horizon_seconds if keep_horizons else {},
        drift="shorten" if config.drift == "shorten" else "off",
    )


def _fits(predictor: Predictor, others: Mapping[str, Predictor]) -> bool:
    taken = {column for other in others.values() for column in _columns(other)}
    return taken.isdisjoint(_columns(predictor))


def _columns(predictor: Predictor) -> set[str]:
    return {*predictor.columns, *node_columns(predictor)}


def _predict(
    bank: Bank, names: Sequence[str], limits: FloatArray, variant: Variant, predictor: str
) -> FloatArray:
    """The predictions (k, 2) of a variant for all nodes, whose pods have these `limits` (n, 2)."""
    nodes = [bank.node_models[name] for name in names]
    for node in nodes:
        node.strategy = variant.config.strategy
    never = np.full((len(nodes), len(ENTITIES), 2), NEVER, np.int64)
    horizons = [variant.config.entity_horizon_seconds(entity) for entity in ENTITIES]
    peaks = predict_peaks(
        names,
        nodes,
        bank.store.models,
        bank.store.slots,
        {predictor: bank.learner.predictors[predictor]},
        np.array(horizons),
        predictor,
        (never, never),
    )
    if variant.counts == "limited":
        return _limited(peaks.view, peaks.by_predictor[predictor], limits)
    return _counted(peaks.by_predictor[predictor], variant.counts)


def _limited(view: View, peaks: PeakColumns, limits: FloatArray) -> FloatArray:
    """The sums (k, 2) of the peaks of pods with the margin, each at most its limit (n, 2), and of
    the requests of cold pods. A pod cannot use more than its limit."""
    own = kubernetes_units(peaks.pod_raw) * view.margin[view.node_index, None]
    requests = view.requests * TO_KUBERNETES
    by_request = counts_request(~np.isnan(requests), view.cold[:, None], np.isnan(own))
    counted = np.where(by_request, requests, np.fmin(own, limits))
    return group_sums(view.node_index, counted, len(view.end_ms))


def _counted(peaks: PeakColumns, counts: Counts) -> FloatArray:
    prod = peaks.reclaimable
    match counts:
        case "prod":
            return prod.requests - prod.amount
        case "koordinator":
            unused = np.maximum(prod.requests - (prod.classes_peak - prod.surplus), 0.0)
            return prod.requests - np.minimum(prod.pods_amount, unused)
        case "pods":
            return prod.pods_peak
        case _:
            return np.asarray(peaks.peaks[:, NODE] * TO_KUBERNETES)
