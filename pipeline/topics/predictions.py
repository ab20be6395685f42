"""`springtide.predictions`: the peaks of a node by predictor, with their terms, keyed by node.

The model agent writes a record when peaks changed enough (`publish_policy`), and a tombstone when
the node departs. Peaks include the safety margin. None is unknown: an entity without samples has no
peak.
"""

import msgspec

from pipeline.topics.pool_outcomes import NodeOutcomes
from pipeline.topics.resource_amounts import ByResource, Usage
from pipeline.topics.result_header import Result


class DriftTimes(msgspec.Struct, frozen=True, kw_only=True):
    """When the level of usage last changed; None if not within the last four half-lives.

    cpu: Of CPU.
    memory: Of memory.
    """

    cpu: str | None = None
    memory: str | None = None


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """A count by resource.

    cpu: Of CPU.
    memory: Of memory.
    """

    cpu: int = 0
    memory: int = 0


class ModelTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The samples of an entity's model.

    samples: Number of samples.
    first_at: Time of the first sample.
    last_at: Time of the last sample.
    drift_at: When the level of usage last changed; most samples may be older than that.
    drifts: Changes of level since the model began.
    """

    samples: Counts = Counts()
    first_at: str | None = None
    last_at: str | None = None
    drift_at: DriftTimes = DriftTimes()
    drifts: Counts = Counts()


class EntityPeaks(msgspec.Struct, frozen=True, kw_only=True):
    """Peaks of an entity by predictor.

    peaks: Peaks with the safety margin, by predictor.
    raw: Peaks without it, by predictor.
    terms: The numbers that each raw peak was computed from, by predictor and name.
    model: The samples of the model.
    """

    peaks: dict[str, Usage] = msgspec.field(default_factory=dict)
    raw: dict[str, Usage] = msgspec.field(default_factory=dict)
    terms: dict[str, dict[str, ByResource]] = msgspec.field(default_factory=dict)
    model: ModelTerms = ModelTerms()


class UsageColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Usage with a value per entity; None (NaN in memory) is unknown.

    cpu_cores: CPU in cores.
    memory_bytes: Memory in bytes.
    """

    cpu_cores: list[float | None] = msgspec.field(default_factory=list)
    memory_bytes: list[float | None] = msgspec.field(default_factory=list)


class CountColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Counts by resource, with a number per entity.

    cpu: Of CPU.
    memory: Of memory.
    """

    cpu: list[int] = msgspec.field(default_factory=list)
    memory: list[int] = msgspec.field(default_factory=list)


class PodPeaks(msgspec.Struct, frozen=True, kw_only=True):
    """Peaks of the node's pods as columns, in order of uid.

    uid: UID of the pod, as in the name of its cgroup.
    pod_class: Class of the pod: prod, mid, batch, free, none or unknown.
    cold: Whether the pod has too little history; it then counts its request, although its peak is
      listed.
    active: False for a pod that is being deleted, which counts its peak.
    ended: Whether the pod has ended; it then counts nothing.
    samples: Samples of its model.
    age_seconds: Age of the pod; null if the pod is unknown.
    request: Requests of the pod.
    raw: Peaks without the safety margin, by predictor.
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
    """What Prod leaves unused, by two views: the pod view adds up pods, the class view uses the
    models of classes.

    pair: Whether both views count: `amount` is then the smaller, `peak` the larger of both; else
      they are those of the class view.
    amount: The part of Prod's requests that Prod will not use.
    peak: The peak of Prod, with the system.
    unpredicted: Requests of pods without a trusted peak, which the peaks of both views include.
    requests: Requests of Prod.
    pods_amount: `amount` of the pod view.
    pods_peak: Peak of the pod view, without the system.
    classes_amount: `amount` of the class view.
    classes_peak: Peak of the class view, with the system.
    surplus: Part of `unpredicted` beyond the pods' own peaks, which was added to `classes_peak`.
    held: Part of it that the peaks of classes include already.
    system: Peak of the system with the margin.
    left_out: Number of pods whose peak and request are unknown; no view has them.
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
    """All peaks of a node.

    safety_margin_percent: Safety margin of the node's strategy.
    cold_start_seconds: Age up to which a pod is cold.
    nsigma_multiplier: Number of standard deviations of N-sigma predictors.
    cold_start_samples: Samples below which a pod is cold.
    predictor: The deciding predictor, whose `reclaimable` is used for Mid.
    simulated: Whether the node is simulated.
    allocatable: Allocatable of the node.
    node_peaks: Peaks of the node as a whole.
    system: Peaks of what runs outside of pods and host applications.
    classes: Peaks of the pods of each class.
    pods: Peaks of the pods of the last window.
    reclaimable: What Prod leaves unused, by predictor.
    cold_pods: UIDs of cold pods.
    outcomes: Outcomes of calibrated peaks, which the planner adds up by pool; null if the predictor
      `calibrated` does not run.
    """

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
    outcomes: NodeOutcomes | None = None
