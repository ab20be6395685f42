"""The cold-start rule: a pod without enough history counts its request instead of its own peak.

A peak learned in an hour misses the rest of the day; the request is what the pod's owner expects.
`is_cold` decides which pods have too little history, `counts_request` which pods count their
request. All sums of peaks over pods use both: the view of pods (`reclaimable`), predictors that add
up pods (`pod_sums`), and `springtide explain`, which prints `criteria` and `reason`. The callers
decide which pods are part of a sum. The limits are fields of the node's `Strategy`: a new limit is
a field there, which is also a key of the policy (docs/how-to/add-a-policy-key.md), a line in
`is_cold` and `criteria`, and, since `explain` prints it, a field of `PredictionRecord`
(`pipeline/topics/predictions.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.model.entity_models import NEVER, EntityModels
from pipeline.processors.model.resource_pairs import per_resource
from pipeline.topics.nodes import Strategy
from pipeline.topics.predictions import PredictionRecord

FlagT = TypeVar("FlagT", bool, BoolArray)


def is_cold(
    models: EntityModels,
    rows: IntArray,
    ages: FloatArray,
    end_ms: IntArray,
    node_index: IntArray,
    strategies: Mapping[str, npt.NDArray[Any]],
) -> BoolArray:
    """Whether each of n pods is cold, (n,): not older than the cold start, or with too few samples
    of a resource.

    `rows` (n,) are the pods' rows of `models`, `ages` (n,) seconds, NaN unknown, `node_index` (n,)
    the index of each pod's node, `end_ms` and the columns of `strategies` (k,) are per node. A pod
    of unknown age is as old as its first sample. A resource without samples counts only if the
    other has none either: it has no model to trust.
    """
    first_ms = models.first_ms.take(rows)
    modelled_ms = np.where(first_ms == NEVER, 0, end_ms[node_index] - first_ms)
    ages = np.where(np.isnan(ages), modelled_ms / 1000.0, ages)
    young = ages <= strategies["cold_start_seconds"][node_index]
    samples = models.samples.take(rows, axis=0)
    few = samples < per_resource(strategies["cold_start_samples"][node_index])
    begun = samples > 0
    cpu, memory = (few & (begun | ~begun[:, ::-1])).T
    return np.asarray(young | cpu | memory)


def counts_request(has_request: FlagT, is_cold: FlagT, lacks_peak: FlagT) -> FlagT:
    """Whether a pod's request counts instead of its peak. A cold pod of unknown request counts its
    peak: there is nothing else."""
    return has_request & (is_cold | lacks_peak)


def criteria(limits: Strategy | PredictionRecord) -> str:
    """When a pod is cold, in words."""
    seconds, samples = limits.cold_start_seconds, limits.cold_start_samples
    return f"at most {seconds!r} s old or with fewer than {samples} samples"


def reason(age_seconds: float | None, samples: int, other_samples: str) -> str:
    """Why a pod is cold, in words; `other_samples` are those of the other resource."""
    age = "of unknown age" if age_seconds is None else f"{age_seconds!r} s old"
    return f"cold, {age}, {samples} samples ({other_samples})"
