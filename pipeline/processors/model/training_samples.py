"""Training samples of pods, classes, system and node, and the weight of each.

The functions work on windows and the models of their nodes, in the same order. What they return for
a node depends on its own window and models alone; sums run in UID order, because floats added in
another order differ in the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain, pairwise

import numpy as np

from pipeline.processors.arrays import BoolArray, ByteArray, FloatArray
from pipeline.processors.kubernetes.pod_classes import CLASSES
from pipeline.processors.model import drift
from pipeline.processors.model.column_store import Columns
from pipeline.processors.model.entity_models import EntityModels
from pipeline.processors.model.histogram import decay_factor
from pipeline.processors.model.model_config import (
    ENTITIES,
    FIRST_CLASS,
    MAX_USAGE,
    NODE,
    RESOURCES,
    SYSTEM,
    UNKNOWN,
)
from pipeline.processors.model.node_models import NodeModels
from pipeline.processors.model.resource_pairs import TO_KUBERNETES, group_sums, stack_rows
from pipeline.processors.model.training_batch import (
    UNKNOWN_CLASS,
    TrainingBatch,
    system_remainder,
    valid,
)


def remember_pods(batch: TrainingBatch, nodes: Sequence[NodeModels]) -> None:
    """Store in each node the allocatable and the ages of pods of its window."""
    allocatable = valid(batch.allocatable)
    ages = np.where(np.isnan(batch.pod_ages), np.nan, batch.pod_ages)
    ends = accumulate((len(head.pods.uids) for head in batch.heads), initial=0)
    for i, (node, (start, end)) in enumerate(zip(nodes, pairwise(ends), strict=True)):
        node.pod_ages, node.allocatable = ages[start:end], allocatable[i]


def observed_shares(batch: TrainingBatch) -> FloatArray:
    """The share of its node's time in which each pod was seen, (p,); 1 where it is unknown."""
    coverage = np.array([head.coverage for head in batch.heads]).take(batch.window_index)
    seen = np.fmin(batch.pod_coverage, coverage)
    share: FloatArray = np.ones(len(seen))
    np.divide(seen, coverage, out=share, where=coverage > 0.0)
    return share


def entity_values(
    batch: TrainingBatch,
    unknown_begun: BoolArray,
    classes: ByteArray,
    usage: FloatArray,
    is_brief: BoolArray,
) -> FloatArray:
    """The samples of node, system and classes, (n, entities, 2).

    `usage` (p, 2) is what each pod used over the whole window, `classes` (p,) its class code. A
    pod of unknown usage leaves the system unknown, for its usage would pass for the system's. It
    also leaves its class unknown, unless it `is_brief` (p,): it has ended, or was there for a
    moment only. `unknown_begun` (n,) marks nodes that have a model of class `unknown`.
    """
    count, num_classes = len(batch.heads), len(CLASSES)
    groups = batch.window_index * num_classes + classes
    missing = np.isnan(usage)
    by_class = group_sums(groups, np.where(missing, 0.0, usage), count * num_classes)
    if (missing := missing & ~is_brief[:, None]).any():
        for r, is_missing in enumerate(missing.T):
            by_class[groups[is_missing], r] = np.nan
    values = np.empty((count, len(ENTITIES), 2))
    values[:, NODE] = batch.node_usage
    values[:, SYSTEM] = _remainder(batch, usage) if batch.system is None else batch.system
    values[:, FIRST_CLASS:] = by_class.reshape(count, num_classes, 2)
    # A node that never had a pod of unknown class has no model for it: an idle model would
    # cost a bucket of every node's Prod peak.
    unknown_pods = np.bincount(groups, minlength=count * num_classes)[UNKNOWN_CLASS::num_classes]
    values[(unknown_pods == 0) & ~unknown_begun, UNKNOWN] = np.nan
    # A sum of plausible values may not be plausible.
    return valid(values, MAX_USAGE)


def _remainder(batch: TrainingBatch, usage: FloatArray) -> FloatArray:
    return system_remainder(
        valid(batch.node_usage, MAX_USAGE),
        group_sums(batch.window_index, usage, len(batch.heads)),
        valid(batch.host_apps, MAX_USAGE),
    )


def sample_weights(
    nodes: Sequence[NodeModels], half_life_ms: Sequence[tuple[int, int]]
) -> FloatArray:
    """The weight of a sample of now, (nodes, profiles, 2)."""
    half_lives = list(chain.from_iterable(half_life_ms))
    # Most nodes share references and ends: `pow` runs once for each combination.
    known: dict[tuple[int | None, ...], list[float]] = {}
    weights = []
    for node in nodes:
        key = (node.end_ms, *chain.from_iterable(node.reference_ms))
        node_weights = known.get(key)
        if node_weights is None:
            node_weights = known[key] = [
                decay_factor(node.end_ms, reference, half_life)
                for reference, half_life in zip(key[1:], half_lives, strict=True)
                if reference is not None
            ]
        weights.append(node_weights)
    return np.array(weights).reshape(len(nodes), -1, 2)


def detect_drift(
    models: EntityModels,
    slots: Columns,
    nodes: Sequence[NodeModels],
    values: FloatArray,
    shorten: bool,
) -> None:
    """Look for changes of level before `values` (nodes, entities, 2) are learned.

    With `shorten` a change scales down what the model holds, but not the new sample.
    """
    changed = drift.observe(
        slots,
        np.array([node.slot for node in nodes], np.int64),
        values,
        stack_rows([node.allocatable for node in nodes]) / TO_KUBERNETES,
        np.array([node.end_ms for node in nodes], np.int64),
    )
    if shorten:
        entity_rows = stack_rows([node.entity_rows for node in nodes])
        for r in range(len(RESOURCES)):
            models.shift(entity_rows[changed[:, :, r]], r, drift.SHORTEN_FACTOR)
