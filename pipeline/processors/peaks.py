"""Peaks of nodes: each predictor's, for every entity, and what Prod leaves unused.

Owes the rest: one answer per node, computed for many nodes at once from the rows of their models
and what their last windows said of their pods.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.processors import percentile
from pipeline.processors.classes import CLASS_CODES
from pipeline.processors.node import BoolArray, ByteArray, NodeModels
from pipeline.processors.percentile import Percentile, kubernetes_units
from pipeline.processors.predictor import Predictor, settings_of
from pipeline.processors.rows import NEVER, IntArray, Rows
from pipeline.processors.window import (
    ENTITIES,
    FIRST_CLASS,
    SYSTEM,
    UNKNOWN,
    FloatArray,
)

_PROD, _NONE = (FIRST_CLASS + CLASS_CODES[name] for name in ("prod", "none"))


@dataclass(frozen=True, slots=True)
class ProdReclaimable:
    """Both views of one node and what they come to, each (2,) millicores and bytes; NaN unknown."""

    amount: FloatArray
    peak: FloatArray
    unpredicted: FloatArray
    requests: FloatArray
    pods_amount: FloatArray
    pods_peak: FloatArray
    classes_amount: FloatArray
    classes_peak: FloatArray


@dataclass(frozen=True, slots=True)
class NodePeaks:
    """Peaks of a node as of the end of its last window.

    `peaks` maps a predictor's name to (entities, 2), `pod_peaks` to (pods, 2), cores and bytes,
    margin included, NaN unknown. `quantiles` and `pod_quantiles` are those of the percentile
    predictor without the margin. Samples are (.., 2) per resource, times are milliseconds, -1 for
    never. Entities are in the order of `ENTITIES`, pods those of the last window in UID order.
    """

    node: str
    end_ms: int
    peaks: dict[str, FloatArray]
    quantiles: FloatArray
    samples: IntArray
    first_ms: IntArray
    last_ms: IntArray
    pod_uids: tuple[str, ...]
    pod_classes: ByteArray
    pod_requests: FloatArray
    pod_peaks: dict[str, FloatArray]
    pod_quantiles: FloatArray
    pod_samples: IntArray
    pod_first_ms: IntArray
    pod_last_ms: IntArray
    pod_cold: BoolArray
    allocatable: FloatArray
    reclaimable: ProdReclaimable


def peaks_of(
    names: Sequence[str],
    known: Sequence[NodeModels],
    rows: Rows,
    deciding: Percentile,
    others: Sequence[Predictor],
) -> list[NodePeaks]:
    """Peaks of the nodes `names`, whose models are `known`, in that order."""
    if not known:
        return []
    at = np.concatenate([*(node.fixed for node in known), *(node.rows for node in known)])
    split = len(known) * len(ENTITIES)
    node_of = np.repeat(np.arange(len(known)), [len(node.rows) for node in known])
    per_node = settings_of(known)
    settings = per_node.take(
        np.concatenate([np.repeat(np.arange(len(known)), len(ENTITIES)), node_of])
    )
    margin = settings.margin[:, None]
    quantiles = deciding.peak(rows, at, settings)
    peaks = {deciding.name: quantiles * margin}
    peaks |= {other.name: other.peak(rows, at, settings) * margin for other in others}
    samples, first, last = rows.samples[at], rows.first_ms[at], rows.last_ms[at]
    cold = _cold(known, node_of, first[split:], per_node.cold_start_seconds)
    views = _reclaimable(
        known, node_of, quantiles[:split], quantiles[split:], cold, per_node.margin
    )
    answers = []
    start = split
    for i, (name, node) in enumerate(zip(names, known, strict=True)):
        own = slice(i * len(ENTITIES), (i + 1) * len(ENTITIES))
        pods = slice(start, start + len(node.rows))
        start = pods.stop
        answers.append(
            NodePeaks(
                node=name,
                end_ms=node.end_ms,
                peaks={key: peak[own] for key, peak in peaks.items()},
                quantiles=quantiles[own],
                samples=samples[own],
                first_ms=first[own],
                last_ms=last[own],
                pod_uids=node.uids,
                pod_classes=node.classes,
                pod_requests=node.requests,
                pod_peaks={key: peak[pods] for key, peak in peaks.items()},
                pod_quantiles=quantiles[pods],
                pod_samples=samples[pods],
                pod_first_ms=first[pods],
                pod_last_ms=last[pods],
                pod_cold=cold[pods.start - split : pods.stop - split],
                allocatable=node.allocatable,
                reclaimable=ProdReclaimable(*(view[i] for view in views)),
            )
        )
    return answers


def _cold(
    nodes: Sequence[NodeModels], node_of: IntArray, first_ms: IntArray, cold_start: FloatArray
) -> BoolArray:
    """Which pods are at most the cold start old; of unknown age, since their first sample."""
    ages = np.concatenate([node.ages for node in nodes])
    ends = np.array([node.end_ms for node in nodes])[node_of]
    seen = np.where(first_ms == NEVER, 0.0, (ends - first_ms) / 1000.0)
    return np.asarray(np.where(np.isnan(ages), seen, ages) <= cold_start[node_of])


def _reclaimable(
    nodes: Sequence[NodeModels],
    node_of: IntArray,
    fixed_quantiles: FloatArray,
    pod_quantiles: FloatArray,
    cold: BoolArray,
    margin: FloatArray,
) -> tuple[FloatArray, ...]:
    """The fields of ProdReclaimable, each (nodes, 2)."""
    requests = np.concatenate([node.requests for node in nodes])
    classes = np.concatenate([node.classes for node in nodes])
    active = np.concatenate([node.active for node in nodes])
    allocatable = np.stack([node.allocatable for node in nodes])
    pods = percentile.pod_view(
        node_of, kubernetes_units(pod_quantiles), requests, classes, cold, active,
        allocatable, margin,
    )  # fmt: skip
    entities = kubernetes_units(fixed_quantiles).reshape(len(nodes), len(ENTITIES), 2)
    whole = percentile.class_view(
        entities[:, SYSTEM], entities[:, _PROD], entities[:, _NONE], entities[:, UNKNOWN],
        percentile.request_sums(node_of, requests, classes, active, len(nodes)),
        allocatable, margin,
    )  # fmt: skip
    both = percentile.combine(pods, whole)
    return (
        both.amount, both.peak, both.unpredicted, both.requests,
        pods.amount, pods.peak, whole.amount, whole.peak,
    )  # fmt: skip
