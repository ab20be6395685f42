"""`springtide.predictions`: the peaks of a node, each predictor's, with the terms they come from.

Written by the model agent where there is something new to say, keyed by node; a tombstone when
the node departs. Peaks contain the safety margin. None is unknown: an entity without samples has
no peak.
"""

import msgspec

from pipeline.topics.resource_amounts import ByResource, Usage
from pipeline.topics.result_header import Result


class DriftTimes(msgspec.Struct, frozen=True, kw_only=True):
    """When usage last changed its level; None: not within the last four half-lives."""

    cpu: str | None = None
    memory: str | None = None


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """How many of something each resource has."""

    cpu: int = 0
    memory: int = 0


class ModelTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What one entity's model rests on: samples learned of each resource, when it was first and
    last fed with a sample of either, and when usage last changed its level: since then it is no
    longer what most of the samples say. `drifts` counts these changes since the model began."""

    samples: Counts = Counts()
    first_at: str | None = None
    last_at: str | None = None
    drift_at: DriftTimes = DriftTimes()
    drifts: Counts = Counts()


class EntityPeaks(msgspec.Struct, frozen=True, kw_only=True):
    """Peaks of one entity by predictor name, with the safety margin (`peaks`) and before it
    (`raw`); what each `raw` was made of, by predictor and name; and what the model rests on."""

    peaks: dict[str, Usage] = msgspec.field(default_factory=dict)
    raw: dict[str, Usage] = msgspec.field(default_factory=dict)
    terms: dict[str, dict[str, ByResource]] = msgspec.field(default_factory=dict)
    model: ModelTerms = ModelTerms()


class UsageColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of many entities, a value for each; None (NaN while in memory) is unknown."""

    cpu_cores: list[float | None] = msgspec.field(default_factory=list)
    memory_bytes: list[float | None] = msgspec.field(default_factory=list)


class CountColumns(msgspec.Struct, frozen=True, kw_only=True):
    """How many of something each resource of many entities has, a number for each entity."""

    cpu: list[int] = msgspec.field(default_factory=list)
    memory: list[int] = msgspec.field(default_factory=list)


class PodPeaks(msgspec.Struct, frozen=True, kw_only=True):
    """Peaks of the node's pods as columns, in order of uid: a hundred pods cost a few lists.

    `raw` is each predictor's peak before the safety margin. A cold pod (younger than the cold
    start, or with too few samples of a resource: it is then cold for both) or an unknown one counts
    its `request`; its own peak is stated all the same. `age_seconds` is None where the pod is not
    known; a pod that is not `active` is being deleted and counts its peak, or has `ended` and
    counts nothing.
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
    """What Prod asked for (`requests`) and will not use, and the peak of Prod, by one predictor.

    `pair`: `amount` is the smaller of `pods_amount` and `classes_amount`, `peak` the larger of
    `pods_peak` + `system` and `classes_peak`, per resource; else both are those of the classes.
    For pods without a peak that can be trusted, `pods_peak` holds their requests, `unpredicted`,
    and `classes_peak` what they asked for beyond their own peaks, `surplus`, without what the peaks
    of classes hold of that already, as sums over pods do, `held`. `system` is the system's peak
    with the margin, which `classes_peak` holds already. `left_out` is how many pods `pods_peak`
    lacks, by resource: neither peak nor request of theirs is known.
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
    """All peaks of one node. `predictor` decides: its `reclaimable` is what others build on."""

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
