"""Predict the peaks of many nodes at once, from their models and the pods of their last windows.

`cold_start` decides when a pod counts its request instead of its peak. What Prod leaves unused of a
node is `reclaimable`, by the pods and by the classes.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.kubernetes.pod_classes import CLASS_CODES
from pipeline.processors.model import reclaimable
from pipeline.processors.model.cold_start import is_cold
from pipeline.processors.model.column_store import Columns
from pipeline.processors.model.entity_models import NEVER, EntityModels
from pipeline.processors.model.model_config import FIRST_CLASS, SYSTEM, UNKNOWN
from pipeline.processors.model.node_models import NodeModels
from pipeline.processors.model.node_peaks import PeakBatch, PeakColumns, ProdReclaimable
from pipeline.processors.model.predictor import (
    Peaks,
    Predictor,
    View,
    checked_peaks,
    may_decide,
    strategy_columns,
)
from pipeline.processors.model.resource_pairs import TO_KUBERNETES, kubernetes_units, stack_rows

_PROD, _NONE = (FIRST_CLASS + CLASS_CODES[name] for name in ("prod", "none"))


def predict_peaks(
    names: Sequence[str],
    nodes: Sequence[NodeModels],
    models: EntityModels,
    node_store: Columns,
    predictors: Mapping[str, Predictor],
    horizon_seconds: FloatArray,
    default: str,
    changes: tuple[IntArray, IntArray],
) -> PeakBatch:
    """Peaks of `nodes`, at least one, whose names are `names`, in that order.

    The predictor `default` decides where a strategy names one that does not run or may not decide.
    `changes` are `drift_ms` and `drifts` of all nodes, (k, entities, 2).
    """
    view = view_of(nodes, models, node_store, horizon_seconds)
    pods = reclaimable.NodePods(
        allocatable=stack_rows([node.allocatable for node in nodes]),
        node_index=view.node_index,
        classes=view.classes,
        requests=np.concatenate([node.listed.requests for node in nodes]),
        cold=view.cold,
        active=view.active,
        ended=view.ended,
    )
    by_predictor = {
        name: _peak_columns(view, pods, predictor) for name, predictor in predictors.items()
    }
    return PeakBatch(names, nodes, view, by_predictor, default, changes)


def view_of(
    nodes: Sequence[NodeModels],
    models: EntityModels,
    node_store: Columns,
    horizon_seconds: FloatArray,
) -> View:
    """The input of predictors for these nodes, whose columns are in `node_store` by slot."""
    node_index = np.arange(len(nodes)).repeat([len(node.pod_rows) for node in nodes])
    pods = np.concatenate([node.pod_rows for node in nodes])
    end_ms = np.array([node.end_ms for node in nodes], np.int64)
    ages = np.concatenate([node.pod_ages for node in nodes])
    requests = np.concatenate([node.listed.requests for node in nodes])
    requests[:, 0] /= TO_KUBERNETES[0]
    strategies = strategy_columns([node.strategy for node in nodes])
    return View(
        models=models,
        entities=stack_rows([node.entity_rows for node in nodes]),
        pods=pods,
        node_index=node_index,
        classes=np.concatenate([node.listed.classes for node in nodes]),
        requests=requests,
        active=np.concatenate([node.listed.active for node in nodes]),
        ended=np.concatenate([node.listed.ended for node in nodes]),
        cold=is_cold(models, pods, ages, end_ms, node_index, strategies),
        end_ms=end_ms,
        horizon_seconds=horizon_seconds,
        strategies=strategies,
        node_store=node_store,
        node_rows=np.array([node.slot for node in nodes], np.int64),
    )


def _peak_columns(view: View, pods: reclaimable.NodePods, predictor: Predictor) -> PeakColumns:
    peaks, pair = checked_peaks(predictor, view), predictor.prod == "pair"
    return PeakColumns(
        raw=peaks.entities,
        peaks=peaks.entities * view.margin[:, None, None],
        pod_raw=peaks.pods,
        terms=peaks.terms,
        reclaimable=_prod_reclaimable(view, pods, peaks, pair),
        may_decide=may_decide(predictor),
        counts_requests=peaks.without_requests is not None,
        outcomes=peaks.outcomes,
    )


def _prod_reclaimable(
    view: View, node_pods: reclaimable.NodePods, peaks: Peaks, pair: bool
) -> ProdReclaimable:
    """What Prod leaves unused of all nodes, arrays (k, 2)."""
    margin, requests = view.margin, node_pods.request_sums
    pod_peaks, entities = kubernetes_units(peaks.pods), kubernetes_units(peaks.entities)
    pods, surplus = reclaimable.pod_view(node_pods, pod_peaks, margin)
    begun = view.models.last_ms.take(view.entities[:, UNKNOWN]) != NEVER
    used = _used_by_prod(entities, begun)
    held = np.zeros_like(surplus)
    if peaks.without_requests is not None:
        usage_only = _used_by_prod(kubernetes_units(peaks.without_requests), begun)
        held = reclaimable.surplus_in_peaks(
            surplus=surplus, peaks=used, peaks_without_requests=usage_only, margin=margin
        )
    surplus = surplus - held
    classes = reclaimable.class_view(
        peaks=used,
        surplus=surplus,
        requests=requests,
        allocatable=node_pods.allocatable,
        margin=margin,
    )
    system = reclaimable.with_margin(entities[:, SYSTEM], margin)
    result = reclaimable.combine(pods, classes, system) if pair else classes
    return ProdReclaimable(
        pair=pair,
        amount=result.amount,
        peak=result.peak,
        unpredicted=pods.unpredicted,
        requests=requests,
        pods_amount=pods.amount,
        pods_peak=pods.peak,
        classes_amount=classes.amount,
        classes_peak=classes.peak,
        surplus=surplus,
        held=held,
        system=system,
        left_out=reclaimable.left_out(node_pods, pod_peaks),
    )


def _used_by_prod(entities: FloatArray, begun: BoolArray) -> FloatArray:
    """The sum (nodes, 2) of the peaks (nodes, E, 2) of system, prod, none and unknown; unknown if
    one is. `begun` (nodes,) is False where the node never had a pod of unknown class."""
    known = entities[:, SYSTEM] + entities[:, _PROD] + entities[:, _NONE]
    return known + np.where(begun[:, None], entities[:, UNKNOWN], 0.0)
