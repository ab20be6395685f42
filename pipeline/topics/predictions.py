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


class UsageColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of many entities, a value for each; None (NaN while in memory) is unknown."""

    cpu_cores: list[float | None] = msgspec.field(default_factory=list)
    memory_bytes: list[float | None] = msgspec.field(default_factory=list)


class PodPeaks(msgspec.Struct, frozen=True, kw_only=True):
    """Peaks of the node's pods as columns, in order of uid: a hundred pods cost a few lists.

    A cold pod (younger than the cold start) or an unknown one counts its `request`; its own peak
    is stated all the same. `age_seconds` is None where the pod is not known.
    """

    uid: list[str] = msgspec.field(default_factory=list)
    pod_class: list[str] = msgspec.field(default_factory=list)
    cold: list[bool] = msgspec.field(default_factory=list)
    samples: list[int] = msgspec.field(default_factory=list)
    age_seconds: list[float | None] = msgspec.field(default_factory=list)
    request: UsageColumns = UsageColumns()
    peaks: dict[str, UsageColumns] = msgspec.field(default_factory=dict)


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
    pods: PodPeaks = PodPeaks()
    reclaimable: dict[str, Reclaimable] = msgspec.field(default_factory=dict)
    cold_pods: tuple[str, ...] = ()
