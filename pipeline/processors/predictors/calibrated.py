"""Calibrated: the peak of Prod with a declared risk, which the node's own outcomes correct."""

from collections.abc import Mapping
from typing import Any, Final, Literal

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.calibrated.limits import HIGHEST_RISK, LOWEST_RISK
from pipeline.processors.calibrated.node_pools import STEP_SECONDS, NodePools, horizon_of
from pipeline.processors.kubernetes.pod_classes import CLASS_CODES
from pipeline.processors.model.column_store import Column, object_column
from pipeline.processors.model.entity_models import EntityModels
from pipeline.processors.model.model_config import ENTITIES, FIRST_CLASS
from pipeline.processors.model.predictor import Peaks, View, WindowUsage
from pipeline.processors.model.resource_pairs import group_sums
from pipeline.processors.predictors.declaration import Declaration, Formula, Term
from pipeline.processors.predictors.options import between
from pipeline.processors.predictors.percentile import Percentile

_STEP_MS: Final = 1000 * STEP_SECONDS
_PROD_CLASS: Final = CLASS_CODES["prod"]
_UNKNOWN_CLASS: Final = CLASS_CODES["unknown"]
_PROD: Final = FIRST_CLASS + _PROD_CLASS
_OTHERS: Final = tuple(name for name in ENTITIES if name != "prod")
_SHARE, _REQUESTS, _OUTCOMES = range(3)
_NEVER: Final = -1


