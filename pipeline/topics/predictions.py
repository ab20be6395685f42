"""`springtide.predictions`: the peaks of a node by predictor, with their terms, keyed by node.

The model agent writes a record when peaks changed enough (`publish_policy`), and a tombstone when
the node departs. Peaks include the safety margin. None is unknown: an entity without samples has no
peak.
"""

import msgspec

from pipeline.topics.resource_amounts import ByResource, Usage
from pipeline.topics.result_header import Result


class DriftTimes(msgspec.Struct, frozen=True, kw_only=True):
    """When the level of usage last changed; None if not within the last four half-lives."""

    cpu: str | None = None
    memory: str | None = None


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """A count by resource."""

    cpu: int = 0
    memory: int = 0


class ModelTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The samples of an entity's model: their count, and the time of the first and the last one.

    `drift_at` is when the level of usage last changed: most samples may be older than that.
    `drifts` counts such changes since the model began.
    """

    samples: Counts = Counts()
    first_at: str | None = None
    last_at: str | None = None
    drift_at: DriftTimes = DriftTimes()
    drifts: Counts = Counts()


class EntityPeaks(msgspec.Struct, frozen=True, kw_only=True):
    """Peaks of an entity by predictor, with the safety margin (`peaks`) and without it (`raw`); the
    `terms` of each raw peak by predictor and name; and the samples of the model."""

    peaks: dict[str, Usage] = msgspec.field(default_factory=dict)
    raw: dict[str, Usage] = msgspec.field(default_factory=dict)
    terms: dict[str, dict[str, ByResource]] = msgspec.field(default_factory=dict)
    model: ModelTerms = ModelTerms()


class UsageColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Usage with a value per entity; None (NaN in memory) is unknown."""

    cpu_cores: list[float | None] = msgspec.field(default_factory=list)
    memory_bytes: list[float | None] = msgspec.field(default_factory=list)


class CountColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Counts by resource, with a number per entity."""

    cpu: list[int] = msgspec.field(default_factory=list)
    memory: list[int] = msgspec.field(default_factory=list)


class PodPeaks(msgspec.Struct, frozen=True, kw_only=True):
    """Peaks of the node's pods as columns, in order of uid.

    `raw` has the peaks by predictor without the safety margin. A pod that is `cold` (has too little
    history) or unknown counts its `request`, although its peak is listed. `age_seconds` is None if
    the pod is unknown. A pod that is not `active` is being deleted and counts its peak; a pod that
    has `ended` counts nothing.
    """

    uid: list[str] = msgspec.field(default_factory=list)
    pod_class: list[str] = msgspec.field(default_factory=list)
    cold: list[bool] = msgspec.field(default_factory=list)
    active: list[bool] = msgspec.field(default_factory=list)
    ended: list[bool] = msgspec.field(default_factory=list)
    samples: CountColumns = CountColumns()
    age_seconds: list[float | None] = msgspec.field(default_factory=list)
    request: UsageColumns = UsageColumns()
    raw: dict[str, UsageColumns] = msgspec.field(default_factory=dict)


class Reclaimable(msgspec.Struct, frozen=True, kw_only=True):
    """The part of Prod's `requests` that Prod will not use (`amount`), and the peak of Prod.

    The pod view adds up pods: `pods_peak` includes `unpredicted`, the requests of pods without a
    trusted peak, and lacks `left_out` pods, whose peak and request are unknown. The class view uses
    the models of classes: to `classes_peak` was added `surplus`, the part of these requests beyond
    the pods' own peaks, less `held`, the part that the class peaks include. `classes_peak` also
    includes `system`, the system's peak with the margin. With `pair`, per resource, `amount` is the
    smaller of both views and `peak` the larger of `pods_peak` + `system` and `classes_peak`; else
    both are those of the class view.
    """

    pair: bool = True
    amount: Usage = Usage()
    peak: Usage = Usage()
    unpredicted: Usage = Usage()
    requests: Usage = Usage()
    pods_amount: Usage = Usage()
    pods_peak: Usage = Usage()
    classes_amount: Usage = Usage()
    classes_peak: Usage = Usage()
    surplus: Usage = Usage()
    held: Usage = Usage()
    system: Usage = Usage()
    left_out: ByResource = ByResource()


class PredictionRecord(Result, frozen=True, kw_only=True):
    """All peaks of a node. `reclaimable` of the deciding `predictor` is used for Mid."""

    safety_margin_percent: float
    cold_start_seconds: float
    nsigma_multiplier: float
    cold_start_samples: int = 0
    predictor: str = "percentile"
    simulated: bool = False
    allocatable: Usage = Usage()
    node_peaks: EntityPeaks = EntityPeaks()
    system: EntityPeaks = EntityPeaks()
    classes: dict[str, EntityPeaks] = msgspec.field(default_factory=dict)
    pods: PodPeaks = PodPeaks()
    reclaimable: dict[str, Reclaimable] = msgspec.field(default_factory=dict)
    cold_pods: tuple[str, ...] = ()
