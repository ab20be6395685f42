"""Peaks of nodes: each predictor's, for every entity, and what Prod leaves unused.

Owes the rest: one answer per node, computed for many nodes at once from the rows of their models
and what their last windows said of their pods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.processors import reclaimable
from pipeline.processors.classes import CLASS_CODES
from pipeline.processors.node import BoolArray, ByteArray, NodeModels
from pipeline.processors.predictor import Peaks, PeakSettings, Predictor, View, settings_of
from pipeline.processors.reclaimable import TO_KUBERNETES, kubernetes_units
from pipeline.processors.rows import NEVER, IntArray, Rows
from pipeline.processors.window import (
    FIRST_CLASS,
    SYSTEM,
    UNKNOWN,
    FloatArray,
)

_PROD, _NONE = (FIRST_CLASS + CLASS_CODES[name] for name in ("prod", "none"))


@dataclass(frozen=True, slots=True)
class ProdReclaimable:
    """What both views of one node come to, each (2,) millicores and bytes; NaN unknown. `pair`
    says whether both count, or that of whole classes alone.

    `unpredicted` are the requests that stand in `pods_peak` for cold pods, `surplus` what stands
    for them in `classes_peak`; `system` is what is added to `pods_peak`, being in the other.
    """

    pair: bool
    amount: FloatArray
    peak: FloatArray
    unpredicted: FloatArray
    requests: FloatArray
    pods_amount: FloatArray
    pods_peak: FloatArray
    classes_amount: FloatArray
    classes_peak: FloatArray
    surplus: FloatArray
    system: FloatArray


@dataclass(frozen=True, slots=True)
class PredictorPeaks:
    """One predictor's answer for one node, cores and bytes, NaN unknown.

    `raw` (entities, 2) and `pod_raw` (pods, 2) are before the safety margin, `peaks` and
    `pod_peaks` with it; `terms` are what `raw` was made of.
    """

    raw: FloatArray
    peaks: FloatArray
    pod_raw: FloatArray
    pod_peaks: FloatArray
    terms: Mapping[str, FloatArray]
    reclaimable: ProdReclaimable


@dataclass(frozen=True, slots=True)
class NodePeaks:
    """Peaks of a node as of the end of its last window, by predictor; `decides` names the one
    that the node's strategy trusts.

    Samples are (.., 2) per resource, times are milliseconds, -1 for never. Entities are in the
    order of `ENTITIES`, pods those of the last window in UID order. `drift_ms` and `drifts` say
    when the usage of each entity last changed its level, and how often, (entities, 2).
    """

    node: str
    end_ms: int
    decides: str
    predictors: Mapping[str, PredictorPeaks]
    samples: IntArray
    first_ms: IntArray
    last_ms: IntArray
    drift_ms: IntArray
    drifts: IntArray
    pod_uids: tuple[str, ...]
    pod_classes: ByteArray
    pod_requests: FloatArray
    pod_samples: IntArray
    pod_first_ms: IntArray
    pod_last_ms: IntArray
    pod_cold: BoolArray
    pod_active: BoolArray
    pod_ended: BoolArray
    allocatable: FloatArray

    @property
    def decided(self) -> PredictorPeaks:
        """The answer that counts."""
        return self.predictors[self.decides]

    @property
    def reclaimable(self) -> ProdReclaimable:
        """What Prod leaves unused, by the predictor that decides."""
        return self.decided.reclaimable


def peaks_of(
    names: Sequence[str],
    known: Sequence[NodeModels],
    rows: Rows,
    predictors: Mapping[str, Predictor],
    horizon_seconds: FloatArray,
    usual: str,
    changes: tuple[IntArray, IntArray],
) -> list[NodePeaks]:
    """Peaks of the nodes `names`, whose models are `known`, in that order.

    Where a strategy names a predictor that does not run, `usual` decides. `changes` are
    `drift_ms` and `drifts` of all, (k, entities, 2).
    """
    if not known:
        return []
    view = view_of(known, rows, horizon_seconds)
    answers = {name: predictor.peak(view) for name, predictor in predictors.items()}
    views = {
        name: _reclaimable(known, view, answer, predictors[name].prod == "pair")
        for name, answer in answers.items()
    }
    ends = np.cumsum([len(node.rows) for node in known])
    whole, pods = view.split(rows.samples[view.all_rows])
    first, pod_first = view.split(rows.first_ms[view.all_rows])
    last, pod_last = view.split(rows.last_ms[view.all_rows])
    found = []
    for i, (name, node) in enumerate(zip(names, known, strict=True)):
        own = slice(ends[i] - len(node.rows), ends[i])
        margin = view.settings.margin[i]
        found.append(
            NodePeaks(
                node=name,
                end_ms=node.end_ms,
                decides=node.strategy.predictor if node.strategy.predictor in answers else usual,
                predictors={
                    key: PredictorPeaks(
                        raw=answer.entities[i],
                        peaks=answer.entities[i] * margin,
                        pod_raw=answer.pods[own],
                        pod_peaks=answer.pods[own] * margin,
                        terms={term: values[i] for term, values in answer.terms.items()},
                        reclaimable=ProdReclaimable(
                            predictors[key].prod == "pair", *(values[i] for values in views[key])
                        ),
                    )
                    for key, answer in answers.items()
                },
                samples=whole[i],
                first_ms=first[i],
                last_ms=last[i],
                drift_ms=changes[0][i],
                drifts=changes[1][i],
                pod_uids=node.uids,
                pod_classes=node.classes,
                pod_requests=node.requests,
                pod_samples=pods[own],
                pod_first_ms=pod_first[own],
                pod_last_ms=pod_last[own],
                pod_cold=view.cold[own],
                pod_active=node.active,
                pod_ended=node.ended,
                allocatable=node.allocatable,
            )
        )
    return found


def view_of(known: Sequence[NodeModels], rows: Rows, horizon_seconds: FloatArray) -> View:
    """What predictors see of these nodes."""
    settings = settings_of(known)
    node_of = np.repeat(np.arange(len(known)), [len(node.rows) for node in known])
    pods = np.concatenate([node.rows for node in known])
    end_ms = np.array([node.end_ms for node in known], np.int64)
    ages = np.concatenate([node.ages for node in known])
    return View(
        rows=rows,
        entities=np.stack([node.fixed for node in known]),
        pods=pods,
        node_of=node_of,
        classes=np.concatenate([node.classes for node in known]),
        requests=np.concatenate([node.requests for node in known]) / TO_KUBERNETES,
        active=np.concatenate([node.active for node in known]),
        ended=np.concatenate([node.ended for node in known]),
        cold=_cold(rows, pods, ages, end_ms[node_of], node_of, settings),
        end_ms=end_ms,
        horizon_seconds=horizon_seconds,
        settings=settings,
    )


def _cold(
    rows: Rows,
    pods: IntArray,
    ages: FloatArray,
    end_ms: IntArray,
    node_of: IntArray,
    settings: PeakSettings,
) -> BoolArray:
    """Which pods are at most the cold start old (of unknown age: since their first sample), or
    have too few samples of a resource to be trusted, however old they are. A resource that was
    never measured has no model to trust or not, unless neither was."""
    first = rows.first_ms[pods]
    seen = np.where(first == NEVER, 0.0, (end_ms - first) / 1000.0)
    young = np.where(np.isnan(ages), seen, ages) <= settings.cold_start_seconds[node_of]
    samples = rows.samples[pods]
    few = samples < settings.cold_start_samples[node_of][:, None]
    begun = samples > 0
    cpu, memory = (few & (begun | ~begun[:, ::-1])).T
    return np.asarray(young | cpu | memory)


def _reclaimable(
    nodes: Sequence[NodeModels], view: View, answer: Peaks, pair: bool
) -> tuple[FloatArray, ...]:
    """The fields of ProdReclaimable, each (nodes, 2)."""
    seen = reclaimable.Pods(
        node_of=view.node_of,
        classes=view.classes,
        requests=np.concatenate([node.requests for node in nodes]),
        cold=view.cold,
        active=view.active,
        ended=view.ended,
    )
    requests = seen.request_sums(len(nodes))
    allocatable = np.stack([node.allocatable for node in nodes])
    margin = view.settings.margin
    pods, surplus = reclaimable.pod_view(seen, kubernetes_units(answer.pods), allocatable, margin)
    entities = kubernetes_units(answer.entities)
    whole = reclaimable.class_view(
        entities[:, SYSTEM], entities[:, _PROD], entities[:, _NONE], entities[:, UNKNOWN],
        surplus, requests, allocatable, margin,
    )  # fmt: skip
    system = reclaimable.with_margin(entities[:, SYSTEM], margin)
    both = reclaimable.combine(pods, whole, system) if pair else whole
    return (
        both.amount, both.peak, pods.unpredicted, requests,
        pods.amount, pods.peak, whole.amount, whole.peak, surplus, system,
    )  # fmt: skip