class Calibrated:
    """Predicts the peak of the pods of Prod that run now, with a declared risk: in
    `docs/explanation/calibrated-risk.md`. The margin of the strategy is taken out of it, because
    the risk is declared instead. Other entities, and pods, have the peaks of `percentile`."""

    name = "calibrated"
    prod: Literal["pair", "classes"] = "classes"
    columns: Mapping[str, Column] = {
        # Of pods: the highest usage in a step, and that step, and the step after which a
        # prediction was made for the pod.
        "calibrated_usage": Column((2,), empty=np.nan),
        "calibrated_step": Column((), "<i8", _NEVER),
        "calibrated_included": Column((2,), "<i8", _NEVER),
        # Of the class prod: share, requests, outcomes of the last prediction, after the step in
        # `calibrated_step`.
        "calibrated": Column((3, 2), empty=np.nan),
    }
    declaration: Final = Declaration(
        summary="peak of Prod that usage exceeds with the declared risk; else as `percentile`",
        options=(
            between(
                "risk",
                0.02,
                LOWEST_RISK,
                HIGHEST_RISK,
                "share of peaks that usage may exceed within the horizon",
            ),
        ),
        terms=(
            Term("share", "", note="of the requests, of Prod only"),
            Term("requests", note="of the pods of Prod when it was predicted"),
            Term("arrived", note="requests of pods that it was not predicted for"),
            Term("outcomes", "", note="horizons of the node's own; 0: pool and prior decide"),
            Term("margin", "", note="of the strategy, which the risk replaces"),
            Term("percentile", note="of Prod if nothing is given away"),
        ),
        formulas=(
            Formula("(share * requests + arrived) / margin", entities=("prod",)),
            Formula("percentile"),
        ),
    )

    def __init__(self, **options: Any) -> None:
        self._risk: float = self.declaration.checked(options)["risk"]
        self._percentile = Percentile()
        pools = object_column(lambda packed: NodePools.restored(packed, self._risk))
        self.node_columns: Mapping[str, Column] = {"calibrated_pools": pools}

    # -- learn

    def check_horizon(self, seconds: float) -> None:
        """Raise ValueError if nodes have no pools for this horizon of Prod."""
        horizon_of(seconds)

    def observe(
        self, models: EntityModels, rows: IntArray, values: FloatArray, end_ms: IntArray
    ) -> None:
        """Do nothing: samples without their node say too little."""

    def learn(self, view: View, windows: WindowUsage) -> None:
        """Take in the windows. The last one of a step closes it, or the next window after it if
        that is missing."""
        steps = (view.end_ms - 1) // _STEP_MS
        starts = np.searchsorted(view.node_index, np.arange(len(steps) + 1))
        pods = [slice(*starts[i : i + 2]) for i in range(len(steps))]
        pools = self._pools_of(view)
        for of_node, pooled in zip(pools, windows.pool_outcomes, strict=True):
            if pooled is not None:
                of_node.pool_outcomes = pooled
        for of_node, histories in zip(pools, windows.workload_histories, strict=True):
            of_node.remember(histories)
        for i, of_node in enumerate(pools):
            if _NEVER < of_node.open_step < steps[i]:
                self._close(view, windows, i, pods[i], of_node)
        store, rows = view.models.store, view.pods
        usage, of_step = store["calibrated_usage"], store["calibrated_step"]
        step_of_pod = steps[view.node_index]
        before = np.where((of_step[rows] == step_of_pod)[:, None], usage[rows], np.nan)
        usage[rows] = np.fmax(before, windows.pods)
        of_step[rows] = step_of_pod
        for i, of_node in enumerate(pools):
            of_node.open_step = int(steps[i])
            if view.end_ms[i] % _STEP_MS == 0:
                self._close(view, windows, i, pods[i], of_node)

    def _pools_of(self, view: View) -> list[NodePools]:
        """The pools of each node; new ones where it has none, or those of another horizon."""
        store, horizon_seconds = view.node_store["calibrated_pools"], view.horizon_seconds[_PROD]
        for row in view.node_rows.tolist():
            if store[row] is None or store[row].horizon_seconds != horizon_seconds:
                store[row] = NodePools(horizon_seconds, self._risk)
        pools: list[NodePools] = store[view.node_rows].tolist()
        return pools

    def _close(
        self, view: View, windows: WindowUsage, i: int, pods: slice, pools: NodePools
    ) -> None:
        """Close the open step of node i with the pods that its window lists."""
        store, rows, step = view.models.store, view.pods[pods], pools.open_step
        in_step = store["calibrated_step"][rows] == step
        usage = np.where(in_step[:, None], store["calibrated_usage"][rows], np.nan)
        runs, classes = ~view.ended[pods], view.classes[pods]
        peaks = pools.close(
            windows.uids[i],
            windows.workloads[i],
            runs & (classes == _PROD_CLASS),
            runs & (classes == _UNKNOWN_CLASS),
            view.requests[pods],
            usage,
        )
        if peaks is None:
            return
        prod = view.entities[i, _PROD]
        store["calibrated"][prod] = np.stack([peaks.share, peaks.requests, peaks.outcomes])
        store["calibrated_step"][prod] = step
        store["calibrated_included"][rows] = np.where(peaks.included, step, _NEVER)

    # -- predict

    def peak(self, view: View) -> Peaks:
        """Return the last prediction for Prod with the requests of other pods. If it gives nothing
        away, or not all of it is known, the peak is no lower than `percentile`."""
        usual = self._percentile.peak(view)
        known = view.models.store["calibrated"][view.entities[:, _PROD]]
        share, requests, outcomes = np.moveaxis(known, 1, 0)
        is_new, arrived = self._arrived(view)
        predicted = ~np.isnan(share)
        is_careful = ~predicted | (share >= 1.0) | is_new
        percentile = np.where(is_careful, usual.entities[:, _PROD], np.nan)
        share, requests = np.where(predicted, share, 1.0), np.where(predicted, requests, 0.0)
        peak = (share * requests + arrived) / view.margin[:, None]
        nothing = ~predicted & (arrived == 0.0) & np.isnan(percentile)
        entities = usual.entities.copy()
        entities[:, _PROD] = np.where(nothing, np.nan, np.fmax(peak, percentile))
        margin = np.repeat(view.margin[:, None], 2, axis=1)
        of_prod = {
            "share": share,
            "requests": requests,
            "arrived": arrived,
            "outcomes": np.nan_to_num(outcomes),
            "margin": margin,
        }
        terms = {name: np.full_like(entities, np.nan) for name in of_prod}
        for name, values in of_prod.items():
            terms[name][:, _PROD] = np.where(nothing, np.nan, values)
        terms["percentile"] = usual.entities.copy()
        terms["percentile"][:, _PROD] = percentile
        # Prod includes the requests of its new pods.
        without_requests = np.full_like(entities, np.nan)
        pools = view.node_store["calibrated_pools"][view.node_rows].tolist()
        outcomes = [None if of_node is None else of_node.outcomes() for of_node in pools]
        return Peaks(entities, usual.pods, terms, without_requests, outcomes)

    def _arrived(self, view: View) -> tuple[BoolArray, FloatArray]:
        """Whether Prod of each node has pods that its last prediction was not made for, (k, 2), and
        the sums of their requests."""
        store, nodes = view.models.store, len(view.end_ms)
        last = store["calibrated_step"][view.entities[:, _PROD]][view.node_index]
        included = store["calibrated_included"][view.pods] == last[:, None]
        included &= (last != _NEVER)[:, None]
        is_new = ~included & ((view.classes == _PROD_CLASS) & ~view.ended)[:, None]
        requests = np.where(is_new, np.nan_to_num(view.requests), 0.0)
        counts = group_sums(view.node_index, is_new.astype(np.float64), nodes)
        return counts > 0.0, group_sums(view.node_index, requests, nodes)


PREDICTOR: Final = Calibrated
