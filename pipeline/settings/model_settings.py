"""Settings of the models."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, field

from pipeline.settings.base import MemoryCollectPolicy, Name, PositiveSeconds, Seconds, Section

CLASSES: Final = ("prod", "mid", "batch", "free", "none", "unknown")
"""Classes by code, which is the dictionary index of `pod_class` in windows."""


class HalfLifeSettings(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Age at which an observation counts half."""

    cpu: Annotated[
        Annotated[float, Meta(ge=1, le=31_536_000)] | None,
        Meta(description="Half-life of CPU models; null: that of model.histogram.preset."),
    ] = None
    memory: Annotated[
        Annotated[float, Meta(ge=1, le=31_536_000)] | None,
        Meta(description="Half-life of memory models; null: that of model.histogram.preset."),
    ] = None


class BucketSettings(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Buckets of the histograms of a resource, in cores or bytes."""

    first: Annotated[
        Annotated[float, Meta(ge=0.001, le=1e18)] | None,
        Meta(description="Size of the first bucket; null: that of the preset."),
    ] = None
    ratio: Annotated[
        Annotated[float, Meta(gt=1, le=1000)] | None,
        Meta(description="Growth factor of bucket sizes; null: that of the preset."),
    ] = None
    max: Annotated[
        Annotated[float, Meta(ge=0.001, le=1e18)] | None,
        Meta(description="Start of the last bucket; null: that of the preset."),
    ] = None
    # The first sample may weigh little more than 0.7, and must not be dropped.
    epsilon: Annotated[
        Annotated[float, Meta(gt=0, le=0.7)] | None,
        Meta(description="Weights below this are dropped; null: that of the preset."),
    ] = None


class HistogramSettings(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Histograms of usage."""

    preset: Annotated[
        Literal["koordinator", "vpa"],
        Meta(
            description="Buckets and half-lives of Koordinator (first bucket 0.025 cores and 5 "
            "MiB, 12 h and 24 h) or of the Vertical Pod Autoscaler (0.01 cores and 10 MB, 24 h)."
        ),
    ] = "koordinator"
    cpu: BucketSettings = BucketSettings()
    memory: BucketSettings = BucketSettings()


class ClassHistogramSettings(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Overrides of the histograms of a class."""

    preset: Literal["koordinator", "vpa"] | None = None
    cpu: BucketSettings = BucketSettings()
    memory: BucketSettings = BucketSettings()


class ClassSettings(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Overrides for a class."""

    histogram: ClassHistogramSettings | None = None
    half_life_seconds: HalfLifeSettings | None = None
    horizon_seconds: PositiveSeconds | None = None


_DEFAULT_PREDICTOR: Final = "percentile"


class ModelSettings(Section, frozen=True, kw_only=True):
    """The models, and predictions from them."""

    cold_start_seconds: Annotated[
        Seconds,
        Meta(description="A pod of at most this age is cold: its request is used as its peak."),
    ] = 86_400.0
    cold_start_samples: Annotated[
        Annotated[int, Meta(ge=0, le=1_000_000)],
        Meta(
            description="A pod whose model has fewer windows is cold regardless of its age, for "
            "example after a loss of state."
        ),
    ] = 10
    safety_margin_percent: Annotated[
        float, Meta(ge=0, le=1000, description="Safety margin on top of every predicted peak.")
    ] = 10.0
    predictors: Annotated[
        tuple[Name, ...],
        Meta(
            min_length=1,
            title="a list of names, at least one",
            description="Predictors whose peaks are published; `springtide model predictors` lists "
            "the installed ones.",
        ),
    ] = ("percentile", "nsigma-v1")
    predictor: Annotated[
        Name,
        Meta(
            description="The predictor for reclaimable resources, unless the node's strategy names "
            "another."
        ),
    ] = _DEFAULT_PREDICTOR
    predictor_options: Annotated[
        dict[str, dict[str, Any]],
        Meta(
            description="Options by predictor, such as {percentile: {cpu: 0.99}}; see "
            "docs/explanation/models.md."
        ),
    ] = field(default_factory=dict)
    histogram: HistogramSettings = HistogramSettings()
    half_life_seconds: HalfLifeSettings = HalfLifeSettings()
    classes: Annotated[
        dict[str, ClassSettings],
        Meta(
            description="Overrides for a class and its pods, by class (prod, mid, batch, free, "
            "none, unknown): histogram, half_life_seconds and horizon_seconds."
        ),
    ] = field(default_factory=dict)
    horizon_seconds: Annotated[
        PositiveSeconds,
        Meta(
            description="Time for which a predicted peak should hold; each predictor interprets "
            "it, see docs/explanation/models.md."
        ),
    ] = 86_400.0
    accuracy_interval_seconds: Annotated[
        PositiveSeconds,
        Meta(
            description="How often a predicted peak of Prod is remembered, to be held against what "
            "happens until its horizon is over; at least a 288th of the horizon."
        ),
    ] = 3600.0
    training_statistic: Annotated[
        Literal["avg", "p90", "p95", "max", "last"],
        Meta(description="Statistic of a window that models learn from."),
    ] = "p90"
    memory_collect_policy: Annotated[
        MemoryCollectPolicy,
        Meta(
            description="Memory figure that counts as usage, unless metricMemoryCollectPolicy "
            "names another for the node; usageWithoutPageCache if the kernel does not report it."
        ),
    ] = "usageWithoutPageCache"
    drift: Annotated[
        Literal["off", "flag", "shorten"],
        Meta(
            description="Reaction to a change of the usage level of a node, its system or a class. "
            "flag: report it in predictions. shorten: also reduce the weight of earlier "
            "observations to a sixteenth."
        ),
    ] = "flag"
    expiration_seconds: Annotated[
        PositiveSeconds,
        Meta(
            description="Time after the last window that listed a pod (event time) after which "
            "its model is dropped."
        ),
    ] = 1800.0
    nsigma_multiplier: Annotated[
        Annotated[float, Meta(ge=0, le=100)],
        Meta(description="Standard deviations above the mean in the N-sigma predictors."),
    ] = 3.0
    resource_diff_threshold_percent: Annotated[
        Annotated[float, Meta(ge=0, le=1000)],
        Meta(
            description="Publish a prediction at once if a peak rises, or a reclaimable amount "
            "falls, by more than this percentage."
        ),
    ] = 5.0
    report_interval_seconds: Annotated[
        Seconds,
        Meta(
            description="Publish a fall of a peak, or a rise of a reclaimable amount, by more than "
            "that percentage once it has lasted this long (event time)."
        ),
    ] = 60.0
    force_update_seconds: Annotated[
        Seconds,
        Meta(
            description="Publish a prediction after this time (event time) even without a change."
        ),
    ] = 600.0
    minimum_coverage: Annotated[
        Annotated[float, Meta(ge=0, le=1)],
        Meta(description="Models skip a window with a smaller share of its measurements."),
    ] = 0.5

    def problems(self) -> Mapping[str, str]:
        problems = {}
        if self.predictor not in self.predictors and self.predictor == _DEFAULT_PREDICTOR:
            # The user selected predictors without changing the default.
            problems["predictors"] = (
                f"a list with {self.predictor}, the default of model.predictor, or model.predictor "
                "set to one of the list"
            )
        elif self.predictor not in self.predictors:
            problems["predictor"] = f"one of model.predictors ({', '.join(self.predictors)})"
        if unknown := sorted(set(self.classes) - set(CLASSES)):
            problems["classes"] = f"only the classes {', '.join(CLASSES)}, not {unknown[0]!r:.40}"
        return problems
