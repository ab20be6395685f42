"""`springtide.predictions`: the peaks of a node, each predictor's, with the terms they come from.

Written by the model agent after every applied window, keyed by node; a tombstone when the node
departs. Peaks contain the safety margin. None is unknown: an entity without samples has no peak.
"""

import msgspec

from pipeline.topics.resources import Usage
from pipeline.topics.results import Result


class ModelTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What one entity's model rests on: samples learned and when it was first and last fed."""

    samples: int = 0
    first_at: str | None = None
    last_at: str | None = None


class EntityPeaks(msgspec.Struct, frozen=True, kw_only=True):
    """Peaks of one entity by predictor name, and the terms of its model."""

    peaks: dict[str, Usage] = msgspec.field(default_factory=dict)
    model: ModelTerms = ModelTerms()


class PodPeaks(EntityPeaks, frozen=True, kw_only=True):
    """Peaks of one pod. A cold pod (younger than the cold start) counts its request instead."""

    uid: str
    pod_class: str
    cold: bool = False
    request: Usage = Usage()


class Reclaimable(msgspec.Struct, frozen=True, kw_only=True):
    """What Prod asked for and will not use, and the peak of Prod, by one predictor.

    `peak` and `amount` are the resource-wise maximum and minimum of the pod view and the class
    view where both exist; `unpredicted` is the request of cold and unknown pods in `peak`.
    """

    amount: Usage = Usage()
    peak: Usage = Usage()
    unpredicted: Usage = Usage()


class PredictionRecord(Result, frozen=True, kw_only=True):
    safety_margin_percent: float
    cold_start_seconds: float
    nsigma_multiplier: float
    simulated: bool = False
    allocatable: Usage = Usage()
    node_peaks: EntityPeaks = EntityPeaks()
    system: EntityPeaks = EntityPeaks()
    classes: dict[str, EntityPeaks] = msgspec.field(default_factory=dict)
    pods: tuple[PodPeaks, ...] = ()
    reclaimable: dict[str, Reclaimable] = msgspec.field(default_factory=dict)
    cold_pods: tuple[str, ...] = ()
